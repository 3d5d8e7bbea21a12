// Where an execution is and why, in one line: to the end of the chain, with links to everybody on the way.
import { html } from "../dom.js";
import { moment, relative, words, zoned } from "../format.js";
import { Copy, ended, ExecutionLink } from "../parts.js";
import { Icon } from "../icons.js";
import { listHref } from "../searchlinks.js";
import { BudgetLink } from "../owners.js";
import { childName, kindName } from "./names.js";

const SIGNS = {
  active: "play",
  completed: "check",
  failed: "warn",
  expired: "warn",
  cancelled: "stop",
  skipped: "stop",
};
const ENDS = {
  completed: "Completed",
  failed: "Failed (no retries left)",
  cancelled: "Cancelled",
  expired: "Expired (its deadline or an attempt's timeout passed)",
  skipped: "Skipped (its flow no longer needs it)",
};

/** The server's sentence without its subject. */
function bare(sentence) {
  const text = sentence.replace(/^It (is|was) /, "").replace(/\.$/, "");
  return text.charAt(0).toUpperCase() + text.slice(1);
}

/** Whom a question still waits for. */
function asked({ question, needed, of }) {
  const who = !of.length ? "anyone with the link" : of.length === 1 ? of[0] : `${needed} of ${of.join(", ")}`;
  return [`Waiting for ${who}`, question];
}

/** What is about a lane that does not start what waits in it. */
const LANES = new Set(["lane_paused", "lane_disabled", "blocked_by_lane_state"]);

/** What one link of the chain waits for, in parts. */
function parts({ gate, sentence, detail, until_ms: until }, budgets) {
  if (gate === "running") {
    const worker = detail.worker_instance_id;
    return [html`Running on <a href=${listHref({ worker })}>${worker}</a>`, until && `lease expires ${relative(until)}`];
  }
  const at = until && html`<time title=${moment(until)}>until ${zoned(until)} (${relative(until)})</time>`;
  if (gate === "suspended") {
    if (detail.question) return [...asked(detail.question), at];
    const names = [...new Set(detail.waitpoints.flatMap((each) => each.required_signals))].sort();
    const quoted = names.map((name) => `'${name}'`).join(", ");
    if (names.length) return [`Waiting for ${names.length === 1 ? "signal" : "signals"} ${quoted}`, at];
    return [`Suspended: ${words(detail.reason)}`, at];
  }
  if (gate === "asleep") return ["Sleeping", at];
  // What workers have declined is offered again after a while.
  if (gate === "retry_backoff" || (gate === "delayed" && sentence.startsWith("It is delayed")))
    return [gate === "delayed" ? "Delayed" : "Waiting for retry", until && html`<time title=${moment(until)}>starts at ${zoned(until)} (${relative(until)})</time>`];
  const lane = LANES.has(gate) && html`<a href="#/workers">Lanes</a>`;
  const budget = gate === "budget" && budgets.find((each) => each.budget_id === detail?.budget_id);
  const link = budget && html`<${BudgetLink} id=${budget.budget_id} namespace=${budget.namespace} name=${budget.name} />`;
  return [bare(sentence), lane || link, at];
}

/** The headline, its parts in order. */
function headline(explained, state, why, budgets) {
  const last = explained.chain.at(-1) || explained;
  if (state === "cancelled" && why) return [`Cancelled: ${why}`];
  if (ended(state)) return [ENDS[state] || bare(explained.sentence)];
  const asking = /^It was asked to cancel[^.]*\. /.exec(explained.sentence);
  const found = parts(last, budgets).filter(Boolean);
  return asking ? [bare(asking[0].trim()), ...found] : found;
}

/** Everybody between this execution and the cause. */
function Chain({ explained, named }) {
  const links = explained.chain.slice(1);
  const near = explained.chain.length ? [] : (explained.detail?.execution_ids || explained.detail?.open || []).slice(0, 5);
  if (!links.length && !near.length) return null;
  return html`
    <div class="small" data-chain>
      ${links.map(
        (each) => html`
          <span key=${each.execution_id}>
            ${" → "}${named.get(each.execution_id) || kindName(each.execution_kind)}${" "}
            <${ExecutionLink} id=${each.execution_id} />
          </span>
        `,
      )}
      ${near.map(
        (each) => html`
          <span key=${each}>
            ${" → "}${named.get(each) || ""}${" "}
            <${ExecutionLink} id=${each} />
          </span>
        `,
      )}
      ${explained.left_out && html`<span class="soft">${" "}${explained.left_out}</span>`}
    </div>
  `;
}

/** A reason: its first line, and the rest folded. */
function Reason({ text, past }) {
  const [first, ...rest] = text.split("\n");
  return html`
    <div>
      ${past && html`<span class="soft small">Last failure: </span>`}
      <span class="mono small wrap-anywhere" data-failure>${first}</span>
      <${Copy} text=${text} label="Copy the error" />
      ${
        rest.some((line) => line.trim()) &&
        html`
          <details class="trace">
            <summary>Show all ${rest.length + 1} lines</summary>
            <pre class="value-box" tabindex="0" role="region" aria-label="Error">${text}</pre>
          </details>
        `
      }
    </div>
  `;
}

/** Children whose failure made it fail, as far as can be told: the last one that did. */
function Culprit({ children }) {
  const failed = children.filter((child) => child.public_state === "failed").at(-1);
  return failed
    ? html`
        <div class="small" data-culprit>
          ${"→ "}${childName(failed)} failed${" "}
          <${ExecutionLink} id=${failed.execution_id} />
        </div>
      `
    : null;
}

export function Why({ explained, history, state, relatives, children }) {
  const [first, ...rest] = headline(explained, state, history.cancellation_reason, history.budgets);
  const named = new Map(relatives.map((each) => [each.execution_id, childName(each)]));
  const why = history.failure_reason;
  return html`
    <div class="sentence" data-tone=${state} data-why>
      <${Icon} name=${SIGNS[state] || "clock"} />
      <div class="grow">
        <strong>${first}</strong>
        ${rest.map(
          (part, index) => html`
            <span key=${index} class="soft">${" · "}${part}</span>
          `,
        )}
        ${
          state === "cancelled" &&
          history.cancelled_by &&
          html`<span class="soft">${" · "}by ${history.cancelled_by}</span>`
        }
        <${Chain} explained=${explained} named=${named} />
        ${why && html`<${Reason} text=${why} past=${!ended(state)} />`}
        ${state === "failed" && html`<${Culprit} children=${children} />`}
      </div>
    </div>
  `;
}
