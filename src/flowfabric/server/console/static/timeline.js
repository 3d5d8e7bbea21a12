// What an execution went through, drawn over time: waiting, attempts, suspensions, retries, steps, children.
import { html, useEffect, useState } from "./dom.js";
import { duration, ENDED, moment, shortId, time, words } from "./format.js";
import { now } from "./session.js";
import { Segments } from "./parts.js";

const MAX_CHILDREN = 40, MAX_TICKS = 300;
const ENDS = { ended_success: "completed", success: "completed", completed: "completed", failed: "failed", ended_failed: "failed", failure: "failed", cancelled: "cancelled", ended_cancelled: "cancelled" };

/** How an attempt ended, as a tone. */
export function outcomeTone(attempt) {
  if (!attempt.outcome) return attempt.ended_at ? "completed" : "active";
  if (ENDS[attempt.outcome]) return ENDS[attempt.outcome];
  if (attempt.outcome.includes("interrupt") || attempt.outcome.includes("suspend")) return "suspended";
  if (attempt.outcome.includes("fail") || attempt.outcome.includes("expire") || attempt.outcome.includes("lost") || attempt.outcome.includes("retry")) return "failed";
  return "waiting";
}

/** Rows of bars: {name, title, bars: [{from, to, tone, style, title}], ticks}. */
export function rowsOf({ info, history, steps, children }) {
  const end = history.ended_at ?? now();
  const state = info.public_state;
  const rows = [];
  const attempts = history.attempts.filter((attempt) => attempt.started_at);
  const suspension = history.suspension;
  const first = attempts[0]?.started_at ?? end;
  const whole = { name: "State", bars: [] };
  const add = (from, to, tone, text, style = "") => { if (to > from) whole.bars.push({ from, to, tone, style, title: `${text}, ${duration(to - from)}` }); };
  add(history.created_at, first, history.delay_until && !attempts.length ? "delayed" : "waiting", history.delay_until && !attempts.length ? "Delayed" : "Waiting for its first attempt", "soft-bar");
  attempts.forEach((attempt, index) => {
    const next = attempts[index + 1]?.started_at;
    const over = attempt.ended_at ?? (suspension && suspension.attempt_index === attempt.attempt_index ? suspension.suspended_at : null) ?? (next || end);
    add(attempt.started_at, Math.min(over, end), "active", `Attempt ${attempt.attempt_index + 1}`);
    if (suspension && suspension.attempt_index === attempt.attempt_index && suspension.suspended_at >= attempt.started_at) {
      add(suspension.suspended_at, Math.min(suspension.closed_at ?? end, end), "suspended", `Suspended: ${words(suspension.reason)}`, "soft-bar");
    }
    if (next && attempt.ended_at && next > attempt.ended_at) add(attempt.ended_at, next, "rate_limited", "Waiting to try again", "hatched");
    else if (!next && attempt.retry_at && !ENDED.has(state)) add(attempt.ended_at ?? attempt.started_at, end, "rate_limited", "Waiting to try again", "hatched");
  });
  rows.push(whole);
  for (const attempt of attempts) {
    const open = !attempt.ended_at && attempt.lease_expires_at;
    const over = attempt.ended_at ?? (open ? end : Math.max(attempt.started_at, suspension?.suspended_at ?? attempt.started_at));
    const who = attempt.worker_instance_id || attempt.worker_id;
    rows.push({
      name: `Attempt ${attempt.attempt_index + 1}`,
      title: `${who ? `by ${who}, ` : ""}lease epoch ${attempt.lease_epoch}${attempt.outcome ? `, ${words(attempt.outcome)}` : ""}`,
      bars: [{ from: attempt.started_at, to: over, tone: outcomeTone(attempt), style: open ? "running" : "", title: `Attempt ${attempt.attempt_index + 1}${who ? ` by ${who}` : ""}: ${words(attempt.outcome || (open ? "running" : "over"))}, ${duration(over - attempt.started_at)}` }],
    });
  }
  if (suspension) {
    const over = suspension.closed_at ?? end;
    rows.push({ name: "Suspended", bars: [{ from: suspension.suspended_at, to: Math.min(over, end), tone: "suspended", style: "soft-bar", title: `${words(suspension.reason)}, ${duration(over - suspension.suspended_at)}` }],
      ticks: history.signals.map((signal) => ({ at: signal.accepted_at, tone: "suspended", title: `Signal ${signal.signal_name} from ${signal.source_identity || signal.source_type}` })) });
  }
  if (steps?.length) {
    rows.push({ name: "Steps", title: `${steps.length} remembered`, bars: [], ticks: steps.slice(-MAX_TICKS).map((step) => ({ at: step.recorded_at, tone: step.outcome === "ok" ? "accent" : "failed", title: `${step.name}: ${step.outcome}`, step: step.sequence })) });
  }
  for (const child of (children || []).slice(0, MAX_CHILDREN)) {
    const started = child.started_at ?? child.completed_at ?? end, over = child.completed_at ?? end;
    const bars = [];
    if (started > child.created_at) bars.push({ from: child.created_at, to: started, tone: "waiting", style: "soft-bar", title: `Waiting, ${duration(started - child.created_at)}` });
    bars.push({ from: started, to: over, tone: child.public_state, title: `${child.execution_kind || shortId(child.execution_id)}: ${words(child.public_state)}, ${duration(over - started)}` });
    rows.push({ name: child.execution_kind === "$ask" ? "question" : child.execution_kind || shortId(child.execution_id), href: child.execution_id, bars });
  }
  return rows;
}

