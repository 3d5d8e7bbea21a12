// One execution: where it is and why, what it went through, what it was given and gave, what it emits, what can be done.
import { html, useEffect, useState } from "../dom.js";
import { at, get } from "../api.js";
import { useLive } from "../live.js";
import { Live } from "../app.js";
import { duration, moment, plural, relative, shortId } from "../format.js";
import { Absent, Badge, Copy, ended, ExecutionLink, Tabs, Trouble, When } from "../parts.js";
import { eventsOf } from "../history.js";
import { Timeline } from "../timeline.js";
import { Icon } from "../icons.js";
import { Actions } from "../execution/actions.js";
import { Data, Details } from "../execution/data.js";
import { Stream } from "../execution/stream.js";
import { Steps, Leases, Waits, Usage, Events, Relatives } from "../execution/records.js";

const SIGNS = {
  active: "play",
  completed: "check",
  failed: "warn",
  expired: "warn",
  cancelled: "stop",
  skipped: "stop",
};

async function load(id) {
  const info = await get(at(id));
  const flow = info.flow_id;
  const [explained, history, steps, started, members] = await Promise.all([
    get(at(id, "explain")),
    get(at(id, "history")),
    get(at(id, "steps"), { limit: 1_000 }),
    flow ? get("v1/search/executions", { parent: id, flow_id: flow, limit: 200 }) : { executions: [] },
    flow ? get(`v1/flows/${flow}/members`, { limit: 200 }).catch(() => null) : null,
  ]);
  const own = new Set([id, ...started.executions.map((each) => each.execution_id)]);
  return {
    info,
    explained,
    history,
    steps: steps.steps,
    children: started.executions.reverse(),
    others: (members?.executions || []).filter((member) => !own.has(member.execution_id)).reverse(),
  };
}

