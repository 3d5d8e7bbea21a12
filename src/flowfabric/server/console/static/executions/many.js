// Cancel or replay many at once, after saying how many.
import { html, useEffect, useRef, useState } from "../dom.js";
import { at, get, post } from "../api.js";
import { now } from "../session.js";
import { exact, moment, plural, words } from "../format.js";
import { closeDialog, confirm, openDialog } from "../dialogs.js";
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

export function some(verb, ids, done) {
  const few = ids.length <= LOOKED_AT;
  confirm({
    title: `${verb === "cancel" ? "Cancel" : "Replay"} ${plural(ids.length, "execution")}?`,
    foresee: few ? () => foreseen(verb, ids) : undefined,
    consequence:
      few ? "" : verb === "cancel"
        ? "Each one is cancelled; workflows with a cancel grace clean up first. Executions that have ended do not change."
        : "Each one that failed, expired or completed runs again. Workflows continue where they stopped and keep their recorded steps.",
    label: verb === "cancel" ? "Cancel" : "Replay",
    danger: verb === "cancel",
    fields: verb === "cancel" ? [{ name: "reason", label: "Reason", placeholder: "stored with the change" }] : [],
    act: async ({ reason }) => {
      let failed = 0;
      const work = [...ids];
      await Promise.all(
        Array.from({ length: 5 }, async () => {
          for (let identity = work.pop(); identity; identity = work.pop()) {
            try {
              if (verb === "cancel") await post(at(identity, "request-cancel"), { reason: reason || "" });
              else await post(at(identity, verb));
            } catch (problem) {
              if (problem.status === 0) throw problem;
              failed += 1;
            }
          }
        }),
      );
      toast(
        `${plural(ids.length - failed, "execution")} ${verb === "cancel" ? "cancelled" : "replayed"}${failed ? `, ${failed} refused` : ""}.`,
        failed ? "warn" : "good",
      );
      done();
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
  const [progress, setProgress] = useState(null);
  const stopped = useRef(false);
  useEffect(() => {
    (async () => {
      let cursor;
      let count = 0;
      try {
        for (let page = 0; page < PREVIEW_PAGES && !stopped.current; page += 1) {
          const found = await post(
            `v1/bulk/${verb}`,
            { filter, dry_run: true, limit: 1_000, cursor },
            { key: undefined },
          );
          count += found.matched;
          cursor = found.next_cursor;
          setPreview({ count, whole: cursor === null, problem: null });
          if (cursor === null) return;
        }
      } catch (problem) {
        setPreview({ count, whole: true, problem });
      }
    })();
    return () => {
      stopped.current = true;
    };
  }, []);
  const run = async (event) => {
    event.preventDefault();
    let cursor;
    let done = 0;
    let failed = 0;
    try {
      do {
        setProgress({ done, failed });
        const found = await post(`v1/bulk/${verb}`, { filter, reason, limit: BATCH, cursor });
        done += found.done.length;
        failed += found.failed.length;
        cursor = found.next_cursor;
      } while (cursor !== null && !stopped.current);
      toast(
        `${plural(done, "execution")} ${verb === "cancel" ? "cancelled" : "replayed"}${failed ? `, ${failed} refused` : ""}.`,
        failed ? "warn" : "good",
      );
      closeDialog();
      refresh();
    } catch (problem) {
      setProgress(null);
      setPreview((old) => ({ ...old, problem }));
    }
  };
  const some = preview.count > 0;
  const narrowing = Object.entries(told).filter(([, value]) => value !== undefined);
  return html`
    <form onSubmit=${run}>
      <h2 id="dialog-title">${verb === "cancel" ? "Cancel" : "Replay"} all matches</h2>
      <p class="sentence" data-tone=${some ? "warn" : "waiting"}>
        <${Icon} name="warn" />
        <span>
          <strong data-preview>${preview.whole ? "" : "At least "}${exact(preview.count)}</strong>
          ${" "}${preview.count === 1 ? "execution matches" : "executions match"}.
          ${verb === "cancel" ? " Those that have not ended are cancelled; workflows clean up first." : " Those that failed or expired run again, unless you selected states. Workflows continue where they stopped."}
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
      <${Trouble} problem=${preview.problem} />
      <div class="foot">
        <button type="button" class="button" onClick=${closeDialog}>${verb === "cancel" ? "Keep" : "Cancel"}</button>
        <button
          type="submit"
          class=${`button primary ${verb === "cancel" ? "danger" : ""}`}
          disabled=${!some || progress !== null}
        >
          ${progress ? `${exact(progress.done)} done…` : `${verb === "cancel" ? "Cancel" : "Replay"} ${preview.whole ? exact(preview.count) : "all"}`}
        </button>
      </div>
    </form>
  `;
}
