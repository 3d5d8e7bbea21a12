// One execution: where it is and why, what it went through, what it was given and gave, what it emits, what can be done.
import { html } from "../dom.js";
import { at, get } from "../api.js";
import { useLive, useOnce } from "../live.js";
import { Live } from "../app.js";
import { duration, plural, shortId } from "../format.js";
import { Absent, Badge, Copy, executionHref, ExecutionLink, Tabs, Trouble, visit, When } from "../parts.js";
import { eventsOf } from "../history.js";
import { Timeline } from "../timeline.js";
import { listHref } from "../searchlinks.js";
import { changed } from "../narrowing.js";
import { Actions, actionsOf } from "../execution/actions.js";
import { Data, Details } from "../execution/data.js";
import { Errors, useErrors } from "../execution/errors.js";
import { isInternal, kindName } from "../execution/names.js";
import { Why } from "../execution/why.js";
import { Logs } from "../execution/logs.js";
import { Stream } from "../execution/stream.js";
import { Leases, Waits, Usage, Events, Relatives } from "../execution/records.js";
import { Steps } from "../execution/steps.js";

async function load(id) {
  const info = await get(at(id));
  const flow = info.flow_id;
  const [explained, history, steps, started, members] = await Promise.all([
    get(at(id, "explain")),
    get(at(id, "history")),
    get(at(id, "steps"), { limit: 1_000 }),
    // Its flow may belong to a namespace that the credential cannot see.
    flow ? get(`v1/flows/${flow}/tree`, { parent: id, limit: 200 }).catch(() => null) : null,
    flow ? get(`v1/flows/${flow}/tree`, { limit: 200 }).catch(() => null) : null,
  ]);
  const children = (started?.members || []).reverse();
  const own = new Set([id, ...children.map((each) => each.execution_id)]);
  return {
    info,
    explained,
    history,
    steps: steps.steps.filter((step) => !isInternal(step.name)).map((step, index) => ({ ...step, place: index + 1 })),
    children,
    others: (members?.members || []).filter((member) => !own.has(member.execution_id)).reverse(),
  };
}

export default function Execution({ id, query }) {
  const { data, problem, refresh } = useLive(() => load(id), [id], 3_000);
  const step = Number(query.get("step")) || null;
  const go = (words) => visit(changed(words, [executionHref(id), query]));
  const setTab = (tab, number) => go({ tab, step: number, attempt: "" });
  const { data: input, problem: unread } = useOnce(() => get(at(id, "input")), [id]);
  const errors = useErrors(id, data?.history);
  if (!data)
    return html`<${Absent} problem=${problem} what="execution" all="Executions" href="#/executions" />`;
  const { info, explained, history, steps, children, others } = data;
  const state = info.public_state;
  const tabs = [
    ["data", "Input and result"],
    ["stream", "Stream"],
    ["logs", "Logs"],
    ["steps", "Steps", steps.length],
    ["leases", "Leases", history.leases.length],
    ["waits", "Waits and signals", history.signals.length],
    ["usage", "Usage", history.spends.length],
    ["events", "Events"],
    ["details", "Details"],
  ];
  const tab = tabs.some(([key]) => key === query.get("tab")) ? query.get("tab") : "data";
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
              ${kindName(info.execution_kind)}
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
      <${Why} ...${{ explained, history, state, children, relatives: [...children, ...others] }} />
      <${Errors} errors=${errors} attempts=${history.attempts.length} reason=${history.failure_reason} />
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
              onStep: (number) => setTab("steps", number),
              chosen: query.get("scale"),
              onScale: (scale) => go({ scale }),
            }}
          />
        </div>
      </section>
      <section class="card">
        <div class="body">
          <dl class="facts">
            <div>
              <dt>Lane</dt>
              <dd><a href=${listHref({ lane: info.lane_id })}>${info.lane_id}</a></dd>
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
        <${Tabs} label="About this execution" tabs=${tabs} value=${tab} onChange=${(key) => setTab(key)} />
        <div class="body" role="tabpanel" aria-labelledby=${`tab-${tab}`}>
          ${tab === "data" && html`<${Data} ...${{ id, info, history, input, unread }} />`}
          ${
            tab === "stream" &&
            html`
              <${Stream} key=${info.current_attempt_index} ...${{ id, index: info.current_attempt_index, state }} />
            `
          }
          ${tab === "logs" && html`<${Logs} ...${{ id, current: info.current_attempt_index, state, chosen: query.get("attempt"), choose: (attempt) => go({ attempt }) }} />`}
          ${tab === "steps" && html`<${Steps} ...${{ steps, open: step, history, children, forkFrom: actionsOf({ id, info, steps, refresh }).forkFrom }} />`}
          ${tab === "leases" && html`<${Leases} leases=${history.leases} />`}
          ${tab === "waits" && html`<${Waits} history=${history} />`}
          ${tab === "usage" && html`<${Usage} history=${history} />`}
          ${tab === "events" && html`<${Events} events=${eventsOf({ info, history, steps })} all=${{ id, info, history, steps, input, errors, explained, children }} />`}
          ${tab === "details" && html`<${Details} ...${{ info, history, input, explained }} />`}
        </div>
      </section>
      ${children.length > 0 && html`<${Relatives} title="Children" found=${children} all=${listHref({ parent: id })} />`}
      ${others.length > 0 && html`<${Relatives} title="Other members of its flow" found=${others} flow=${info.flow_id} />`}
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
