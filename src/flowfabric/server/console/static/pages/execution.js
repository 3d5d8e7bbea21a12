// One execution: where it is and why, what it went through, what it was given and gave, what it emits, what can be done.
import { html, useEffect, useMemo, useRef, useState } from "../dom.js";
import { at, bytes, get, post, put } from "../api.js";
import { follow, useLive } from "../live.js";
import { Live } from "../app.js";
import { may } from "../session.js";
import { amount, duration, fromBase64, moment, plural, relative, shortId, size, time, words } from "../format.js";
import { Badge, Bytes, confirm, Copy, Empty, ended, ExecutionLink, Json, Loading, Menu, Tabs, toast, Trouble, When } from "../parts.js";
import { eventsOf, holder, LEASE_ENDS, leaseEnd, Timeline } from "../timeline.js";
import { Icon } from "../icons.js";

const FRAMES = 2_000;
const SIGNS = { active: "play", completed: "check", failed: "warn", expired: "warn", cancelled: "stop", skipped: "stop" };

async function load(id) {
  const info = await get(at(id));
  const [explained, history, steps, members] = await Promise.all([
    get(at(id, "explain")), get(at(id, "history")), get(at(id, "steps"), { limit: 1_000 }),
    info.flow_id ? get(`v1/flows/${info.flow_id}/members`, { limit: 200 }).catch(() => null) : null,
  ]);
  return { info, explained, history, steps: steps.steps, members: members?.executions || [] };
}

