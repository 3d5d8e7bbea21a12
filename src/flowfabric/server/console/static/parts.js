// Small parts that every page is made of.
import { html, signal, useEffect, useRef, useState, useValue } from "./dom.js";
import { decoded, ENDED, moment, plural, relative, shortId, size, words } from "./format.js";
import { Icon } from "./icons.js";

export const Badge = ({ state, tone, children }) =>
  html`<span class="badge" data-tone=${tone || state}>${children || words(state)}</span>`;

/** A time as its distance, with the moment itself on hover. */
export function When({ ms }) {
  return ms ? html`<time datetime=${new Date(Number(ms)).toISOString()} title=${moment(Number(ms))}>${relative(Number(ms))}</time>` : "–";
}

export const Empty = ({ icon = "inbox", children }) => html`<div class="empty"><${Icon} name=${icon} />${children}</div>`;
export const Trouble = ({ problem }) => (problem ? html`<p class="problem" role="alert">${problem.message}</p>` : null);
export const Loading = () => html`<p class="loading" role="status">Loading…</p>`;

export const executionHref = (id) => `#/executions/${encodeURIComponent(id)}`;
export const ExecutionLink = ({ id, children }) =>
  html`<a class="mono" href=${executionHref(id)} title=${id}>${children || shortId(id)}</a>`;

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
  return html`<button type="button" class="button quiet icon small" title=${label} aria-label=${label} onClick=${copy}><${Icon} name=${done ? "check" : "copy"} /></button>`;
}

export const Segments = ({ label, options, value, onChange }) => html`
  <div class="segments" role="group" aria-label=${label}>
    ${options.map(([key, text]) => html`<button type="button" key=${key} aria-pressed=${String(key === value)} onClick=${() => onChange(key)}>${text}</button>`)}
  </div>`;

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
      ${tabs.map(([key, text, n]) => html`
        <button type="button" role="tab" key=${key} id=${`tab-${key}`} aria-selected=${String(key === value)} tabindex=${key === value ? 0 : -1} onClick=${() => onChange(key)}>
          ${text}${n ? html` <span class="count">${n}</span>` : null}
        </button>`)}
    </div>`;
}

export function Menu({ label = "More", icon = "more", items }) {
  const [open, setOpen] = useState(null);
  const root = useRef(null);
  // Placed on the page itself, so that no table cuts it off.
  const toggle = () => {
    if (open) return setOpen(null);
    const box = root.current.getBoundingClientRect();
    const right = `${Math.max(8, innerWidth - Math.max(box.right, 236))}px`;
    return setOpen(innerHeight - box.bottom < 210 ? { right, bottom: `${innerHeight - box.top + 4}px` } : { right, top: `${box.bottom + 4}px` });
  };
  useEffect(() => {
    if (!open) return undefined;
    const away = (event) => { if (!root.current?.contains(event.target)) setOpen(null); };
    const escape = (event) => { if (event.key === "Escape") setOpen(null); };
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
      <button type="button" class="button" aria-haspopup="menu" aria-expanded=${String(Boolean(open))} onClick=${toggle}>${label}<${Icon} name=${icon} /></button>
      ${open && html`<div class="sheet" role="menu" style=${open}>
        ${shown.map((item) => html`
          <button type="button" role="menuitem" key=${item.label} class=${item.danger ? "danger" : ""} disabled=${Boolean(item.disabled)} title=${item.disabled || ""}
            onClick=${() => { setOpen(null); item.act(); }}><${Icon} name=${item.icon} />${item.label}</button>`)}
      </div>`}
    </div>`;
}

// -- values ----------------------------------------------------------------------------------------------------------

const MANY = 100;

function Leaf({ value }) {
  if (typeof value === "string") return html`<span class="string">${JSON.stringify(value)}</span>`;
  return html`<span class="literal">${String(value)}</span>`;
}

function Node({ name, value, depth }) {
  const [shown, setShown] = useState(MANY);
  const key = name === undefined ? null : html`<span class="key">${name}</span>: `;
  if (value === null || typeof value !== "object") return html`<li>${key}<${Leaf} value=${value} /></li>`;
  const entries = Array.isArray(value) ? value.map((each, index) => [String(index), each]) : Object.entries(value);
  if (!entries.length) return html`<li>${key}<span class="literal">${Array.isArray(value) ? "[]" : "{}"}</span></li>`;
  const head = Array.isArray(value) ? plural(entries.length, "item") : plural(entries.length, "field");
  return html`<li>
    <details open=${depth < 2}>
      <summary>${key}<span class="faint">${Array.isArray(value) ? "[" : "{"} ${head} ${Array.isArray(value) ? "]" : "}"}</span></summary>
      <ul>
        ${entries.slice(0, shown).map(([each, inner]) => html`<${Node} key=${each} name=${each} value=${inner} depth=${depth + 1} />`)}
        ${entries.length > shown && html`<li><button type="button" class="button quiet small" onClick=${() => setShown(shown + MANY)}>${entries.length - shown} more</button></li>`}
      </ul>
    </details>
  </li>`;
}

/** A JSON value as a tree; long texts as texts. */
export function Json({ value, label = "Value" }) {
  if (typeof value === "string") return html`<div class="value-box" tabindex="0" role="region" aria-label=${label}>${value}</div>`;
  return html`<div class="value-box" tabindex="0" role="region" aria-label=${label}><ul class="tree"><${Node} value=${value} depth=${0} /></ul></div>`;
}

