// Dialogs: one at a time, closed with Escape or beside it.
import { html, signal, useEffect, useLayoutEffect, useRef, useState, useValue } from "./dom.js";
import { Trouble } from "./parts.js";

const dialog = signal(null);

/** What had the focus before the dialog; it gets it back. */
let before = null;

export const openDialog = (content) => {
  if (!dialog.peek()) before = document.activeElement;
  dialog.value = content;
};

export const closeDialog = () => {
  if (!dialog.peek()) return;
  dialog.value = null;
  const back = before;
  before = null;
  // What it was about may be gone by now.
  setTimeout(() => {
    if (dialog.peek() || (document.activeElement && document.activeElement !== document.body)) return;
    (back?.isConnected ? back : document.getElementById("main"))?.focus({ preventScroll: true });
  });
};

export function Dialogs() {
  const content = useValue(dialog);
  const element = useRef(null);
  // At once, for those who type faster than is painted.
  useLayoutEffect(() => {
    if (content && !element.current.open) element.current.showModal();
  }, [content]);
  if (!content) return null;
  return html`
    <dialog
      ref=${element}
      class=${content.wide ? "wide" : ""}
      aria-labelledby="dialog-title"
      onClose=${closeDialog}
      onClick=${(event) => {
        if (event.target === element.current) closeDialog();
      }}
    >
      ${content.body}
    </dialog>
  `;
}

/**
 * Ask before something is done: what it is, what follows from it, and what else has to be said. `foresee` asks the
 * engine what follows ({possible, sentence}); what is not possible cannot be confirmed.
 */
export function confirm(given) {
  openDialog({
    body: html`<${Confirm} ...${given} />`,
  });
}

function Confirm({ title, consequence, foresee, label, danger, dismiss, fields = [], act }) {
  const [values, setValues] = useState(() =>
    Object.fromEntries(fields.map((field) => [field.name, field.value ?? ""])),
  );
  const [state, setState] = useState({ busy: false, problem: null });
  const [foreseen, setForeseen] = useState(foresee ? null : { possible: true, sentence: "" });
  useEffect(() => {
    foresee?.().then(setForeseen, (problem) => setState({ busy: false, problem }));
  }, []);
  const follows = typeof consequence === "function" ? consequence(values) : consequence;
  const told = foreseen ? [foreseen.sentence, follows].filter(Boolean).join(" ") : "";
  const submit = async (event) => {
    event.preventDefault();
    if (!foreseen?.possible) return;
    setState({ busy: true, problem: null });
    try {
      await act(values);
      closeDialog();
    } catch (problem) {
      setState({ busy: false, problem });
    }
  };
  return html`
    <form onSubmit=${submit}>
      <h2 id="dialog-title">${title}</h2>
      ${(told || !foreseen) && html`<p class="soft" data-foreseen>${told || "Checking what this does…"}</p>`}
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
      <${Trouble} problem=${state.problem} />
      <div class="foot">
        <button type="button" class="button" onClick=${closeDialog}>
          ${dismiss || (danger ? "Keep" : "Cancel")}
        </button>
        <button
          type="submit"
          class=${`button primary ${danger ? "danger" : ""}`}
          disabled=${state.busy || !foreseen?.possible}
        >
          ${state.busy ? "Working…" : label}
        </button>
      </div>
    </form>
  `;
}
