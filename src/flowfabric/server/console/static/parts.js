// Small parts that every page is made of.
import { html, useEffect, useLayoutEffect, useRef, useState } from "./dom.js";
import { ENDED, moment, relative, shortId, words, zone } from "./format.js";
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

/** Instead of a page about something that is not there (yet). */
export const Absent = ({ problem, what, all, href }) => html`
  <div class="page">
    ${
      problem
        ? html`
            <div>
              <div class="tiny faint"><a href=${href}>${all}</a></div>
              <h1>${problem.status === 404 ? `${what[0].toUpperCase()}${what.slice(1)} not found` : `This ${what} cannot be shown`}</h1>
            </div>
            <${Trouble} problem=${problem} />
            ${
              problem.status === 404 &&
              html`
                <p class="soft">
                  It may have been deleted, or belong to a namespace your credential cannot access.
                </p>
              `
            }
          `
        : html`<${Loading} />`
    }
  </div>
`;

/** What a list says that shows nothing of what there is: `all` is its address without what narrows it, `among` what was
 * looked at if there is more. */
export const NoMatches = ({ all, among }) =>
  html`<span>No matches${among ? ` among the newest ${among}` : ""}. <a href=${all}>Clear filters</a></span>`;

/** How many a list has. */
export const Total = ({ text, more }) => html`<span class="soft small" data-total>${text}${more ? " or more" : ""}</span>`;

/** Above or below times that are written without their zone. */
export const Zone = () => html`<p class="soft small">Times are in ${zone()}.</p>`;

/** Go to an address, and draw its page at once. */
export const visit = (hash) => {
  history.pushState(null, "", hash);
  dispatchEvent(new HashChangeEvent("hashchange"));
};

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
      toast("The browser does not allow copying here. Select and copy the text yourself.", "warn");
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
  const list = useRef(null);
  useEffect(() => {
    // On a phone there are more of them than fit.
    const own = list.current.querySelector("[aria-selected=true]");
    if (!own) return;
    const { offsetLeft: left, offsetWidth: width } = own;
    const { scrollLeft: from, clientWidth: room, offsetLeft: start } = list.current;
    if (left - start < from) list.current.scrollLeft = left - start;
    else if (left - start + width > from + room) list.current.scrollLeft = left - start + width - room;
  }, [value]);
  const move = (event) => {
    const now = tabs.findIndex(([key]) => key === value);
    const next = { ArrowRight: now + 1, ArrowLeft: now - 1, Home: 0, End: tabs.length - 1 }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    const index = (next + tabs.length) % tabs.length;
    onChange(tabs[index][0]);
    event.currentTarget.children[index].focus();
  };
  return html`
    <div class="tabs" role="tablist" ref=${list} aria-label=${label} onKeyDown=${move}>
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
  const opener = useRef(null);
  const close = () => {
    setOpen(null);
    opener.current?.focus();
  };
  const move = (event) => {
    if (!open) {
      if (event.key !== "ArrowDown" && event.key !== "ArrowUp") return;
      event.preventDefault();
      toggle();
      return;
    }
    const entries = [...root.current.querySelectorAll("[role=menuitem]:not(:disabled)")];
    const now = entries.indexOf(document.activeElement);
    const last = entries.length - 1;
    const next = {
      ArrowDown: now < last ? now + 1 : 0,
      ArrowUp: now > 0 ? now - 1 : last,
      Home: 0,
      End: last,
    }[event.key];
    if (event.key === "Tab") setOpen(null);
    if (event.key === "Escape") close();
    if (next === undefined && event.key !== "Escape") return;
    event.preventDefault();
    entries[next]?.focus();
  };
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
  // At once, for those who type faster than is painted.
  useLayoutEffect(() => {
    if (open) root.current.querySelector(".sheet button:not(:disabled)")?.focus();
  }, [open]);
  useEffect(() => {
    if (!open) return undefined;
    const away = (event) => {
      if (!root.current?.contains(event.target)) setOpen(null);
    };
    // What moves elsewhere, or by itself, is not about this one: only if its button is no longer where it was.
    const place = () => {
      const { top, left } = root.current.getBoundingClientRect();
      return `${Math.round(top)} ${Math.round(left)}`;
    };
    const at = place();
    const scrolled = () => {
      if (place() !== at) setOpen(null);
    };
    addEventListener("scroll", scrolled, true);
    document.addEventListener("pointerdown", away);
    return () => {
      document.removeEventListener("pointerdown", away);
      removeEventListener("scroll", scrolled, true);
    };
  }, [open]);
  const shown = items.filter(Boolean);
  if (!shown.length) return null;
  return html`
    <div class="menu" ref=${root} onKeyDown=${move}>
      <button
        ref=${opener}
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
                  tabindex="-1"
                  key=${item.label}
                  class=${item.danger ? "danger" : ""}
                  disabled=${Boolean(item.disabled)}
                  title=${item.disabled || ""}
                  onClick=${() => {
                    close();
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

/** How full something is; being full is bad unless `full` names another tone. */
export function Meter({ level, label, full }) {
  const share = Math.max(0, Math.min(1, level));
  return html`
    <div
      class="meter"
      role="meter"
      aria-label=${label}
      aria-valuemin="0"
      aria-valuemax="100"
      aria-valuenow=${Math.round(share * 100)}
      data-tone=${full || (level >= 1 ? "bad" : level >= 0.9 ? "warn" : "accent")}
    >
      <span style=${{ width: `${share * 100}%` }}></span>
    </div>
  `;
}
