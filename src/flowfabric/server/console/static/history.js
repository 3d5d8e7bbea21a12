// What an execution went through, as rows of its timeline and as sentences.
import { duration, ENDED, plural, words, zoned } from "./format.js";
import { childName, stepName } from "./execution/names.js";
import { now } from "./session.js";

const MAX_CHILDREN = 40;
const MAX_TICKS = 300;

const ENDS = {
  ended_success: "completed",
  success: "completed",
  completed: "completed",
  failed: "failed",
  ended_failed: "failed",
  failure: "failed",
  cancelled: "cancelled",
  ended_cancelled: "cancelled",
};

/** How an attempt ended, as a tone. */
export function outcomeTone(attempt) {
  if (!attempt.outcome) return attempt.ended_at ? "completed" : "active";
  if (ENDS[attempt.outcome]) return ENDS[attempt.outcome];
  if (attempt.outcome.includes("interrupt") || attempt.outcome.includes("suspend")) return "suspended";
  if (
    attempt.outcome.includes("fail") ||
    attempt.outcome.includes("expire") ||
    attempt.outcome.includes("lost") ||
    attempt.outcome.includes("retry")
  )
    return "failed";
  return "waiting";
}

/** The same in words: the names of states, where there is one. */
const OUTCOMES = { success: "completed", retry: "failed", failure: "failed", ended_success: "completed", ended_failed: "failed", ended_cancelled: "cancelled" };
const outcomeWords = (outcome) => OUTCOMES[outcome] ?? words(outcome);

/** How a lease ended: its tone, and in words. */
export const LEASE_ENDS = {
  completed: ["completed", "completed"],
  failed: ["failed", "failed"],
  cancelled: ["cancelled", "cancelled"],
  timed_out: ["failed", "timed out"],
  suspended: ["suspended", "suspended"],
  delayed: ["delayed", "delayed"],
  waiting_children: ["waiting_children", "waiting for its children"],
  declined: ["delayed", "declined"],
  expired: ["warn", "expired"],
  revoked: ["warn", "revoked"],
  reclaimed: ["warn", "taken over by another worker"],
};

/** Why something waits or ended, in words. */
const because = (reason) => (reason === "step_boundary" ? "between two steps" : words(reason));

export const holder = (lease) => lease.worker_instance_id || lease.worker_id || "a worker";

export const leaseEnd = (lease) =>
  `${LEASE_ENDS[lease.ended]?.[1] ?? "held"}${lease.reason ? `: ${because(lease.reason)}` : ""}`;

/** What an execution does between two leases: tone, words, and how it is drawn. */
const BETWEEN = {
  suspended: ["suspended", "Suspended", "soft-bar"],
  delayed: ["delayed", "Delayed", "soft-bar"],
  waiting_children: ["waiting_children", "Waiting for its children", "soft-bar"],
  declined: ["delayed", "Waiting for a worker with its code", "soft-bar"],
  failed: ["rate_limited", "Waiting for retry", "hatched"],
  timed_out: ["rate_limited", "Waiting for retry", "hatched"],
  expired: ["waiting", "Waiting for another worker", "soft-bar"],
  revoked: ["waiting", "Waiting for another worker", "soft-bar"],
};

