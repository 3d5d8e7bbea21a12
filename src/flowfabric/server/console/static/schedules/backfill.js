// Starting the past runs of a range that are missing; first it is said how many these are.
import { html, useState } from "../dom.js";
import { post, variant } from "../api.js";
import { useOnce } from "../live.js";
import { now } from "../session.js";
import { fromLocal, moment, plural, toLocal, zone } from "../format.js";
import { Trouble } from "../parts.js";
import { openDialog, useAct } from "../dialogs.js";
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
  const { busy, problem, run, own } = useAct();
  const range = { from_ms: fromLocal(from), before_ms: fromLocal(to) };
  const { data: preview, problem: unforeseen } = useOnce(
    async () => variant(await post(path, { ...range, dry_run: true }, { key: undefined, reads: true }))[1],
    [from, to],
    ({ slots, existing }) => slots > existing,
  );
  const missing = preview ? preview.slots - preview.existing : 0;
  const submit = (event) => {
    event.preventDefault();
    run(async () => {
      const [, done] = variant(await own.post(path, range));
      toast(`${plural(done.execution_ids.length, "run")} started.`);
      refresh();
    });
  };
  return html`
    <form onSubmit=${submit}>
      <h2 id="dialog-title">Backfill ${each.schedule_id}</h2>
      <p class="soft">
        Starts every missing run of a time range once. All of them start now, even if other runs have not ended. The
        schedule does not change.
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
      <${Trouble} problem=${problem || unforeseen} />
      <div class="foot">
        <button type="button" class="button" onClick=${own.close}>Cancel</button>
        <button type="submit" class="button primary" disabled=${busy || !missing}>
          ${busy ? "Working…" : missing ? `Start ${plural(missing, "run")}` : "Start"}
        </button>
      </div>
    </form>
  `;
}