/** A scale over time that lets long stretches in which nothing happens take less room than they would. */
export function compressed(points, from, to) {
  const edges = [...new Set([from, ...points.filter((point) => point > from && point < to), to])].sort((a, b) => a - b);
  const each = Math.max(1, Math.ceil(edges.length / 200));
  const kept = edges.filter((_, index) => index % each === 0 || index === edges.length - 1);
  const weights = kept.slice(1).map((edge, index) => (edge - kept[index]) ** 0.25);
  const total = weights.reduce((sum, weight) => sum + weight, 0) || 1;
  const places = [0];
  for (const weight of weights) places.push(places[places.length - 1] + weight / total);
  return {
    edges: kept,
    place: (ms) => {
      let at = kept.findIndex((edge) => edge >= ms);
      if (at < 0) return 1;
      if (at === 0) return 0;
      const share = (ms - kept[at - 1]) / (kept[at] - kept[at - 1]);
      return places[at - 1] + share * (places[at] - places[at - 1]);
    },
    moment: (share) => {
      let at = places.findIndex((place) => place >= share);
      if (at <= 0) return at < 0 ? to : from;
      return kept[at - 1] + ((share - places[at - 1]) / (places[at] - places[at - 1])) * (kept[at] - kept[at - 1]);
    },
  };
}

/** Whether most of what happened would be a hair's breadth wide. */
const squeezed = (points, from, to) => {
  const inner = points.filter((point) => point > from && point < to);
  return inner.length > 2 && inner.filter((point) => point - from < (to - from) / 25 || to - point < (to - from) / 25).length / inner.length > 0.7;
};