/** Rows of bars: {name, title, bars: [{from, to, tone, style, title}], ticks}. */
export function rowsOf({ info, history, steps, children }) {
  const end = history.ended_at ?? now();
  const over = ENDED.has(info.public_state);
  const rows = [];
  const { leases, suspension } = history;
  const whole = { name: "State", bars: [] };
  const waits = { name: "Suspended", bars: [] };
  const bar = (from, to, tone, text, style = "") => ({
    from,
    to,
    tone,
    style,
    title: `${text}, ${duration(to - from)}`,
  });
  const add = (row, from, to, ...more) => {
    if (to > from) row.bars.push(bar(from, to, ...more));
  };
  const first = leases[0]?.began_at ?? (suspension ? suspension.suspended_at : end);
  const delayed = history.delay_until && !leases.length;
  add(
    whole,
    history.created_at,
    first,
    delayed ? "delayed" : "waiting",
    delayed ? "Delayed" : "Waiting for its first attempt",
    "soft-bar",
  );
  leases.forEach((lease, index) => {
    const until = lease.ended_at ?? end;
    add(whole, lease.began_at, until, "active", `Attempt ${lease.attempt_index + 1}, ${holder(lease)}`);
    const next = leases[index + 1]?.began_at;
    if (
      !BETWEEN[lease.ended] ||
      (next === undefined &&
        over &&
        lease.ended !== "suspended" &&
        lease.ended !== "delayed" &&
        lease.ended !== "waiting_children")
    )
      return;
    const [tone, text, style] = BETWEEN[lease.ended];
    let gone = next ?? end;
    if (lease.ended === "suspended") {
      // Of the newest suspension it is known when it was over; an execution that goes on may wait for a worker then.
      const closed = suspension && suspension.suspended_at >= lease.ended_at ? suspension.closed_at : null;
      const stays = Math.min(closed ?? gone, gone);
      const title = `Suspended${lease.reason ? `: ${because(lease.reason)}` : ""}`;
      add(whole, lease.ended_at, stays, tone, title, style);
      add(waits, lease.ended_at, stays, tone, title, style);
      if (stays < gone) add(whole, stays, gone, "waiting", "Waiting for a worker", "soft-bar");
    } else add(whole, lease.ended_at, gone, tone, text, style);
  });
  rows.push(whole);
  for (const attempt of history.attempts.filter((each) => each.started_at)) {
    const own = leases.filter((lease) => lease.attempt_index === attempt.attempt_index);
    const from = own[0]?.began_at ?? attempt.started_at;
    const live = own.some((lease) => !lease.ended_at);
    const until = attempt.ended_at ?? (live || !over ? end : (own[own.length - 1]?.ended_at ?? end));
    const text = `Attempt ${attempt.attempt_index + 1}: ${outcomeWords(attempt.outcome || (live ? "active" : "ended"))}`;
    rows.push({
      name: `Attempt ${attempt.attempt_index + 1}`,
      timed: true,
      title: text,
      bars: [
        bar(
          from,
          Math.max(from, until),
          outcomeTone(attempt),
          text,
          live ? "running" : own.length > 1 && !attempt.ended_at ? "soft-bar" : "",
        ),
      ],
    });
  }
  if (leases.length) {
    rows.push({
      name: leases.length > 1 ? "Leases" : "Lease",
      title: plural(leases.length, "lease"),
      bars: leases.map((lease) =>
        bar(
          lease.began_at,
          lease.ended_at ?? end,
          LEASE_ENDS[lease.ended]?.[0] ?? "active",
          `${holder(lease)}: ${leaseEnd(lease)}`,
          lease.ended_at ? "lease" : "lease running",
        ),
      ),
    });
  }
  if (waits.bars.length || history.signals.length) {
    rows.push({
      ...waits,
      ticks: history.signals.map((signal) => ({
        at: signal.accepted_at,
        tone: "suspended",
        label: signal.signal_name,
        title: `Signal ${signal.signal_name} from ${signal.source_identity || signal.source_type}`,
      })),
    });
  }
  if (steps?.length) {
    rows.push({
      name: "Steps",
      title: plural(steps.length, "recorded step"),
      bars: [],
      ticks: steps.slice(-MAX_TICKS).map((step) => ({
        at: step.recorded_at,
        tone: step.outcome === "ok" ? "accent" : "failed",
        label: stepName(step.name),
        title: `${stepName(step.name)}: ${step.outcome === "ok" ? "ok" : "failed"}`,
        step: step.place,
      })),
    });
  }
  const all = children || [];
  for (const child of all.slice(0, MAX_CHILDREN)) {
    const started = child.started_at ?? child.completed_at ?? end;
    const done = child.completed_at ?? end;
    const bars = [];
    if (started > child.created_at)
      bars.push({
        from: child.created_at,
        to: started,
        tone: "waiting",
        style: "soft-bar",
        title: `Waiting, ${duration(started - child.created_at)}`,
      });
    bars.push(
      bar(
        started,
        done,
        child.public_state,
        `${childName(child)}: ${words(child.public_state)}`,
      ),
    );
    rows.push({
      name: childName(child),
      timed: true,
      href: child.execution_id,
      bars,
    });
  }
  if (all.length > MAX_CHILDREN) rows.push({ name: `${all.length - MAX_CHILDREN} more below`, bars: [] });
  return rows;
}

/** Ends of leases that the ends of their attempts tell of. */
const SAID_OTHERWISE = new Set(["completed", "failed", "cancelled", "timed_out"]);

/** What happens under one lease, in this order, and then to those who wait for the next. */
const OPENED = 0;
const WORKED = 1;
const CLOSED = 2;
const WAITED = 3;

