// Cancel or replay many at once, after saying how many.
import { html, useRef, useState } from "../dom.js";
import { at, get, isRefusal, post, Problem } from "../api.js";
import { useWatch } from "../live.js";
import { now } from "../session.js";
import { exact, moment, plural, words } from "../format.js";
import { confirm, openDialog, useAct } from "../dialogs.js";
import { toast } from "../toasts.js";
import { Trouble } from "../parts.js";
import { Icon } from "../icons.js";
import { filterOf } from "./address.js";

/** As many are looked at one by one before the dialog says what becomes of them. */
const LOOKED_AT = 20;

/** What the engine says would become of each, those alike counted together. */
async function foreseen(verb, ids) {
  const told = await Promise.all(ids.map(async (id) => (await get(at(id, "preview")))[verb]));
  const counts = new Map();
  for (const { sentence } of told) {
    // How often each was replayed before tells them apart, and is not what is asked.
    const same = sentence.split(" Replay ")[0];
    counts.set(same, (counts.get(same) ?? 0) + 1);
  }
  const shown = [...counts].sort(([, first], [, second]) => second - first).slice(0, 4);
  return {
    possible: told.some(({ possible }) => possible),
    sentence:
      ids.length === 1 ? told[0].sentence : shown.map(([sentence, count]) => `${count} of ${ids.length}: ${sentence}`).join(" "),
  };
}

/** As many are asked for at the same time. */
const AT_ONCE = 5;

/** What was done says how much that is, also if the dialog was left before all of it was. */
function tell(verb, { done, failed, left }) {
  toast(
    `${plural(done, "execution")} ${verb === "cancel" ? "cancelled" : "replayed"}${failed ? `, ${failed} refused` : ""}${left ? "; stopped before the rest" : ""}.`,
    failed || left ? "warn" : "good",
  );
}

/** The executions that were chosen; `done(ids)` is called with those that got an answer. */
export function some(verb, ids, done) {
  // What a second try has to do is what the first has not done.
  const left = [...ids];
  const counts = { done: 0, failed: 0 };
  const few = ids.length <= LOOKED_AT;
  confirm({
    title: `${verb === "cancel" ? "Cancel" : "Replay"} ${plural(ids.length, "execution")}?`,
    foresee: few ? () => foreseen(verb, ids) : undefined,
    consequence:
      few ? "" : verb === "cancel"
        ? "Each one is cancelled; workflows with a grace period clean up first. Executions that have ended do not change."
        : "Each one that failed, expired or completed runs again. Workflows continue where they stopped and keep their recorded steps.",
    label: verb === "cancel" ? "Cancel" : "Replay",
    danger: verb === "cancel",
    fields: verb === "cancel" ? [{ name: "reason", label: "Reason", placeholder: "stored with the change" }] : [],
    act: async ({ reason }, own) => {
      const had = new Set(left);
      let lost = null;
      const work = async () => {
        while (left.length && !lost && own.open) {
          const identity = left.pop();
          try {
            if (verb === "cancel") await own.post(at(identity, "request-cancel"), { reason: reason || "" });
            else await own.post(at(identity, verb));
            counts.done += 1;
          } catch (problem) {
            if (isRefusal(problem)) counts.failed += 1;
            else {
              lost ??= problem;
              left.push(identity);
            }
          }
        }
      };
      await Promise.all(Array.from({ length: AT_ONCE }, work));
      for (const identity of left) had.delete(identity);
      done([...had]);
      if (lost) throw new Problem(`${counts.done + counts.failed} of ${ids.length} done. ${lost.message}`, 0, lost.kind);
      tell(verb, { ...counts, left: left.length });
    },
  });
}

/** What the list shows by now, by its address. */
export function bulk(verb, said, namespace, refresh) {
  const { state, roots, ...found } = filterOf(said, namespace);
  const told = { ...found, states: said.states.length ? said.states : undefined, roots: said.roots || undefined };
  // What is created after the preview is not meant.
  const filter = { ...told, created_before: Math.min(told.created_before || Infinity, Math.floor(now()) + 1) };
  openDialog({
    body: html`<${Bulk} ...${{ verb, filter, told, refresh }} />`,
  });
}

const PREVIEW_PAGES = 20;
const BATCH = 500;

