// Small parts that every page is made of.
import { html, useEffect, useRef, useState } from "./dom.js";
import { ENDED, moment, relative, shortId, words } from "./format.js";
import { Icon } from "./icons.js";
import { toast } from "./toasts.js";

export const Badge = ({ state, tone, children }) => html`
  <span class="badge" data-tone=${tone || state}>${children || words(state)}</span>
`;

/** A time as its distance, with the moment itself on hover. */
export function When({ ms }) {
  return ms
    ? html`
        <time datetime=${new Date(Number(ms)).toISOString()} title=${moment(Number(ms))}>${relative(Number(ms))}</time>
      `
    : "–";
}

export const Empty = ({ icon = "inbox", children }) => html`
  <div class="empty">
    <${Icon} name=${icon} />
    ${children}
  </div>
`;

export const Trouble = ({ problem }) =>
  problem
    ? html`<p class="problem" role="alert">${problem.message}</p>`
    : null;

export const Loading = () => html`
  <p class="loading" role="status">Loading…</p>
`;

export const executionHref = (id) => `#/executions/${encodeURIComponent(id)}`;

export const ExecutionLink = ({ id, children }) => html`
  <a class="mono" href=${executionHref(id)} title=${id}>${children || shortId(id)}</a>
`;

export function Copy({ text, label = "Copy" }) {
  const [done, setDone] = useState(false);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      setDone(true);
      setTimeout(() => setDone(false), 1_200);
    } catch {
      toast("The browser does not allow copying here. Select the text and copy it by hand.", "warn");
    }
  };
  return html`
    <button type="button" class="button quiet icon small" title=${label} aria-label=${label} onClick=${copy}>
      <${Icon} name=${done ? "check" : "copy"} />
    </button>
  `;
}

export const Segments = ({ label, options, value, onChange }) => html`
  <div class="segments" role="group" aria-label=${label}>
    ${options.map(
      ([key, text]) => html`
        <button type="button" key=${key} aria-pressed=${String(key === value)} onClick=${() => onChange(key)}>
          ${text}
        </button>
      `,
    )}
  </div>
`;

export function Tabs({ label, tabs, value, onChange }) {
  const move = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const index = (tabs.findIndex(([key]) => key === value) + step + tabs.length) % tabs.length;
    onChange(tabs[index][0]);
    event.currentTarget.children[index].focus();
  };
  return html`
    <div class="tabs" role="tablist" aria-label=${label} onKeyDown=${move}>
      ${tabs.map(
        ([key, text, n]) => html`
          <button
            type="button"
            role="tab"
            key=${key}
            id=${`tab-${key}`}
            aria-selected=${String(key === value)}
            tabindex=${key === value ? 0 : -1}
            onClick=${() => onChange(key)}
          >
            ${text}${
              n
                ? html`
                    ${" "}
                    <span class="count">${n}</span>
                  `
                : null
            }
          </button>
        `,
      )}
    </div>
  `;
}

export function Menu({ label = "More", icon = "more", items }) {
  const [open, setOpen] = useState(null);
  const root = useRef(null);
  // Placed on the page itself, so that no table cuts it off.
  const toggle = () => {
    if (open) return setOpen(null);
    const box = root.current.getBoundingClientRect();
    const right = `${Math.max(8, innerWidth - Math.max(box.right, 236))}px`;
    return setOpen(
      innerHeight - box.bottom < 210
        ? { right, bottom: `${innerHeight - box.top + 4}px` }
        : { right, top: `${box.bottom + 4}px` },
    );
  };
  useEffect(() => {
    if (!open) return undefined;
    const away = (event) => {
      if (!root.current?.contains(event.target)) setOpen(null);
    };
    const escape = (event) => {
      if (event.key === "Escape") setOpen(null);
    };
    const scrolled = () => setOpen(null);
    addEventListener("scroll", scrolled, true);
    document.addEventListener("pointerdown", away);
    document.addEventListener("keydown", escape);
    root.current?.querySelector(".sheet button:not(:disabled)")?.focus();
    return () => {
      document.removeEventListener("pointerdown", away);
      document.removeEventListener("keydown", escape);
      removeEventListener("scroll", scrolled, true);
    };
  }, [open]);
  const shown = items.filter(Boolean);
  if (!shown.length) return null;
  return html`
    <div class="menu" ref=${root}>
      <button
        type="button"
        class="button"
        aria-haspopup="menu"
        aria-expanded=${String(Boolean(open))}
        onClick=${toggle}
      >
        ${label}
        <${Icon} name=${icon} />
      </button>
      ${
        open &&
        html`
          <div class="sheet" role="menu" style=${open}>
            ${shown.map(
              (item) => html`
                <button
                  type="button"
                  role="menuitem"
                  key=${item.label}
                  class=${item.danger ? "danger" : ""}
                  disabled=${Boolean(item.disabled)}
                  title=${item.disabled || ""}
                  onClick=${() => {
                    setOpen(null);
                    item.act();
                  }}
                >
                  <${Icon} name=${item.icon} />
                  ${item.label}
                </button>
              `,
            )}
          </div>
        `
      }
    </div>
  `;
}

export const ended = (state) => ENDED.has(state);

export function Meter({ level, label }) {
  const share = Math.max(0, Math.min(1, level));
  return html`
    <div
      class="meter"
      role="meter"
      aria-label=${label}
      aria-valuemin="0"
      aria-valuemax="100"
      aria-valuenow=${Math.round(share * 100)}
      data-tone=${level >= 1 ? "bad" : level >= 0.9 ? "warn" : "accent"}
    >
      <span style=${{ width: `${share * 100}%` }}></span>
    </div>
  `;
}
