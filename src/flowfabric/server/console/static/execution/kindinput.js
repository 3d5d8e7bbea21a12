// The input of a kind that workers have announced: a form made from its parameters, or the same as JSON.
import { html, useState } from "../dom.js";
import { Segments } from "../parts.js";
import { check, kindOf, own, resolved } from "../schemacheck.js";
import { draftOf, meant } from "../schemadraft.js";
import { Fields } from "../schemaform.js";
import { useDraft } from "../answerform.js";

const WAYS = [
  ["form", "Form"],
  ["json", "As JSON"],
];

/** Whether a browser would change a number of it. */
function changes(value) {
  if (typeof value === "number") return Number.isInteger(value) && !Number.isSafeInteger(value);
  return value !== null && typeof value === "object" && Object.values(value).some(changes);
}

/** Why a value cannot be edited as a form; "" if it can. */
export const unfit = (schema, value) =>
  changes(value) ? "A number in it is too large for a browser." : check(schema, value, schema);

/** What is filled in so far, without what is missing or wrong. */
function soFar(schema, draft) {
  const whole = meant(schema, draft);
  if (!whole.problems.size) return whole.value;
  const parts = Object.entries(schema.properties || {}).map(([name, each]) => [name, meant(each, own(draft, name), schema)]);
  return Object.fromEntries(
    parts.filter(([, read]) => !read.problems.size && read.value !== "").map(([name, read]) => [name, read.value]),
  );
}

/**
 * The input as a form or as JSON. `reader.current(act)` gives the text of the JSON object to `act`, or marks what is
 * wrong. Without a `text` the form begins with the defaults; a text that does not fit the form stays as it is.
 */
export function KindInput({ schema, text: given, reader }) {
  const object = kindOf(resolved(schema, schema), schema) === "object";
  const [start] = useState(() => {
    const value = given ? JSON.parse(given) : undefined;
    const told = value === undefined || !object ? "" : unfit(schema, value);
    return { value: told ? undefined : value, told };
  });
  const { draft, setDraft, problems, submit, form } = useDraft(schema, start.value);
  const [way, setWay] = useState(object && !start.told ? "form" : "json");
  const [text, setText] = useState(given || "{}");
  const [problem, setProblem] = useState("");
  const parsed = () => {
    try {
      return [JSON.parse(text || "{}")];
    } catch {
      setProblem('The input is not JSON. Strings need quotes: "like this".');
      return null;
    }
  };
  reader.current = (act) => {
    setProblem("");
    if (way === "form") submit((value) => act(JSON.stringify(value)));
    else if (parsed()) act(text.trim() || "{}");
  };
  const choose = (next) => {
    setProblem("");
    if (next === way) return;
    if (next === "json") setText(JSON.stringify(soFar(schema, draft), null, 2));
    else {
      const value = parsed();
      const told = value && unfit(schema, value[0]);
      if (told) setProblem(`This does not fit the form: ${told}`);
      if (!value || told) return;
      setDraft(draftOf(schema, schema, value[0]));
    }
    setWay(next);
  };
  const count = way === "form" ? (problems?.size ?? 0) : 0;
  return html`
    <fieldset class="bare stack tight" ref=${form}>
      <legend class="visually-hidden">Input</legend>
      ${object && html`<${Segments} label="How to enter the input" options=${WAYS} value=${way} onChange=${choose} />`}
      ${start.told && way === "json" && html`<p class="note-box">Shown as JSON, because it does not fit the form: ${start.told}</p>`}
      ${
        way === "form"
          ? Object.keys(schema.properties || {}).length
            ? html`<${Fields} schema=${schema} draft=${draft} problems=${problems} onChange=${setDraft} />`
            : html`<p class="soft">It takes no arguments.</p>`
          : html`
              <div class="field">
                <label for="field-input">Input</label>
                <textarea
                  id="field-input"
                  class="input mono"
                  rows="8"
                  spellcheck=${false}
                  value=${text}
                  onInput=${(event) => setText(event.target.value)}
                ></textarea>
                <span class="hint">Arguments by name. The server checks them.</span>
              </div>
            `
      }
      ${count > 0 && html`<p class="problem" role="alert" data-unsent>Not started. ${count === 1 ? "Correct the marked field." : `Correct the ${count} marked fields.`}</p>`}
      ${problem && html`<p class="problem" role="alert">${problem}</p>`}
    </fieldset>
  `;
}
