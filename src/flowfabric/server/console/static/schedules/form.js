// A new schedule, or changes to one. What the form does not show stays as it is.
import { html, useState } from "../dom.js";
import { variant } from "../api.js";
import { me, namespace } from "../session.js";
import { decoded, fromBase64, toBase64, zone } from "../format.js";
import { Trouble } from "../parts.js";
import { openDialog, useAct } from "../dialogs.js";
import { toast } from "../toasts.js";
import { schedulePage, schedulePath } from "./links.js";
import { CATCH_UPS, OVERLAPS } from "./verbs.js";

const UNITS = [
  [86_400_000, "days"],
  [3_600_000, "hours"],
  [60_000, "minutes"],
  [1_000, "seconds"],
];

/** Edit a schedule; a new one if there is none. */
export const edit = (each, refresh) =>
  openDialog({
    body: html`<${Form} each=${each} refresh=${refresh} />`,
  });

const textOf = (each) => {
  const input = each?.input_payload ? decoded(fromBase64(each.input_payload)) : { kind: "nothing" };
  if (input.kind === "json") return JSON.stringify(input.value, null, 2);
  return input.kind === "text" ? input.value : "";
};

function initial(each) {
  const every = each?.spec.every_ms || 3_600_000;
  const [unit] = UNITS.find(([ms]) => every % ms === 0) || [1_000];
  return {
    name: each?.schedule_id || "",
    namespace: each?.namespace || namespace.peek() || me.peek().namespaces?.[0] || "default",
    kind: each?.execution_kind || "",
    lane: each?.lane_id || "default",
    mode: each && !each.spec.expression ? "every" : "cron",
    cron: each?.spec.expression || "0 6 * * *",
    zone: each?.spec.time_zone || zone() || "UTC",
    every: String(every / unit),
    unit: String(unit),
    overlap: each?.overlap || "skip",
    catchUp: each?.catch_up || "last",
    priority: String(each?.priority ?? 0),
    input: textOf(each),
  };
}

/** What is sent: everything, since what is left out would be set back. */
function bodyOf(values, each) {
  const changed = values.input !== textOf(each);
  if (changed && values.input.trim()) JSON.parse(values.input);
  const bytes = new TextEncoder().encode(values.input.trim());
  return {
    execution_kind: values.kind,
    lane_id: values.lane,
    ...(values.mode === "cron"
      ? { cron: values.cron, time_zone: values.zone }
      : { every_ms: Math.round(Number(values.every) * Number(values.unit)), anchor_ms: each?.spec.anchor_ms ?? 0 }),
    overlap: values.overlap,
    catch_up: values.catchUp,
    catch_up_limit: each?.catch_up_limit,
    jitter_ms: each?.jitter_ms,
    priority: Math.round(Number(values.priority)),
    tags: each?.tags,
    policy: each?.policy ? JSON.parse(each.policy) : undefined,
    input_payload: changed ? toBase64(bytes) : each?.input_payload,
    payload_encoding: changed ? (bytes.length ? "json" : undefined) : each?.payload_encoding,
  };
}

function Form({ each, refresh }) {
  const [values, setValues] = useState(() => initial(each));
  const { busy, problem, run, own } = useAct();
  const set = (name) => (event) => setValues({ ...values, [name]: event.target.value });
  const submit = (event) => {
    event.preventDefault();
    run(async () => {
      let body;
      try {
        body = bodyOf(values, each);
      } catch {
        throw new Error("The input is not valid JSON.");
      }
      const [outcome] = variant(await own.put(schedulePath(values.name, values.namespace), body));
      toast(outcome === "Unchanged" ? "Nothing changed." : each ? "Schedule changed." : "Schedule saved.");
      refresh();
      if (!each) own.go(schedulePage(values.name, values.namespace));
    });
  };
  const field = (name, label, more = {}) => html`
    <div class="field">
      <label for=${`schedule-${name}`}>${label}</label>
      <input id=${`schedule-${name}`} class="input" autocomplete="off" value=${values[name]} onInput=${set(name)} ...${more} />
    </div>
  `;
  const chosen = (name, label, options) => html`
    <div class="field">
      <label for=${`schedule-${name}`}>${label}</label>
      <select id=${`schedule-${name}`} class="input" value=${values[name]} onChange=${set(name)}>
        ${options.map(([key, text]) => html`<option key=${key} value=${key}>${text}</option>`)}
      </select>
    </div>
  `;
  return html`
    <form onSubmit=${submit} class="schedule-form">
      <h2 id="dialog-title">${each ? `Edit ${each.schedule_id}` : "New schedule"}</h2>
      <div class="pairs">
        ${!each && field("name", "Name", { required: true })}
        ${!each && field("namespace", "Namespace", { required: true })}
        ${field("kind", "Kind to start", { required: true, placeholder: "name of a task or workflow" })}
        ${field("lane", "Lane", { required: true })}
        ${chosen("mode", "When", [
          ["cron", "Cron expression"],
          ["every", "Fixed interval"],
        ])}
        ${
          values.mode === "cron"
            ? html`
                ${field("cron", "Cron expression", { required: true, class: "input mono" })}
                ${field("zone", "Time zone", { required: true })}
              `
            : html`
                ${field("every", "Every", { required: true, type: "number", min: "1", step: "any" })}
                ${chosen("unit", "Unit", UNITS.map(([ms, name]) => [String(ms), name]))}
              `
        }
        ${field("priority", "Priority", { required: true, type: "number", step: "1" })}
      </div>
      ${chosen("overlap", "Overlap", Object.entries(OVERLAPS))}
      ${chosen("catchUp", "After downtime", Object.entries(CATCH_UPS))}
      <div class="field">
        <label for="schedule-input">Input (JSON)</label>
        <textarea id="schedule-input" class="input mono" rows="4" value=${values.input} onInput=${set("input")}></textarea>
      </div>
      ${
        each?.source &&
        html`<p class="note-box">Defined in code. Your changes stay until its definition in the code changes.</p>`
      }
      <${Trouble} problem=${problem} />
      <div class="foot">
        <button type="button" class="button" onClick=${own.close}>Cancel</button>
        <button type="submit" class="button primary" disabled=${busy}>${busy ? "Working…" : "Save"}</button>
      </div>
    </form>
  `;
}
