// The form of a question: yes and no, or fields and one button. Nothing leaves it that its schema does not allow.
import { html, useRef, useState } from "./dom.js";
import { kindOf, resolved } from "./schemacheck.js";
import { draftOf, meant } from "./schemadraft.js";
import { applied, Fields } from "./schemaform.js";

/** A draft with its problems, and how to read it: `submit` gives the value to `act`, or marks what is wrong. */
export function useDraft(schema, value) {
  const [draft, setDraft] = useState(() => draftOf(schema, schema, value));
  const [problems, setProblems] = useState(null);
  const form = useRef(null);
  const submit = (act, change = (whole) => whole) => {
    const read = meant(schema, change(draft));
    // A date that is typed in part is no date, and the browser shows it as none.
    for (const each of form.current?.elements || [])
      if (each.validity?.badInput) read.problems.set(each.closest("[data-path]")?.dataset.path, "Finish this, or clear it.");
    setProblems(read.problems);
    if (!read.problems.size) act(read.value);
    else setTimeout(() => form.current?.querySelector("[aria-invalid=true], [data-path]:has(> .field-problem) button")?.focus());
  };
  return { draft, setDraft: (next) => setDraft((old) => applied(next, old)), problems, submit, form };
}

/** The whole form: yes and no as two buttons where the answer is one, fields and one button otherwise. */
export function AnswerForm({ schema, approves, busy, problem, onAnswer, value }) {
  const { draft, setDraft, problems, submit, form } = useDraft(schema, value);
  const flag = approves === "" ? "" : (approves ?? null);
  const own = resolved(schema, schema);
  const decides = flag === "" || (flag !== null && kindOf(own, schema) === "object");
  const give = (said) => (event) => {
    event.preventDefault();
    submit(onAnswer, (whole) => (said === undefined ? whole : flag === "" ? said : { ...whole, [flag]: said }));
  };
  const rest =
    decides && flag !== ""
      ? {
          ...own,
          $defs: schema.$defs,
          additionalProperties: false,
          required: (own.required || []).filter((name) => name !== flag),
          properties: Object.fromEntries(Object.entries(own.properties || {}).filter(([name]) => name !== flag)),
        }
      : schema;
  const count = problems?.size ?? 0;
  return html`
    <form class="stack" ref=${form} noValidate onSubmit=${decides ? (event) => event.preventDefault() : give(undefined)}>
      ${flag !== "" && html`<${Fields} schema=${rest} root=${schema} draft=${draft} problems=${problems} onChange=${setDraft} />`}
      ${count > 0 && html`<p class="problem" role="alert" data-unsent>Not sent. ${count === 1 ? "Correct the marked field." : `Correct the ${count} marked fields.`}</p>`}
      ${!count && problem && html`<p class="problem" role="alert">${problem.message}</p>`}
      <div class="line wraps">
        ${
          decides
            ? html`
                <button type="button" class="button primary" disabled=${busy} onClick=${give(true)}>Yes</button>
                <button type="button" class="button danger" disabled=${busy} onClick=${give(false)}>No</button>
              `
            : html`<button type="submit" class="button primary" disabled=${busy}>Answer</button>`
        }
      </div>
    </form>
  `;
}