/** The same as sentences, oldest first: {at, tone, text}. */
export function eventsOf({ info, history, steps }) {
  const { leases, suspension } = history;
  const found = [];
  // What happened in the same millisecond goes by the lease that it happened under, then by its phase.
  const add = (at, tone, text, lease, phase) => {
    if (at) found.push({ at, tone, text, lease, phase });
  };
  const lastOf = (attempt) => leases.findLastIndex((lease) => lease.attempt_index <= attempt);
  const begunBy = (at) => leases.findLastIndex((lease) => lease.began_at <= at);
  const parked = suspension
    ? leases.findLastIndex((lease) => lease.ended === "suspended" && lease.ended_at <= suspension.suspended_at)
    : -1;
  // What happens to a suspended one comes behind the lease that it gave up.
  const place = (at) => (suspension && at >= suspension.suspended_at ? [parked, WAITED] : [begunBy(at), WORKED]);
  add(
    history.created_at,
    "waiting",
    `Created${history.creator_identity ? ` by ${history.creator_identity}` : ""} in lane ${info.lane_id}`,
    -1,
    OPENED,
  );
  for (const step of (steps || []).slice(-MAX_TICKS))
    add(
      step.recorded_at,
      step.outcome === "ok" ? "good" : "bad",
      `Step ${stepName(step.name)} ${step.outcome === "ok" ? "completed" : "failed"}`,
      begunBy(step.recorded_at),
      WORKED,
    );
  leases.forEach((lease, number) => {
    if (!SAID_OTHERWISE.has(lease.ended))
      add(
        lease.ended_at,
        LEASE_ENDS[lease.ended]?.[0] ?? "waiting",
        `The lease of ${holder(lease)} ended: ${leaseEnd(lease)}`,
        number,
        CLOSED,
      );
  });
  for (const attempt of history.attempts) {
    add(
      attempt.ended_at,
      outcomeTone(attempt),
      `Attempt ${attempt.attempt_index + 1} ended: ${outcomeWords(attempt.outcome || "ended")}`,
      lastOf(attempt.attempt_index),
      CLOSED,
    );
    if (attempt.retry_at)
      add(
        attempt.ended_at,
        "rate_limited",
        `Retry at ${zoned(attempt.retry_at)}`,
        lastOf(attempt.attempt_index),
        CLOSED,
      );
  }
  if (suspension)
    add(
      suspension.suspended_at,
      "suspended",
      `Suspended: ${because(suspension.reason)}${suspension.timeout_at ? `, until ${zoned(suspension.timeout_at)} at the latest` : ""}`,
      parked,
      WAITED,
    );
  for (const waitpoint of history.waitpoints)
    add(
      waitpoint.created_at,
      "suspended",
      `Waitpoint ${waitpoint.waitpoint_key || waitpoint.waitpoint_id} was created`,
      ...place(waitpoint.created_at),
    );
  for (const signal of history.signals)
    add(
      signal.accepted_at,
      "accent",
      `Signal ${signal.signal_name} for ${signal.waitpoint_key} from ${signal.source_identity || signal.source_type}: ${words(signal.effect)}`,
      ...place(signal.accepted_at),
    );
  if (suspension)
    add(
      suspension.closed_at,
      "active",
      suspension.close_reason && suspension.close_reason !== "resumed" ? `Resumed: ${words(suspension.close_reason)}` : "Resumed",
      parked,
      WAITED,
    );
  const seen = new Set();
  leases.forEach((lease, number) => {
    add(
      lease.began_at,
      "active",
      `Attempt ${lease.attempt_index + 1} ${seen.has(lease.attempt_index) ? "continued" : "started"} on worker ${holder(lease)}`,
      number,
      OPENED,
    );
    seen.add(lease.attempt_index);
  });
  add(history.ended_at, info.public_state, endOf(info, history), leases.length, CLOSED);
  return found.sort((a, b) => a.at - b.at || a.lease - b.lease || a.phase - b.phase);
}

/** How it ended, why and by whom. */
function endOf(info, history) {
  const state = words(info.public_state);
  const why = history.cancellation_reason || history.failure_reason;
  const who = history.cancelled_by ? ` (by ${history.cancelled_by})` : "";
  return `${state.charAt(0).toUpperCase()}${state.slice(1)}${why ? `: ${why}` : ""}${who}`;
}