export default function Execution({ id, query }) {
  const { data, problem, refresh } = useLive(() => load(id), [id], 3_000);
  const [tab, setTab] = useState(query.get("tab") || "data");
  const [step, setStep] = useState(null);
  const wanted = query.get("tab");
  useEffect(() => { if (wanted) setTab(wanted); }, [wanted]);
  const input = useInput(id);
  if (!data) {
    return html`<div class="page"><div class="page-head"><a class="button small" href="#/executions">Executions</a></div>
      ${problem ? html`<${Trouble} problem=${problem} />` : html`<${Loading} />`}</div>`;
  }
  const { info, explained, history, steps, members } = data;
  const children = members.filter((member) => member.execution_id !== id && isChild(input, member, id)).reverse();
  const state = info.public_state;
  const tabs = [
    ["data", "Input and result"], ["stream", "Stream"], ["steps", "Steps", steps.length], ["leases", "Leases", history.leases.length], ["waits", "Waits and signals", history.signals.length],
    ["usage", "Usage", history.spends.length], ["events", "Events"], ["details", "Details"],
  ];
  return html`<div class="page">
    <div class="page-head">
      <div class="grow">
        <div class="tiny faint"><a href="#/executions">Executions</a> / ${info.namespace}</div>
        <div class="line wraps"><h1 class="wrap-anywhere">${info.execution_kind === "$ask" ? "question" : info.execution_kind || "(no kind)"}</h1><${Badge} state=${state} /><${Live} /></div>
        <div class="line"><span class="mono small soft wrap-anywhere" data-id>${id}</span><${Copy} text=${id} label="Copy the id" /></div>
      </div>
      <div class="actions"><${Actions} ...${{ id, info, history, steps, refresh }} /></div>
    </div>
    <${Trouble} problem=${problem} />
    <p class="sentence" data-tone=${state} data-why><${Icon} name=${SIGNS[state] || "clock"} />
      <span><strong>${history.failure_reason ? explained.sentence.replace(` (${history.failure_reason})`, "") : explained.sentence}</strong>${explained.until_ms ? html`<span class="soft"> Until ${moment(explained.until_ms)} (${relative(explained.until_ms)}).</span>` : null}
      ${history.failure_reason && html`<br />${ended(state) ? null : html`<span class="soft small">The last failure: </span>`}<span class="mono small wrap-anywhere" data-failure>${history.failure_reason}</span>`}</span></p>
    <section class="card"><header><h2>Timeline</h2><span class="soft small">${history.ended_at ? `took ${duration(history.ended_at - history.created_at)}` : `for ${duration(Date.now() - history.created_at)}`}${history.retry_count ? `, ${plural(history.retry_count, "retry", "retries")}` : ""}${history.lease_reclaim_count ? `, lost its worker ${history.lease_reclaim_count === 1 ? "once" : `${history.lease_reclaim_count} times`}` : ""}</span></header>
      <div class="body"><${Timeline} ...${{ info, history, steps, children, onStep: (number) => { setStep(number); setTab("steps"); } }} /></div></section>
    <section class="card"><div class="body"><dl class="facts">
      <div><dt>Lane</dt><dd>${info.lane_id}</dd></div>
      <div><dt>Priority</dt><dd>${info.priority}</dd></div>
      <div><dt>Created</dt><dd><${When} ms=${Number(info.created_at)} /></dd></div>
      <div><dt>Started</dt><dd><${When} ms=${Number(info.started_at)} /></dd></div>
      <div><dt>${history.ended_at ? "Ended" : "Deadline"}</dt><dd><${When} ms=${history.ended_at || history.deadline_at} /></dd></div>
      <div><dt>Attempt</dt><dd>${history.attempts.length ? info.current_attempt_index + 1 : "–"}</dd></div>
      ${info.flow_id && html`<div><dt>Flow</dt><dd><a class="mono" href=${`#/flows/${info.flow_id}`}>${shortId(info.flow_id)}</a></dd></div>`}
      ${history.parent && html`<div><dt>Started by</dt><dd><${ExecutionLink} id=${history.parent} /></dd></div>`}
      ${history.forked_from && html`<div><dt>Forked from</dt><dd><${ExecutionLink} id=${history.forked_from} /></dd></div>`}
    </dl></div></section>
    <section class="card">
      <${Tabs} label="About this execution" tabs=${tabs} value=${tab} onChange=${setTab} />
      <div class="body" role="tabpanel" aria-labelledby=${`tab-${tab}`}>
        ${tab === "data" && html`<${Data} ...${{ id, info, history, input }} />`}
        ${tab === "stream" && html`<${Stream} key=${info.current_attempt_index} ...${{ id, index: info.current_attempt_index, state }} />`}
        ${tab === "steps" && html`<${Steps} ...${{ id, steps, open: step, info }} />`}
        ${tab === "leases" && html`<${Leases} leases=${history.leases} />`}
        ${tab === "waits" && html`<${Waits} history=${history} />`}
        ${tab === "usage" && html`<${Usage} history=${history} />`}
        ${tab === "events" && html`<${Events} events=${eventsOf({ info, history, steps })} />`}
        ${tab === "details" && html`<${Details} ...${{ info, history, input, explained }} />`}
      </div>
    </section>
    ${children.length > 0 && html`<${Children} children=${children} />`}
  </div>`;
}

/** Whether a member of the same flow was started by this execution; a run's children carry its id in a tag of theirs. */
function isChild(input, member, id) {
  return !input?.tags?.["ff.run"] && member.execution_id !== id;
}

function useInput(id) {
  const [input, setInput] = useState(null);
  useEffect(() => {
    let gone = false;
    get(at(id, "input")).then((found) => { if (!gone) setInput(found); }, () => {});
    return () => { gone = true; };
  }, [id]);
  return input;
}

// -- what can be done ------------------------------------------------------------------------------------------------

