// Starting the past runs of a range that are missing; first it is said how many these are.
import { html, useEffect, useState } from "../dom.js";
import { post, variant } from "../api.js";
import { now } from "../session.js";
import { fromLocal, moment, plural, toLocal, zone } from "../format.js";
import { Trouble } from "../parts.js";
import { closeDialog, openDialog } from "../dialogs.js";
import { toast } from "../toasts.js";
import { schedulePath } from "./links.js";

const DAY = 86_400_000;

export const backfill = (each, refresh) =>
  openDialog({
    body: html`<${Backfill} each=${each} refresh=${refresh} />`,
  });

function Backfill({ each, refresh }) {
  const path = schedulePath(each.schedule_id, each.namespace, "backfill");
  const [from, setFrom] = useState(() => toLocal(now() - DAY));
  const [to, setTo] = useState(() => toLocal(now()));
  const [state, setState] = useState({ busy: false, problem: null, preview: null });
  const range = { from_ms: fromLocal(from), before_ms: fromLocal(to) };
  useEffect(() => {
    let current = true;
    setState({ busy: false, problem: null, preview: null });
    post(path, { ...range, dry_run: true }, { key: undefined }).then(
      (answer) => current && setState({ busy: false, problem: null, preview: variant(answer)[1] }),
      (problem) => current && setState({ busy: false, problem, preview: null }),
    );
    return () => {
      current = false;
    };
  }, [from, to]);
  const { preview } = state;
  const missing = preview ? preview.slots - preview.existing : 0;
  const submit = async (event) => {
    event.preventDefault();
    setState({ ...state, busy: true, problem: null });
    try {
      const [, done] = variant(await post(path, range));
      toast(`${plural(done.execution_ids.length, "run")} started.`);
      closeDialog();
      refresh();
    } catch (problem) {
      setState({ ...state, busy: false, problem });
    }
  };
  return html`
    <form onSubmit=${submit}>
      <h2 id="dialog-title">Backfill ${each.schedule_id}</h2>
      <p class="soft">
        Starts the runs of a time range that are missing, each once. They all start now, whatever is running; the schedule
        itself continues as before.
      </p>
      <div class="field">
        <label for="backfill-from">From</label>
        <input
          id="backfill-from"
          class="input"
          type="datetime-local"
          required
          value=${from}
          onInput=${(event) => setFrom(event.target.value)}
        />
      </div>
      <div class="field">
        <label for="backfill-to">To</label>
        <input
          id="backfill-to"
          class="input"
          type="datetime-local"
          required
          value=${to}
          onInput=${(event) => setTo(event.target.value)}
        />
        <span class="hint">Times are in ${zone()}.</span>
      </div>
      ${
        preview &&
        html`
          <p class="note-box" data-preview role="status">
            ${
              preview.slots
                ? html`
                    ${plural(preview.slots, "scheduled time")} in this range, from ${moment(preview.first_ms)} to
                    ${" "}${moment(preview.last_ms)}. ${preview.existing ? `${plural(preview.existing, "run")} already started. ` : ""}
                    <strong>${missing ? `Starts ${plural(missing, "run")}.` : "Nothing to start."}</strong>
                  `
                : "No scheduled times in this range. Nothing to start."
            }
          </p>
        `
      }
      <${Trouble} problem=${state.problem} />
      <div class="foot">
        <button type="button" class="button" onClick=${closeDialog}>Cancel</button>
        <button type="submit" class="button primary" disabled=${state.busy || !missing}>
          ${state.busy ? "Working…" : missing ? `Start ${plural(missing, "run")}` : "Start"}
        </button>
      </div>
    </form>
  `;
}