function Bulk({ verb, filter, told, refresh }) {
  const [preview, setPreview] = useState({ count: 0, whole: false, problem: null });
  const [reason, setReason] = useState("");
  // A second try goes on where the first one got no answer.
  const [progress] = useState({ done: 0, failed: 0, cursor: undefined });
  const [, draw] = useState(0);
  const { busy, problem, run, own } = useAct();
  const isCounted = useRef(false);
  const count = async () => {
    let cursor;
    let found = 0;
    if (preview.problem) setPreview({ count: 0, whole: false, problem: null });
    try {
      for (let page = 0; page < PREVIEW_PAGES && own.open && cursor !== null; page += 1) {
        const next = await post(`v1/bulk/${verb}`, { filter, dry_run: true, limit: 1_000, cursor }, { key: undefined, reads: true });
        found += next.matched;
        cursor = next.next_cursor;
        setPreview({ count: found, whole: cursor === null, problem: null });
      }
    } catch (error) {
      setPreview({ count: found, whole: false, problem: error });
      isCounted.current = true;
    }
    isCounted.current ||= found > 0;
  };
  // Where nothing matches, something may in a moment.
  useWatch(async () => isCounted.current || count(), []);
  const submit = (event) => {
    event.preventDefault();
    run(async () => {
      do {
        draw((n) => n + 1);
        const found = await own.post(`v1/bulk/${verb}`, { filter, reason, limit: BATCH, cursor: progress.cursor });
        progress.done += found.done.length;
        progress.failed += found.failed.length;
        progress.cursor = found.next_cursor;
      } while (progress.cursor !== null && own.open);
      tell(verb, { ...progress, left: progress.cursor !== null });
      refresh(own.open);
    });
  };
  const some = preview.count > 0;
  const narrowing = Object.entries(told).filter(([, value]) => value !== undefined);
  return html`
    <form onSubmit=${submit}>
      <h2 id="dialog-title">${verb === "cancel" ? "Cancel" : "Replay"} all matches</h2>
      <p class="sentence" data-tone=${some ? "warn" : "waiting"}>
        <${Icon} name="warn" />
        <span>
          <strong data-preview>${preview.whole ? "" : "At least "}${exact(preview.count)}</strong>
          ${" "}${preview.count === 1 ? "execution matches" : "executions match"}.
          ${verb === "cancel" ? " Those that have not ended are cancelled; workflows with a grace period clean up first." : told.states ? " They run again; workflows continue where they stopped." : " Those that failed or expired run again; workflows continue where they stopped."}
        </span>
      </p>
      <div class="note-box">
        ${
          narrowing.length
            ? narrowing.map(
                ([name, value]) => html`
                  <div key=${name}>
                    <span class="faint">${name === "q" ? "search" : words(name)}</span>
                    ${" "}
                    <span class="mono wrap-anywhere">
                      ${/_from$|_before$/.test(name) ? moment(value) : Array.isArray(value) ? value.map(words).join(", ") : value === true ? "only" : String(value)}
                    </span>
                  </div>
                `,
              )
            : "No filter: this selects every execution you can see."
        }
      </div>
      ${
        verb === "cancel" &&
        html`
          <div class="field">
            <label for="bulk-reason">Reason</label>
            <input
              id="bulk-reason"
              class="input"
              value=${reason}
              onInput=${(event) => setReason(event.target.value)}
              autocomplete="off"
            />
          </div>
        `
      }
      ${
        preview.problem &&
        html`
          <div class="line wide">
            <${Trouble} problem=${new Error(`The count is incomplete. ${preview.problem.message}`)} />
            <button type="button" class="button small" data-again onClick=${count}>Count again</button>
          </div>
        `
      }
      <${Trouble} problem=${problem} />
      <div class="foot">
        <button type="button" class="button" onClick=${own.close}>${busy ? "Stop" : verb === "cancel" ? "Keep" : "Cancel"}</button>
        <button
          type="submit"
          class=${`button primary ${verb === "cancel" ? "danger" : ""}`}
          disabled=${!some || busy || Boolean(preview.problem)}
        >
          ${busy ? `${exact(progress.done)} done…` : `${verb === "cancel" ? "Cancel" : "Replay"} ${preview.whole ? exact(preview.count) : "all"}`}
        </button>
      </div>
    </form>
  `;
}