function Actions({ id, info, history, steps, refresh }) {
  if (!may("operator")) return null;
  const over = ended(info.public_state);
  const done = (text) => { toast(text); refresh(); };
  const cancel = () => confirm({
    title: "Cancel this execution?", danger: true, label: "Cancel it",
    consequence: info.public_state === "active" ? "Its worker is told and loses the lease at once; what it does afterwards does not count." : "It ends where it is. What waits for it is skipped or goes on, as its edges say.",
    fields: [{ name: "reason", label: "Reason", placeholder: "for the record" }],
    act: async ({ reason }) => { await post(at(id, "cancel"), { reason }); done("Cancelled."); },
  });
  const replay = () => confirm({
    title: "Replay this execution?", label: "Replay it", consequence: "It runs again from its beginning, under the same id and with the same input. What it gave before is forgotten.",
    act: async () => { await post(at(id, "replay")); done("It runs again."); },
  });
  const fork = () => confirm({
    title: "Fork this execution?", label: "Fork it", consequence: "A new execution begins with what this one remembers from before the step, and goes on from there. This one stays as it is.",
    fields: [{ name: "step", label: "From step", value: steps[0]?.name ?? "", options: [...steps.map((step) => [step.name, `${step.sequence}. ${step.name}`]), ["", "Behind the last one"]] }],
    act: async ({ step }) => {
      const made = await post(at(id, "fork"), step ? { at: step } : {});
      toast(`Forked with ${plural(made.steps, "step")} remembered.`);
      location.hash = `#/executions/${encodeURIComponent(made.execution_id)}`;
    },
  });
  const priority = () => confirm({
    title: "Change its priority?", label: "Change it", consequence: "Higher goes first among those that wait in its lane. It does not stop anything that runs.",
    fields: [{ name: "priority", label: "Priority", type: "number", required: true, value: String(info.priority) }],
    act: async ({ priority: value }) => { await put(at(id, "priority"), { new_priority: Number(value) }); done("The priority is changed."); },
  });
  const revoke = () => confirm({
    title: "Revoke its lease?", danger: true, label: "Revoke it", consequence: "Its worker may write nothing more for it, and another worker takes it over. Use this when a worker hangs.",
    act: async () => { await post(at(id, "revoke-lease")); done("The lease is revoked."); },
  });
  const holds = history.attempts.some((attempt) => attempt.lease_expires_at);
  return html`
    ${!over && html`<button type="button" class="button danger" onClick=${cancel}><${Icon} name="stop" />Cancel…</button>`}
    ${over && html`<button type="button" class="button" onClick=${replay} disabled=${info.public_state === "cancelled"} title=${info.public_state === "cancelled" ? "What was cancelled stays so; start it anew, or fork it from a step." : ""}><${Icon} name="replay" />Replay…</button>`}
    <${Menu} label="More" items=${[
      { label: "Fork from a step…", icon: "fork", act: fork, disabled: steps.length ? "" : "It remembers no steps." },
      { label: "Change priority…", icon: "priority", act: priority, disabled: ["waiting", "delayed", "rate_limited"].includes(info.public_state) ? "" : "Only what waits has a place in its lane." },
      { label: "Revoke lease…", icon: "revoke", danger: true, act: revoke, disabled: holds ? "" : "Nobody holds it." },
    ]} />`;
}

// -- what it was given, gave and emits -------------------------------------------------------------------------------

function Data({ id, info, history, input }) {
  const [result, setResult] = useState(null);
  const [summary, setSummary] = useState(null);
  const state = info.public_state, index = info.current_attempt_index;
  useEffect(() => {
    let gone = false;
    setResult(null);
    if (state === "completed") bytes(at(id, "result")).then((found) => { if (!gone) setResult(found); }, () => {});
    return () => { gone = true; };
  }, [id, state, index]);
  useEffect(() => {
    if (!history.has_summary) return;
    get(at(id, "attempts", index, "summary")).then(setSummary, () => {});
  }, [history]);
  return html`<div class="grid">
    <div class="half stack tight"><h3>Input</h3>${input ? html`<${Bytes} data=${fromBase64(input.payload)} label="Input" nothing="It was given nothing." />` : html`<${Loading} />`}</div>
    <div class="half stack tight"><h3>Result</h3>
      ${state === "completed" ? html`<${Bytes} data=${result} label="Result" nothing="It gave nothing." />`
        : history.failure_reason ? html`<div class="value-box problem" tabindex="0" role="region" aria-label="Failure">${history.failure_reason}</div>`
        : html`<p class="soft small">${ended(state) ? `It ${words(state)} without a result.` : "Not yet."}</p>`}</div>
    ${summary && html`<div class="stack tight"><h3>Rolling summary</h3><${Json} value=${summaryOf(summary)} label="Rolling summary" /><span class="tiny faint">version ${summary.version}, <${When} ms=${summary.last_updated_ms} /></span></div>`}
  </div>`;
}

