// Views of the list under a name, kept in this browser: where it stood, as its address says.
import { html, useState } from "../dom.js";
import { confirm } from "../dialogs.js";
import { Menu } from "../parts.js";
import { toast } from "../toasts.js";
import { COLUMNS, go, here, hrefOf } from "./address.js";

const KEY = "ff.views";

function kept() {
  try {
    const found = JSON.parse(localStorage.getItem(KEY) || "[]");
    return Array.isArray(found)
      ? found.filter(({ name, href }) => typeof name === "string" && /^#\/executions(\?|$)/.test(href))
      : [];
  } catch {
    return [];
  }
}

function keep(views) {
  try {
    localStorage.setItem(KEY, JSON.stringify(views));
  } catch {
    toast("This browser does not store views.", "warn");
  }
}

export function Views({ said }) {
  const [views, setViews] = useState(kept);
  const own = hrefOf(said);
  const change = (next) => {
    keep(next);
    setViews(next);
  };
  const save = () =>
    confirm({
      title: "Save this view",
      consequence: "Saves the filters, times and columns of this page under a name, in this browser.",
      label: "Save",
      fields: [{ name: "name", label: "Name", required: true }],
      act: async ({ name }) => change([...kept().filter((view) => view.name !== name), { name, href: own }]),
    });
  return html`
    <${Menu}
      label="Views"
      items=${[
        ...views.map((view) => ({
          label: view.name,
          icon: view.href === own ? "check" : "link",
          act: () => {
            location.hash = view.href;
          },
        })),
        { label: "Save this view…", icon: "plus", act: save },
        ...views
          .filter((view) => view.href === own)
          .map((view) => ({
            label: `Remove view ${view.name}`,
            icon: "close",
            act: () => change(kept().filter((each) => each.name !== view.name)),
          })),
      ]}
    />
  `;
}

export function Columns({ said }) {
  const flip = (key) => {
    const { columns } = here();
    const shown = columns.includes(key) ? columns.filter((each) => each !== key) : [...columns, key];
    go({ columns: COLUMNS.map(([each]) => each).filter((each) => shown.includes(each)) }, { replace: true });
  };
  return html`
    <${Menu}
      label="Columns"
      items=${COLUMNS.map(([key, title]) => ({
        label: said.columns.includes(key) ? `Hide ${title.toLowerCase()}` : `Show ${title.toLowerCase()}`,
        icon: said.columns.includes(key) ? "check" : "plus",
        act: () => flip(key),
      }))}
    />
  `;
}