export default function Execution({ id, query }) {
  const { data, problem, refresh } = useLive(() => load(id), [id], 3_000);
  const [tab, setTab] = useState(query.get("tab") || "data");
  const [step, setStep] = useState(null);
  const wanted = query.get("tab");
  useEffect(() => {
    if (wanted) setTab(wanted);
  }, [wanted]);
  const input = useInput(id);
  if (!data)
    return html`<${Absent} problem=${problem} what="execution" all="Executions" href="#/executions" />`;
  const { info, explained, history, steps, children, others } = data;
  const state = info.public_state;
  const tabs = [
    ["data", "Input and result"],
    ["stream", "Stream"],
    ["steps", "Steps", steps.length],
    ["leases", "Leases", history.leases.length],
    ["waits", "Waits and signals", history.signals.length],
    ["usage", "Usage", history.spends.length],
    ["events", "Events"],
    ["details", "Details"],
  ];
  return html`
    <div class="page">
      <div class="page-head">
        <div class="grow">
          <div class="tiny faint">
            <a href="#/executions">Executions</a>
            ${" "}/ ${info.namespace}
          </div>
          <div class="line wraps">
            <h1 class="wrap-anywhere">
              ${info.execution_kind === "$ask" ? "question" : info.execution_kind || "(no kind)"}
            </h1>
            <${Badge} state=${state} />
            <${Live} />
          </div>
          <div class="line">
            <span class="mono small soft wrap-anywhere" data-id>${id}</span>
            <${Copy} text=${id} label="Copy the id" />
          </div>
        </div>
        <div class="actions"><${Actions} ...${{ id, info, history, steps, refresh }} /></div>
      </div>
      <${Trouble} problem=${problem} />
      <p class="sentence" data-tone=${state} data-why>
        <${Icon} name=${SIGNS[state] || "clock"} />
        <span>
          <strong>
            ${history.failure_reason ? explained.sentence.replace(` (${history.failure_reason})`, "") : explained.sentence}
          </strong>
          ${(explained.detail?.execution_ids || []).slice(0, 5).map(
            (each) => html`
              ${" "}
              <${ExecutionLink} key=${each} id=${each} />
            `,
          )}
          ${
            explained.until_ms
              ? html`
                  <span class="soft">
                    ${" "}Until ${moment(explained.until_ms)} (${relative(explained.until_ms)}).
                  </span>
                `
              : null
          }
          ${
            history.failure_reason &&
            html`
              <br />
              ${ended(state) ? null : html`<span class="soft small">The last failure: </span>`}
              <span class="mono small wrap-anywhere" data-failure>${history.failure_reason}</span>
            `
          }
        </span>
      </p>
      <section class="card">
        <header>
          <h2>Timeline</h2>
          <span class="soft small">${lasted(history)}</span>
        </header>
        <div class="body">
          <${Timeline}
            ...${{
              info,
              history,
              steps,
              children,
              onStep: (number) => {
                setStep(number);
                setTab("steps");
              },
            }}
          />
        </div>
      </section>
      <section class="card">
        <div class="body">
          <dl class="facts">
            <div>
              <dt>Lane</dt>
              <dd>${info.lane_id}</dd>
            </div>
            <div>
              <dt>Priority</dt>
              <dd>${info.priority}</dd>
            </div>
            <div>
              <dt>Created</dt>
              <dd><${When} ms=${Number(info.created_at)} /></dd>
            </div>
            <div>
              <dt>Started</dt>
              <dd><${When} ms=${Number(info.started_at)} /></dd>
            </div>
            <div>
              <dt>${history.ended_at ? "Ended" : "Deadline"}</dt>
              <dd><${When} ms=${history.ended_at || history.deadline_at} /></dd>
            </div>
            <div>
              <dt>Attempt</dt>
              <dd>${history.attempts.length ? info.current_attempt_index + 1 : "–"}</dd>
            </div>
            ${
              info.flow_id &&
              html`
                <div>
                  <dt>Flow</dt>
                  <dd><a class="mono" href=${`#/flows/${info.flow_id}`}>${shortId(info.flow_id)}</a></dd>
                </div>
              `
            }
            ${
              history.parent &&
              html`
                <div>
                  <dt>Started by</dt>
                  <dd><${ExecutionLink} id=${history.parent} /></dd>
                </div>
              `
            }
            ${
              history.forked_from &&
              html`
                <div>
                  <dt>Forked from</dt>
                  <dd><${ExecutionLink} id=${history.forked_from} /></dd>
                </div>
              `
            }
          </dl>
        </div>
      </section>
      <section class="card">
        <${Tabs} label="About this execution" tabs=${tabs} value=${tab} onChange=${setTab} />
        <div class="body" role="tabpanel" aria-labelledby=${`tab-${tab}`}>
          ${tab === "data" && html`<${Data} ...${{ id, info, history, input }} />`}
          ${
            tab === "stream" &&
            html`
              <${Stream} key=${info.current_attempt_index} ...${{ id, index: info.current_attempt_index, state }} />
            `
          }
          ${tab === "steps" && html`<${Steps} ...${{ id, steps, open: step, info }} />`}
          ${tab === "leases" && html`<${Leases} leases=${history.leases} />`}
          ${tab === "waits" && html`<${Waits} history=${history} />`}
          ${tab === "usage" && html`<${Usage} history=${history} />`}
          ${tab === "events" && html`<${Events} events=${eventsOf({ info, history, steps })} />`}
          ${tab === "details" && html`<${Details} ...${{ info, history, input, explained }} />`}
        </div>
      </section>
      ${children.length > 0 && html`<${Relatives} title="Started by it" found=${children} />`}
      ${others.length > 0 && html`<${Relatives} title="Others in its flow" found=${others} flow=${info.flow_id} />`}
    </div>
  `;
}

/** How long it took or has gone on, and what came in between. */
function lasted(history) {
  const span = duration((history.ended_at || Date.now()) - history.created_at);
  const parts = [`${history.ended_at ? "took" : "for"} ${span}`];
  if (history.retry_count) parts.push(plural(history.retry_count, "retry", "retries"));
  const lost = history.lease_reclaim_count;
  if (lost) parts.push(`lost its worker ${lost === 1 ? "once" : `${lost} times`}`);
  return parts.join(", ");
}

function useInput(id) {
  const [input, setInput] = useState(null);
  useEffect(() => {
    let gone = false;
    get(at(id, "input")).then(
      (found) => {
        if (!gone) setInput(found);
      },
      () => {},
    );
    return () => {
      gone = true;
    };
  }, [id]);
  return input;
}
