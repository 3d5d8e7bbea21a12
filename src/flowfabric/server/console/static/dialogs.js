// Dialogs: one at a time, closed with Escape or beside it. Each owns what is done in it.
import { createContext, effect, html, signal, useContext, useLayoutEffect, useRef, useState, useValue } from "./dom.js";
import { intent } from "./api.js";
import { useOnce } from "./live.js";
import { Trouble } from "./parts.js";
import { me } from "./session.js";
import { toast } from "./toasts.js";

const shown = signal(null);
const Shown = createContext(null);

/** What had the focus before the dialog; it gets it back. */
let before = null;
let number = 0;

/**
 * One that was opened. `post`, `put` and `remove` are those of one intention; `held` keeps it open as long as something
 * would be lost with it.
 */
class Opened {
  constructor({ body, wide }) {
    Object.assign(this, intent(), { body, wide, number: (number += 1), busy: false, held: false });
  }
  get open() {
    return shown.peek() === this;
  }
  close = () => {
    if (!this.open) return;
    shown.value = null;
    const back = before;
    before = null;
    // What it was about may be gone by now.
    setTimeout(() => {
      if (shown.peek() || (document.activeElement && document.activeElement !== document.body)) return;
      (back?.isConnected ? back : document.getElementById("main"))?.focus({ preventScroll: true });
    });
  };
  /** Go to an address, unless the dialog was left: people are elsewhere by then. */
  go(hash) {
    if (this.open) location.hash = hash;
  }
}

export function openDialog(content) {
  if (shown.peek()?.held) return;
  if (!shown.peek()) before = document.activeElement;
  shown.value = new Opened(content);
}

// What was asked with a credential ends with it.
effect(() => {
  if (me.value?.signed_in === false) shown.peek()?.close();
});

/**
 * For a dialog that needs something from the server before it can open: a function that says whether people still are
 * where they asked for it, and have opened nothing else.
 */
export function whileHere() {
  const place = () => location.hash.split("?")[0];
  const [asked, opened] = [place(), number];
  return () => place() === asked && number === opened;
}

/** The dialog that a component is in. */
export const useDialog = () => useContext(Shown);

/**
 * What is done in a dialog: {busy, problem, run, own}. It is done once at a time. Its end closes this dialog and no
 * other, unless `act` gives false; what goes wrong is told here, or in a toast if the dialog was left meanwhile.
 */
export function useAct() {
  const own = useDialog();
  const [state, setState] = useState({ busy: false, problem: null });
  const run = async (act) => {
    if (own.busy) return;
    const title = document.getElementById("dialog-title")?.textContent.replace(/\?$/, "");
    own.busy = true;
    setState({ busy: true, problem: null });
    try {
      if ((await act(own)) !== false) own.close();
      setState({ busy: false, problem: null });
    } catch (problem) {
      if (own.open) setState({ busy: false, problem });
      else toast(`${title}: ${problem.message}`, "bad");
    } finally {
      own.busy = false;
    }
  };
  return { ...state, run, own };
}

export function Dialogs() {
  const own = useValue(shown);
  return own && html`<${Frame} key=${own.number} own=${own} />`;
}

function Frame({ own }) {
  const element = useRef(null);
  const pressed = useRef(null);
  // At once, for those who type faster than is painted.
  useLayoutEffect(() => element.current.showModal(), []);
  return html`
    <dialog
      ref=${element}
      class=${own.wide ? "wide" : ""}
      aria-labelledby="dialog-title"
      onClose=${() => {
        // Browsers let nobody be held by a dialog that refuses to close; this one is opened again.
        if (own.held && own.open) element.current.showModal();
        else own.close();
      }}
      onCancel=${(event) => own.held && event.target === element.current && event.preventDefault()}
      onPointerDown=${(event) => {
        pressed.current = event.target;
      }}
      onClick=${(event) => {
        // Beside it means pressed and let go there: what was dragged out of a field ends there, too.
        if (event.target === element.current && pressed.current === element.current && !own.held) own.close();
      }}
    >
      <${Shown.Provider} value=${own}>${own.body}</${Shown.Provider}>
    </dialog>
  `;
}

/**
 * Ask before something is done: what it is, what it is about unless the title says so, what follows from it, and what
 * else has to be said. `foresee` asks the engine what follows ({possible, sentence}); what is not possible cannot be
 * confirmed until it is.
 */
export function confirm(given) {
  openDialog({
    body: html`<${Confirm} ...${given} />`,
  });
}

const POSSIBLE = { possible: true, sentence: "" };

function Confirm({ title, about, consequence, foresee, label, danger, dismiss, fields = [], act }) {
  const [values, setValues] = useState(() =>
    Object.fromEntries(fields.map((field) => [field.name, field.value ?? ""])),
  );
  const { busy, problem, run, own } = useAct();
  const asked = useOnce(foresee || (async () => POSSIBLE), [], ({ possible }) => possible);
  const foreseen = foresee ? asked.data : POSSIBLE;
  const follows = typeof consequence === "function" ? consequence(values) : consequence;
  const told = foreseen ? [foreseen.sentence, follows].filter(Boolean).join(" ") : "";
  const submit = (event) => {
    event.preventDefault();
    if (foreseen?.possible) run(() => act(values, own));
  };
  return html`
    <form onSubmit=${submit}>
      <h2 id="dialog-title">${title}</h2>
      ${about && html`<p class="small wrap-anywhere" data-about>${about}</p>`}
      ${(told || (!foreseen && !asked.problem)) && html`<p class="soft" data-foreseen>${told || "Checking what this does…"}</p>`}
      ${fields.map(
        (field) => html`
          <div class="field" key=${field.name}>
            <label for=${`field-${field.name}`}>${field.label}</label>
            ${
              field.options
                ? html`
                    <select
                      id=${`field-${field.name}`}
                      class="input"
                      value=${values[field.name]}
                      onChange=${(event) => setValues({ ...values, [field.name]: event.target.value })}
                    >
                      ${field.options.map(
                        ([key, text]) => html`<option key=${key} value=${key}>${text}</option>`,
                      )}
                    </select>
                  `
                : field.long
                  ? html`
                      <textarea
                        id=${`field-${field.name}`}
                        class="input mono"
                        rows="8"
                        spellcheck=${false}
                        value=${values[field.name]}
                        onInput=${(event) => setValues({ ...values, [field.name]: event.target.value })}
                      ></textarea>
                    `
                  : html`
                    <input
                      id=${`field-${field.name}`}
                      class="input"
                      type=${field.type || "text"}
                      required=${Boolean(field.required)}
                      placeholder=${field.placeholder || ""}
                      autocomplete="off"
                      value=${values[field.name]}
                      onInput=${(event) => setValues({ ...values, [field.name]: event.target.value })}
                    />
                  `
            }
            ${field.hint && html`<span class="hint">${field.hint}</span>`}
          </div>
        `,
      )}
      <${Trouble} problem=${problem || asked.problem} />
      <div class="foot">
        <button type="button" class="button" onClick=${own.close}>
          ${dismiss || (danger ? "Keep" : "Cancel")}
        </button>
        <button
          type="submit"
          class=${`button primary ${danger ? "danger" : ""}`}
          disabled=${busy || !foreseen?.possible}
        >
          ${busy ? "Working…" : label}
        </button>
      </div>
    </form>
  `;
}
