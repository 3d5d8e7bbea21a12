// What can be done to a schedule wherever it is shown, and how its times are written.
import { useBusy } from "../acts.js";
import { html } from "../dom.js";
import { post, variant } from "../api.js";
import { may } from "../session.js";
import { duration, words } from "../format.js";
import { confirm } from "../dialogs.js";
import { toast } from "../toasts.js";
import { Icon } from "../icons.js";
import { schedulePath } from "./links.js";

/** What a slot does while the last run has not ended. */
export const OVERLAPS = {
  skip: "skipped if the last run has not ended",
  queue: "starts even if the last run has not ended",
  replace: "cancels the last run if it has not ended",
};
export const CATCH_UPS = {
  none: "missed runs are not started",
  last: "the latest missed run is started",
  all: "every missed run is started",
};
const SKIPPED = { overlap: "the last run had not ended", lane_closed: "its lane is closed", missed: "it was missed" };
export const skipText = (reason) => SKIPPED[reason] || words(reason);

/** A cron expression with its zone, or an interval. */
export const Timing = ({ spec }) =>
  spec.expression
    ? html`
        <span class="mono">${spec.expression}</span>
        ${" "}
        <span class="faint small">${spec.time_zone}</span>
      `
    : html`every ${duration(spec.every_ms)}`;

function trigger(each, refresh) {
  confirm({
    title: `Start ${each.schedule_id} now?`,
    label: "Start",
    consequence: "This starts one extra run; the schedule does not change. Its overlap policy applies.",
    act: async (_, own) => {
      const [name, fields] = variant(await own.post(schedulePath(each.schedule_id, each.namespace, "trigger"), {}));
      toast(
        fields.execution_ids?.length ? "Started." : `Not started: ${skipText(fields.reason || name)}.`,
        fields.execution_ids?.length ? "good" : "warn",
      );
      refresh();
    },
  });
}

/** Delete it, then go back to the list. */
export function forget(each) {
  confirm({
    title: `Delete ${each.schedule_id}?`,
    label: "Delete",
    danger: true,
    consequence: `It starts no more runs; those it has started continue.${each.source ? " A worker whose code still defines it creates it again when it starts." : ""}`,
    act: async (_, own) => {
      await own.remove(schedulePath(each.schedule_id, each.namespace));
      toast("Schedule deleted.");
      own.go("#/schedules");
    },
  });
}

export function Verbs({ each, refresh, small }) {
  const { busy, run } = useBusy(refresh);
  const act = (verb, text) => () =>
    run(async () => {
      try {
        await post(schedulePath(each.schedule_id, each.namespace, verb), undefined);
        toast(text);
      } catch (problem) {
        toast(problem.message, "bad");
      }
    });
  const look = `button${small ? " small" : ""}`;
  return html`
    ${
      may("trigger_schedule") &&
      html`
        <button type="button" class=${look} onClick=${() => trigger(each, refresh)}>
          <${Icon} name="plus" />
          Start…
        </button>
      `
    }
    ${
      each.paused
        ? may("resume_schedule") &&
          html`
            <button type="button" class=${look} disabled=${busy} onClick=${act("resume", "Schedule resumed.")}>
              <${Icon} name="play" />
              Resume
            </button>
          `
        : may("pause_schedule") &&
          html`
            <button type="button" class=${look} disabled=${busy} onClick=${act("pause", "Schedule paused.")}>
              <${Icon} name="pause" />
              Pause
            </button>
          `
    }
  `;
}
