// What an entry of the audit log says, in words: what was done, to what, and what has changed.
import { html } from "../dom.js";
import { amount, duration, exact, moment, plural, shortId, words } from "../format.js";
import { ExecutionLink, executionHref } from "../parts.js";
import { listHref } from "../searchlinks.js";
import { budgetPage } from "../owners.js";
import { schedulePage } from "../schedules/links.js";

const ACTS = {
  answer_question: "Question answered",
  backfill_schedule: "Schedule backfilled",
  cancel_execution: "Execution cancelled",
  cancel_executions: "Executions cancelled in bulk",
  cancel_flow: "Flow cancelled",
  change_priority: "Priority changed",
  create_budget: "Budget created",
  create_credential: "Credential created",
  create_quota_policy: "Quota created",
  delete_schedule: "Schedule deleted",
  fork_execution: "Execution forked",
  give_answer: "Question answered",
  make_link: "Approval link created",
  pause_schedule: "Schedule paused",
  put_schedule: "Schedule saved",
  read_waitpoint_token: "Waitpoint token read",
  replay_execution: "Execution replayed",
  replay_executions: "Executions replayed in bulk",
  request_cancel: "Cancellation requested",
  reset_budget: "Budget reset",
  resume_execution: "Execution resumed",
  resume_schedule: "Schedule resumed",
  revoke_credential: "Credential revoked",
  revoke_lease: "Lease revoked",
  rotate_waitpoint_secret: "Signing key rotated",
  set_budget_limits: "Budget limits changed",
  set_execution_tags: "Tags changed",
  set_flow_tags: "Flow tags changed",
  set_lane_fairness: "Lane sharing changed",
  set_lane_state: "Lane state changed",
  trigger_schedule: "Schedule triggered",
};
export const actName = (act) => (Object.hasOwn(ACTS, act) ? ACTS[act] : words(act));

const link = (href, text) => html`<a href=${href}>${text}</a>`;
const list = (text) => text.split(", ").filter(Boolean);
const number = (text) => /^\d+$/.test(text);
const time = (text) => (number(text) ? moment(Number(text)) : text);
const spec = (text) => text.replace(/^every (\d+) ms$/, (_, ms) => `every ${duration(Number(ms))}`);
/** "usd=5000000, tokens=10" as people say it; 0 is no limit. */
const limits = (text) =>
  list(text)
    .map((each) => {
      const [name, value] = each.split("=");
      return number(value || "") ? `${name} ${Number(value) ? amount(name, Number(value)) : "unlimited"}` : each;
    })
    .join(", ");

/** A value that nothing is known about; an execution's id is a link all the same. */
const plain = (text) =>
  /^\{fp:\d+\}:/.test(text)
    ? html`<a class="mono" href=${executionHref(text)}>${text}</a>`
    : html`<span class="mono">${text}</span>`;

/** Labels and texts of fields; those that are left out are shown as they are. */
const FIELDS = {
  execution_id: ["", (id) => html`<${ExecutionLink} id=${id} />`],
  new_execution_id: ["new run", (id) => html`<${ExecutionLink} id=${id} />`],
  started: ["started", (ids) => list(ids).map((id) => html`<${ExecutionLink} key=${id} id=${id} /> `)],
  flow_id: ["flow", (id) => link(`#/flows/${encodeURIComponent(id)}`, shortId(id))],
  lane_id: ["lane", (lane) => link(listHref({ lane }), lane)],
  scope_id: ["name", (text) => text],
  scope_type: ["scope", words],
  execution_kind: ["starts", (text) => text],
  kind: ["kind", (text) => text],
  spec: ["when", spec],
  credential_id: ["id", (text) => text],
  new_priority: ["priority", (text) => text],
  hard_limits: ["hard limit", limits],
  soft_limits: ["soft limit", limits],
  window_seconds: ["window", (text) => (number(text) ? duration(Number(text) * 1_000) : text)],
  max_requests_per_window: ["per window", (text) => (number(text) ? exact(Number(text)) : text)],
  max_concurrent: ["concurrency", (text) => (number(text) ? exact(Number(text)) : text)],
  expires_at: ["expires", time],
  from_ms: ["from", time],
  before_ms: ["to", time],
  created_from: ["created from", time],
  created_before: ["created before", time],
  states: ["states", words],
  runs: ["", (text) => (number(text) ? plural(Number(text), "run started", "runs started") : text)],
  done: ["", (text) => (number(text) ? plural(Number(text), "execution") : text)],
  by: ["by", words],
  approver: ["for", (text) => text],
  overlap: ["overlap", words],
  at: ["at step", (text) => text],
  new_kid: ["key", (text) => text],
  quota_policy_id: ["quota", shortId],
};

/** Pairs of what was and what is now. */
const CHANGED = [
  ["previous", "state"],
  ["previous_kid", "new_kid"],
];

/** What an entry is about: [{key, label, text, before}]; `before` is what it was until then. */
export function told(subject) {
  let fields;
  try {
    fields = JSON.parse(subject);
  } catch {
    return [{ key: "", label: "", text: subject }];
  }
  const rest = { ...fields };
  const found = [];
  // A question's link or answer is that of one of its approvers.
  if (rest.execution_id && rest.by) {
    rest.approver = rest.by;
    delete rest.by;
  }
  for (const [before, after] of CHANGED)
    if (before in rest && after in rest) {
      found.push({ key: after, label: FIELDS[after]?.[0] || words(after), before: words(rest[before]), text: words(rest[after]) });
      delete rest[before];
      delete rest[after];
    }
  // A new budget's limits stand beside its dimensions.
  if (rest.dimensions)
    for (const name of ["hard_limits", "soft_limits"])
      if (rest[name] && !rest[name].includes("="))
        rest[name] = list(rest.dimensions)
          .map((dimension, index) => `${dimension}=${list(rest[name])[index] ?? 0}`)
          .join(", ");
  if (rest.hard_limits) delete rest.dimensions;
  // A new budget without soft limits needs no word about them.
  if (rest.soft_limits && list(rest.soft_limits).every((limit) => limit.endsWith("=0"))) delete rest.soft_limits;
  const { schedule_id: schedule, budget_id: budget, namespace } = rest;
  const things = [];
  if (schedule) {
    things.push({ key: "schedule_id", label: "schedule", text: link(schedulePage(schedule, namespace || "default"), schedule) });
    delete rest.schedule_id;
  }
  if (budget) {
    const name = rest.scope_id || shortId(budget);
    things.push({ key: "budget_id", label: "budget", text: link(budgetPage(budget, namespace ?? null), name) });
    delete rest.budget_id;
    delete rest.scope_id;
  }
  const others = Object.entries(rest).map(([key, value]) => {
    const [label, say] = Object.hasOwn(FIELDS, key) ? FIELDS[key] : [words(key), plain];
    return { key, label, text: say(String(value)) };
  });
  const first = others.filter((each) => ["execution_id", "flow_id", "lane_id", "name"].includes(each.key));
  return [...things, ...first, ...found, ...others.filter((each) => !first.includes(each))];
}