export function Timeline({ info, history, steps, children, onStep }) {
  const [, again] = useState(0);
  const over = ENDED.has(info.public_state);
  useEffect(() => {
    if (over) return undefined;
    const timer = setInterval(() => again((n) => n + 1), 1_000);
    return () => clearInterval(timer);
  }, [over]);
  const rows = rowsOf({ info, history, steps, children });
  const from = history.created_at;
  const to = Math.max(from + 1, history.ended_at ?? now(), ...rows.flatMap((row) => row.bars.map((bar) => bar.to)));
  const points = rows.flatMap((row) => [...row.bars.flatMap((bar) => [bar.from, bar.to]), ...(row.ticks || []).map((tick) => tick.at)]);
  const [chosen, setChosen] = useState(null);
  const mode = chosen || (squeezed(points, from, to) ? "short" : "true");
  const scale = mode === "short" ? compressed(points, from, to) : { place: (ms) => (ms - from) / (to - from), moment: (share) => from + share * (to - from) };
  const part = (ms) => Math.max(0, Math.min(1, scale.place(ms))) * 100;
  const left = (ms) => `${part(ms)}%`;
  const width = (bar) => `${Math.max(0, part(bar.to) - part(bar.from))}%`;
  return html`<div class="stack tight">
    <div class="timeline" role="group" aria-label=${`Timeline of ${duration(to - from)}: ${rows.map((row) => row.name).join(", ")}`}>
      ${rows.map((row, index) => html`
        <div class="name clip" key=${`n${index}`} title=${row.title || row.name}>${row.href ? html`<a href=${`#/executions/${encodeURIComponent(row.href)}`}>${row.name}</a>` : row.name}</div>
        <div class="track" key=${`t${index}`}>
          ${row.bars.map((bar, number) => html`<span key=${number} class=${`bar ${bar.style || ""}`} data-tone=${bar.tone} title=${bar.title} style=${{ left: left(bar.from), width: width(bar) }}></span>`)}
          ${(row.ticks || []).map((tick, number) => html`<span key=${`k${number}`} class="tick" data-tone=${tick.tone} title=${`${tick.title} (${time(tick.at)})`} style=${{ left: left(tick.at) }} onClick=${() => tick.step && onStep?.(tick.step)}></span>`)}
        </div>`)}
      <div class="name"></div>
      <div class="scale">${[0, 0.2, 0.4, 0.6, 0.8, 1].map((share) => html`<span key=${share} style=${{ left: `${share * 100}%` }} title=${moment(scale.moment(share))}>${share === 0 ? time(from) : `+${duration(scale.moment(share) - from)}`}</span>`)}</div>
    </div>
    <div class="line wide wraps"><div class="legend" aria-hidden="true">
      <span data-tone="waiting"><i class="dot"></i>waiting</span><span data-tone="active"><i class="dot"></i>running</span>
      <span data-tone="suspended"><i class="dot"></i>suspended</span><span data-tone="rate_limited"><i class="dot"></i>until the next try</span>
      <span data-tone="completed"><i class="dot"></i>completed</span><span data-tone="failed"><i class="dot"></i>failed</span>
    </div><${Segments} label="Scale" options=${[["true", "True to time"], ["short", "Waits shortened"]]} value=${mode} onChange=${setChosen} /></div>
  </div>`;
}

/** The same as sentences, oldest first: {at, tone, text}. */
export function eventsOf({ info, history, steps }) {
  const found = [{ at: history.created_at, tone: "waiting", text: `Created${history.creator_identity ? ` by ${history.creator_identity}` : ""} in lane ${info.lane_id}` }];
  for (const attempt of history.attempts) {
    const name = `Attempt ${attempt.attempt_index + 1}`;
    const who = attempt.worker_instance_id || attempt.worker_id;
    if (attempt.started_at) found.push({ at: attempt.started_at, tone: "active", text: `${name} began${who ? ` at worker ${who}` : ""} under lease epoch ${attempt.lease_epoch}` });
    if (attempt.ended_at) found.push({ at: attempt.ended_at, tone: outcomeTone(attempt), text: `${name} ended: ${words(attempt.outcome || "over")}` });
    if (attempt.retry_at && attempt.ended_at) found.push({ at: attempt.ended_at, tone: "rate_limited", text: `To be tried again at ${time(attempt.retry_at)}` });
  }
  const suspension = history.suspension;
  if (suspension) {
    found.push({ at: suspension.suspended_at, tone: "suspended", text: `Suspended: ${words(suspension.reason)}${suspension.timeout_at ? `, until ${time(suspension.timeout_at)} at most` : ""}` });
    if (suspension.closed_at) found.push({ at: suspension.closed_at, tone: "active", text: `Went on: ${words(suspension.close_reason || "resumed")}` });
  }
  for (const waitpoint of history.waitpoints) found.push({ at: waitpoint.created_at, tone: "suspended", text: `Waitpoint ${waitpoint.waitpoint_key || waitpoint.waitpoint_id} was made` });
  for (const signal of history.signals) found.push({ at: signal.accepted_at, tone: "accent", text: `Signal ${signal.signal_name} for ${signal.waitpoint_key} from ${signal.source_identity || signal.source_type}: ${words(signal.effect)}` });
  for (const step of (steps || []).slice(-MAX_TICKS)) found.push({ at: step.recorded_at, tone: step.outcome === "ok" ? "good" : "bad", text: `Step ${step.name} ${step.outcome === "ok" ? "was remembered" : "failed"}` });
  if (history.ended_at) found.push({ at: history.ended_at, tone: info.public_state, text: `${words(info.public_state).replace(/^./, (c) => c.toUpperCase())}${history.cancellation_reason ? `: ${history.cancellation_reason}` : history.failure_reason ? `: ${history.failure_reason}` : ""}${history.cancelled_by ? ` (by ${history.cancelled_by})` : ""}` });
  return found.sort((a, b) => a.at - b.at);
}
