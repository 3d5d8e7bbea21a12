// Cancel or replay many at once, after saying how many.
import { html, useEffect, useRef, useState } from "../dom.js";
import { at, post } from "../api.js";
import { now } from "../session.js";
import { exact, moment, plural, words } from "../format.js";
import { closeDialog, confirm, openDialog } from "../dialogs.js";
import { toast } from "../toasts.js";
import { Trouble } from "../parts.js";
import { Icon } from "../icons.js";

export function some(verb, ids, done) {
  confirm({
    title: `${verb === "cancel" ? "Cancel" : "Replay"} ${plural(ids.length, "execution")}?`,
    consequence:
      verb === "cancel"
        ? "Each is stopped where it is; its worker is told. What has ended stays as it is."
        : "Each that has ended runs again from its beginning, with the same input.",
    label: verb === "cancel" ? "Cancel them" : "Replay them",
    danger: verb === "cancel",
    fields: verb === "cancel" ? [{ name: "reason", label: "Reason", placeholder: "for the record" }] : [],
    act: async ({ reason }) => {
      let failed = 0;
      const work = [...ids];
      await Promise.all(
        Array.from({ length: 5 }, async () => {
          for (let identity = work.pop(); identity; identity = work.pop()) {
            try {
              await post(at(identity, verb), verb === "cancel" ? { reason: reason || "" } : undefined);
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

export function bulk(verb, parsed, { since, until }, refresh) {
  const filter = {
    namespace: parsed.namespace,
    lane_id: parsed.lane_id,
    kind: parsed.kind,
    flow_id: parsed.flow_id,
    states: parsed.state ? parsed.state.split(",") : undefined,
    tag: parsed.tag
      ? [parsed.tag.slice(0, parsed.tag.indexOf("=")), parsed.tag.slice(parsed.tag.indexOf("=") + 1)]
      : undefined,
    created_from: since ? Math.max(0, Math.floor((until || now()) - since)) : undefined,
    // What is created after the preview is not meant.
    created_before: Math.min(until || Infinity, Math.floor(now()) + 1),
  };
  const told = { ...filter, created_before: until || undefined };
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
      <h2 id="dialog-title">${verb === "cancel" ? "Cancel" : "Replay"} all that fit</h2>
      <p class="sentence" data-tone=${some ? "warn" : "waiting"}>
        <${Icon} name="warn" />
        <span>
          <strong data-preview>${preview.whole ? "" : "At least "}${exact(preview.count)}</strong>
          ${" "}${preview.count === 1 ? "execution fits" : "executions fit"}.
          ${verb === "cancel" ? " Those that have not ended are stopped; their workers are told." : " Those that failed or expired run again from their beginning, unless states were chosen."}
        </span>
      </p>
      <div class="note-box">
        ${
          narrowing.length
            ? narrowing.map(
                ([name, value]) => html`
                  <div key=${name}>
                    <span class="faint">${words(name)}</span>
                    ${" "}
                    <span class="mono wrap-anywhere">
                      ${name.startsWith("created") ? moment(value) : Array.isArray(value) ? value.join(name === "tag" ? "=" : ", ") : String(value)}
                    </span>
                  </div>
                `,
              )
            : "Nothing narrows it: this is about everything that can be seen."
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
        <button type="button" class="button" onClick=${closeDialog}>Leave it</button>
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