function summaryOf(summary) {
  const text = summary.document_json ?? summary.document;
  if (typeof text !== "string") return text;
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

/** A frame's text: what people emitted, whatever its spelling. */
export function frameText(fields) {
  const payload = fields.payload ?? "";
  if (fields.encoding !== "base64") return payload;
  return new TextDecoder().decode(fromBase64(payload));
}

function Stream({ id, index, state }) {
  const [frames, setFrames] = useState([]);
  const [status, setStatus] = useState("connecting");
  const [closed, setClosed] = useState(null);
  const box = useRef(null);
  const pending = useRef([]);
  useEffect(() => {
    let scheduled = false;
    const flush = () => {
      scheduled = false;
      const arrived = pending.current;
      pending.current = [];
      setFrames((old) => [...old, ...arrived].slice(-FRAMES));
    };
    const stop = follow(at(id, "attempts", index, "stream", "events"), {
      onState: setStatus,
      onEvent: (name, data) => {
        if (name === "closed") {
          setClosed(data);
          stop();
        } else if (name === "frame") {
          pending.current.push(data);
          if (!scheduled) {
            scheduled = true;
            requestAnimationFrame(flush);
          }
        }
      },
    });
    return () => stop();
  }, [id, index]);
  useEffect(() => {
    const element = box.current;
    if (element && element.scrollHeight - element.scrollTop - element.clientHeight < 120) element.scrollTop = element.scrollHeight;
  }, [frames]);
  return html`<div class="stack tight">
    <div class="line wide"><span class="soft small">${plural(frames.length, "frame")} of attempt ${index + 1}${closed ? `, closed: ${words(closed.closed_reason)}` : ""}</span>
      ${!closed && !ended(state) && html`<span class="live" data-live=${status}>${status === "live" ? "Following" : words(status)}</span>`}</div>
    ${frames.length ? html`<div class="stream" ref=${box} tabindex="0" role="log" aria-label="Stream">${frames.map((frame) => html`<${Frame} key=${frame.id} frame=${frame} />`)}${!closed && !ended(state) && html`<span class="cursor-block"></span>`}</div>`
      : html`<${Empty} icon="executions">Nothing was emitted${ended(state) ? "" : " yet"}.</${Empty}>`}
  </div>`;
}

function Frame({ frame }) {
  const { frame_type: kind } = frame.fields;
  return html`<span class=${kind === "stderr" ? "stderr" : kind === "event" ? "event" : ""} title=${time(Number(frame.fields.ts))}>${frameText(frame.fields)}</span>`;
}

// -- steps, waits, usage, events -------------------------------------------------------------------------------------

function Steps({ id, steps, open, info }) {
  if (!steps.length) return html`<${Empty} icon="executions">It remembers no steps.<span class="small faint">Durable functions do; tasks have attempts only.</span></${Empty}>`;
  const fork = (step) => confirm({
    title: `Fork from step ${step.sequence}?`, label: "Fork it", consequence: `A new execution of ${info.execution_kind} remembers the ${plural(step.sequence - 1, "step")} before ${step.name} and goes on from there. This one stays as it is.`,
    act: async () => {
      const made = await post(at(id, "fork"), { at: step.name });
      toast(`Forked with ${plural(made.steps, "step")} remembered.`);
      location.hash = `#/executions/${encodeURIComponent(made.execution_id)}`;
    },
  });
  return html`<div class="steps-list">${steps.map((step) => html`
    <details class="step" key=${step.sequence} open=${open === step.sequence}>
      <summary><span class="faint number right">${step.sequence}</span><span class="clip">${step.name}</span><${Badge} tone=${step.outcome === "ok" ? "good" : "bad"}>${step.outcome}</${Badge}><span class="soft small number">${time(step.recorded_at)}</span></summary>
      <div class="inside"><${Bytes} data=${step.value ? fromBase64(step.value) : null} label=${`Value of ${step.name}`} nothing="It gave nothing." />
        ${step.value && step.size > fromBase64(step.value).length && html`<span class="tiny faint">The beginning of ${size(step.size)}.</span>`}
        ${may("operator") && html`<div><button type="button" class="button small" onClick=${() => fork(step)}><${Icon} name="fork" />Fork from here…</button></div>`}</div>
    </details>`)}</div>`;
}

function Leases({ leases }) {
  if (!leases.length) return html`<${Empty} icon="workers">No worker has held it yet.</${Empty}>`;
  return html`<div class="table-wrap"><table class="table stacked"><thead><tr><th scope="col">Worker</th><th scope="col" class="number">Attempt</th><th scope="col">From</th><th scope="col">Until</th><th scope="col" class="number">For</th><th scope="col">How it ended</th></tr></thead>
    <tbody>${leases.map((lease, index) => html`<tr key=${index} data-lease><td class="wrap-anywhere">${holder(lease)}</td><td class="number" data-label="Attempt">${lease.attempt_index + 1}</td><td class="soft" data-label="From"><time title=${moment(lease.began_at)}>${time(lease.began_at)}</time></td>
      <td class="soft" data-label="Until">${lease.ended_at ? html`<time title=${moment(lease.ended_at)}>${time(lease.ended_at)}</time>` : html`<span title=${moment(lease.expires_at)}>renewed until ${time(lease.expires_at)}</span>`}</td>
      <td class="number soft" data-label="For">${duration((lease.ended_at ?? Date.now()) - lease.began_at)}</td><td class="wrap-anywhere">${lease.ended ? html`<${Badge} tone=${LEASE_ENDS[lease.ended]?.[0]}>${leaseEnd(lease)}</${Badge}>` : html`<${Badge} tone="active">held</${Badge}>`}</td></tr>`)}</tbody></table></div>`;
}

function Waits({ history }) {
  if (!history.waitpoints.length && !history.signals.length) return html`<${Empty} icon="clock">It has never waited for a signal.</${Empty}>`;
  return html`<div class="stack">
    ${history.waitpoints.length > 0 && html`<div class="table-wrap"><table class="table"><thead><tr><th scope="col">Waitpoint</th><th scope="col">State</th><th scope="col">Made</th><th scope="col">Expires</th><th scope="col" class="number">Signals</th></tr></thead>
      <tbody>${history.waitpoints.map((each) => html`<tr key=${each.waitpoint_id}><td>${each.waitpoint_key || html`<span class="mono">${shortId(each.waitpoint_id)}</span>`}</td><td>${words(each.state)}</td><td><${When} ms=${each.created_at} /></td><td><${When} ms=${each.expires_at} /></td><td class="number">${each.signal_count}</td></tr>`)}</tbody></table></div>`}
    ${history.signals.length > 0 && html`<div class="stack tight"><h3>Signals</h3>${history.signals.map((signal) => html`
      <details class="step" key=${signal.signal_id}><summary><span></span><span class="clip"><strong>${signal.signal_name}</strong> <span class="soft">for ${signal.waitpoint_key}</span></span><span class="soft small">${signal.source_identity || signal.source_type}</span><span class="soft small">${time(signal.accepted_at)}</span></summary>
        <div class="inside"><span class="soft small">${words(signal.effect)}</span><${Bytes} data=${signal.payload ? fromBase64(signal.payload) : null} label="Payload" nothing="Without a payload." /></div></details>`)}</div>`}
  </div>`;
}

function Usage({ history }) {
  if (!history.spends.length && !history.budget_ids.length && !history.quota_policy_id) return html`<${Empty} icon="budgets">It is charged to no budget.</${Empty}>`;
  return html`<div class="stack tight">
    ${history.spends.length > 0 && html`<div class="table-wrap"><table class="table"><thead><tr><th scope="col">Budget</th><th scope="col">Dimension</th><th scope="col" class="number">Spent</th></tr></thead><tbody>
      ${history.spends.map((each) => html`<tr key=${each.budget_id + each.dimension}><td><a class="mono" href=${`#/budgets/${each.budget_id}`}>${shortId(each.budget_id)}</a></td><td>${each.dimension}</td><td class="number">${amount(each.dimension, each.amount)}</td></tr>`)}</tbody></table></div>`}
    ${history.budget_ids.length > 0 && html`<p class="soft small">Must fit ${history.budget_ids.map((id, index) => html`${index ? ", " : ""}<a class="mono" href=${`#/budgets/${id}`}>${shortId(id)}</a>`)}.</p>`}
    ${history.quota_policy_id && html`<p class="soft small">Admitted by quota <span class="mono">${shortId(history.quota_policy_id)}</span>.</p>`}
  </div>`;
}

const Events = ({ events }) => html`<div class="events">${events.map((event, index) => html`
  <div class="when" key=${`w${index}`}><time title=${moment(event.at)}>${time(event.at)}</time></div><div class="what" key=${`e${index}`} data-tone=${event.tone}>${event.text}</div>`)}</div>`;

function Details({ info, history, input, explained }) {
  const policy = useMemo(() => {
    try {
      return history.policy ? JSON.parse(history.policy) : null;
    } catch {
      return history.policy;
    }
  }, [history.policy]);
  const tags = Object.entries(input?.tags || {});
  return html`<div class="grid">
    <div class="half stack tight"><h3>Tags</h3>${tags.length ? html`<div class="people">${tags.map(([key, value]) => html`<a class="badge plain" key=${key} data-tone="accent" href=${`#/executions?q=${encodeURIComponent(`tag:${key}=${value}`)}`}>${key}=${value}</a>`)}</div>` : html`<p class="soft small">None.</p>`}
      <h3>State</h3><${Json} value=${info.state_vector} label="State vector" />
      ${explained.detail && html`<h3>What it stands before</h3><${Json} value=${explained.detail} label="Detail" />`}</div>
    <div class="half stack tight"><h3>Policy</h3>${policy ? html`<${Json} value=${policy} label="Policy" />` : html`<p class="soft small">None of its own.</p>`}
      ${history.required_capabilities.length > 0 && html`<h3>Needs</h3><div class="people">${history.required_capabilities.map((each) => html`<span class="badge plain" key=${each}>${each}</span>`)}</div>`}</div>
  </div>`;
}

function Children({ children }) {
  return html`<section class="card"><header><h2>In the same flow</h2><span class="count">${children.length}</span></header><div class="body flush table-wrap"><table class="table">
    <thead><tr><th scope="col">State</th><th scope="col">Execution</th><th scope="col">Lane</th><th scope="col">Created</th><th scope="col" class="number">Took</th></tr></thead>
    <tbody>${children.slice(0, 100).map((each) => html`<tr key=${each.execution_id}><td><${Badge} state=${each.public_state} /></td><td><a href=${`#/executions/${encodeURIComponent(each.execution_id)}`}>${each.execution_kind === "$ask" ? "question" : each.execution_kind || "(no kind)"}</a> <span class="mono faint">${shortId(each.execution_id)}</span></td><td class="soft">${each.lane_id}</td><td class="soft"><${When} ms=${each.created_at} /></td><td class="number soft">${each.started_at ? duration((each.completed_at ?? Date.now()) - each.started_at) : "–"}</td></tr>`)}</tbody></table></div></section>`;
}