const hex = (given) => {
  const lines = [];
  for (let at = 0; at < Math.min(given.length, 512); at += 16) {
    const part = [...given.subarray(at, at + 16)];
    const text = part.map((byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : "·")).join("");
    lines.push(`${at.toString(16).padStart(6, "0")}  ${part.map((byte) => byte.toString(16).padStart(2, "0")).join(" ").padEnd(47)}  ${text}`);
  }
  return lines.join("\n") + (given.length > 512 ? "\n…" : "");
};

/** Bytes by what they turn out to be. */
export function Bytes({ data, label, nothing = "Nothing." }) {
  const found = decoded(data);
  if (found.kind === "nothing") return html`<p class="soft small">${nothing}</p>`;
  return html`<div class="stack tight">
    ${found.kind === "binary" ? html`<div class="value-box" tabindex="0" role="region" aria-label=${label}>${hex(found.value)}</div>` : html`<${Json} value=${found.value} label=${label} />`}
    <span class="tiny faint">${{ json: "JSON", text: "Text", binary: "Bytes" }[found.kind]}, ${size(found.size)}</span>
  </div>`;
}

// -- toasts ----------------------------------------------------------------------------------------------------------

const toasts = signal([]);
let number = 0;

export function toast(text, tone = "good") {
  const id = (number += 1);
  toasts.value = [...toasts.value.slice(-4), { id, text, tone }];
  setTimeout(() => { toasts.value = toasts.value.filter((each) => each.id !== id); }, tone === "bad" ? 12_000 : 6_000);
}

export const Toasts = () => html`
  <div class="toasts" role="status" aria-live="polite">
    ${useValue(toasts).map(({ id, text, tone }) => html`<div class="toast" key=${id} data-tone=${tone}><span class="grow">${text}</span>
      <button type="button" class="button quiet icon small" aria-label="Dismiss" onClick=${() => { toasts.value = toasts.value.filter((each) => each.id !== id); }}><${Icon} name="close" /></button></div>`)}
  </div>`;

// -- dialogs ---------------------------------------------------------------------------------------------------------

const dialog = signal(null);

export const openDialog = (content) => { dialog.value = content; };
export const closeDialog = () => { dialog.value = null; };

export function Dialogs() {
  const content = useValue(dialog);
  const element = useRef(null);
  useEffect(() => {
    if (content && !element.current.open) element.current.showModal();
  }, [content]);
  if (!content) return null;
  return html`<dialog ref=${element} class=${content.wide ? "wide" : ""} aria-labelledby="dialog-title" onClose=${closeDialog}
    onClick=${(event) => { if (event.target === element.current) closeDialog(); }}>${content.body}</dialog>`;
}

/** Ask before something is done: what it is, what follows from it, and what else has to be said. */
export function confirm({ title, consequence, label, danger, fields, act }) {
  openDialog({ body: html`<${Confirm} ...${{ title, consequence, label, danger, fields, act }} />` });
}

function Confirm({ title, consequence, label, danger, fields = [], act }) {
  const [values, setValues] = useState(() => Object.fromEntries(fields.map((field) => [field.name, field.value ?? ""])));
  const [state, setState] = useState({ busy: false, problem: null });
  const submit = async (event) => {
    event.preventDefault();
    setState({ busy: true, problem: null });
    try {
      await act(values);
      closeDialog();
    } catch (problem) {
      setState({ busy: false, problem });
    }
  };
  return html`<form onSubmit=${submit}>
    <h2 id="dialog-title">${title}</h2>
    ${consequence && html`<p class="soft">${consequence}</p>`}
    ${fields.map((field) => html`<div class="field" key=${field.name}>
      <label for=${`field-${field.name}`}>${field.label}</label>
      ${field.options
        ? html`<select id=${`field-${field.name}`} class="input" value=${values[field.name]} onChange=${(event) => setValues({ ...values, [field.name]: event.target.value })}>
            ${field.options.map(([key, text]) => html`<option key=${key} value=${key}>${text}</option>`)}</select>`
        : html`<input id=${`field-${field.name}`} class="input" type=${field.type || "text"} required=${Boolean(field.required)} placeholder=${field.placeholder || ""}
            autocomplete="off" value=${values[field.name]} onInput=${(event) => setValues({ ...values, [field.name]: event.target.value })} />`}
      ${field.hint && html`<span class="hint">${field.hint}</span>`}
    </div>`)}
    <${Trouble} problem=${state.problem} />
    <div class="foot">
      <button type="button" class="button" onClick=${closeDialog}>Leave it</button>
      <button type="submit" class=${`button primary ${danger ? "danger" : ""}`} disabled=${state.busy}>${state.busy ? "Working…" : label}</button>
    </div>
  </form>`;
}

export const ended = (state) => ENDED.has(state);

export function Meter({ level, label }) {
  const share = Math.max(0, Math.min(1, level));
  return html`<div class="meter" role="meter" aria-label=${label} aria-valuemin="0" aria-valuemax="100" aria-valuenow=${Math.round(share * 100)} data-tone=${level >= 1 ? "bad" : level >= 0.9 ? "warn" : "accent"}>
    <span style=${{ width: `${share * 100}%` }}></span></div>`;
}
