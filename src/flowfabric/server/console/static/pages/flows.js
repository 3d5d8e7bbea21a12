// Flows: the list of them, and one of them, as a graph or as a workflow's tree, that changes as it runs.
import { html, useMemo, useRef } from "../dom.js";
import { at, get } from "../api.js";
import { useLive, useOnce } from "../live.js";
import { changed, rewrite } from "../narrowing.js";
import { Live } from "../app.js";
import { may } from "../session.js";
import { duration, exact, plural, shortId, words } from "../format.js";
import { Absent, Badge, Copy, Empty, ended, ExecutionLink, Loading, NoMatches, Trouble, visit, When } from "../parts.js";
import { confirm } from "../dialogs.js";
import { toast } from "../toasts.js";
import { Graph } from "../graph.js";
import { groupText } from "../graphtexts.js";
import { flowName, List, TONES } from "../flows/list.js";
import { Tree } from "../flows/tree.js";
import { childName } from "../execution/names.js";
import { Icon } from "../icons.js";

const ROWS = 200;

export default function Flows({ id, query }) {
  return id
    ? html`<${Flow} key=${id} id=${id} text=${query.get("q") || ""} chosen=${query.get("member")} />`
    : html`<${List} query=${query} />`;
}

async function members(id) {
  let found = [];
  let cursor;
  let line;
  do {
    const page = await get(`v1/flows/${id}/tree`, { limit: 1_000, cursor });
    found = found.concat(page.members);
    line = page.flow;
    cursor = page.next_cursor;
  } while (cursor !== null && found.length < 20_000);
  return { line, nodes: found.reverse() };
}

async function load(id) {
  const [flow, found] = await Promise.all([get(`v1/flows/${id}`), members(id)]);
  const { root } = found.line;
  const steps = root ? await get(at(root, "steps"), { limit: 1_000 }).catch(() => null) : null;
  return { flow: { ...flow, ...found.line }, nodes: found.nodes, steps: steps?.steps || [] };
}

/** The edges of a flow: {data, problem}. Those of its last revision are there until the next ones are. */
function useEdges(id, revision) {
  const last = useRef(null);
  const { data, problem } = useOnce(async () => {
    if (revision < 0) return null;
    const found = await get(`v1/flows/${id}/graph`);
    return found.edges.map((edge) => ({
      from: edge.upstream_execution_id,
      to: edge.downstream_execution_id,
      state: edge.edge_state,
    }));
  }, [id, revision]);
  last.current = data ?? last.current;
  return { data: last.current, problem };
}

function Flow({ id, text, chosen }) {
  const { data, problem, refresh } = useLive(() => load(id), [id], 4_000);
  const revision = data?.flow.graph_revision ?? -1;
  const edges = useEdges(id, revision);
  const groups = useMemo(
    () => new Map((data?.flow.edge_groups || []).map((group) => [group.downstream_execution_id, group])),
    [data],
  );
  if (!data)
    return html`<${Absent} problem=${problem} what="flow" all="Flows" href="#/flows" />`;
  const { flow, nodes, steps } = data;
  // What was submitted as a graph stays one, also without edges.
  const isTree = !flow.edge_count && (flow.flow_kind === "workflow" || nodes.some((node) => node.parent));
  const counts = new Map();
  for (const node of nodes) counts.set(node.public_state, (counts.get(node.public_state) || 0) + 1);
  const looked = text.trim().toLowerCase();
  const fits = nodes.filter((node) =>
    [childName(node), node.step, node.execution_kind, node.execution_id, words(node.public_state)]
      .some((each) => each?.toLowerCase().includes(looked)),
  );
  const open = nodes.filter((node) => !ended(node.public_state)).length;
  return html`
    <div class="page">
      <div class="page-head">
        <div class="grow">
          <div class="tiny faint">
            <a href="#/flows">Flows</a>
            ${" "}/ ${flow.namespace}
          </div>
          <div class="line wraps">
            <h1 class="wrap-anywhere">${flowName(flow)}</h1>
            <${Badge} tone=${TONES[flow.public_flow_state] || "waiting"}>${words(flow.public_flow_state)}</${Badge}>
            <${Live} />
          </div>
          ${flow.root_key && html`<div class="small wrap-anywhere" data-key>${flow.root_key}</div>`}
          <div class="line">
            <span class="mono small soft wrap-anywhere">${id}</span>
            <${Copy} text=${id} label="Copy the id" />
          </div>
        </div>
        ${
          may("cancel_flow") &&
          flow.cancelled_at === null &&
          open > 0 &&
          html`
            <div class="actions">
              <button type="button" class="button danger" onClick=${() => cancel(id, nodes, refresh)}>
                <${Icon} name="stop" />
                Cancel…
              </button>
            </div>
          `
        }
      </div>
      <${Trouble} problem=${problem} />
      ${
        flow.cancel_reason &&
        flow.public_flow_state === "cancelled" &&
        html`
          <p class="sentence" data-tone="cancelled">
            <${Icon} name="stop" />
            <span>Cancelled: ${flow.cancel_reason}</span>
          </p>
        `
      }
      <div class="chips">
        ${[...counts]
          .sort((a, b) => b[1] - a[1])
          .map(
            ([state, n]) => html`
              <span class="badge" key=${state} data-tone=${state}>${exact(n)} ${words(state)}</span>
            `,
          )}
        <span class="soft small">
          ${plural(nodes.length, "member")}${isTree ? null : `, ${plural(flow.edge_count, "edge")}`}
          ${
            flow.root &&
            html`
              , started by${" "}
              <${ExecutionLink} id=${flow.root} />
            `
          }
          ${flow.ended_at && `, took ${duration(flow.ended_at - flow.created_at)}`}
        </span>
      </div>
      <section class="card">
        <header>
          <h2>${isTree ? "Steps and children" : "Graph"}</h2>
          <div class="search">
            <${Icon} name="search" />
            <label class="visually-hidden" for="member">Find a member</label>
            <input
              id="member"
              data-search
              class="input"
              placeholder="Find a member"
              value=${text}
              onInput=${(event) => rewrite(changed({ q: event.target.value, member: "" }))}
              autocomplete="off"
            />
          </div>
        </header>
        ${
          isTree
            ? html`<div class="body"><${Tree} members=${nodes} steps=${steps} root=${flow.root} /></div>`
            : !edges.data
            ? edges.problem
              ? html`<${Trouble} problem=${edges.problem} />`
              : html`<${Loading} />`
            : html`
                <${Graph}
                  members=${nodes}
                  edges=${edges.data}
                  groups=${groups}
                  found=${chosen || (looked && fits[0]?.execution_id)}
                />
              `
        }
      </section>
      <section class="card">
        <header>
          <h2>Members</h2>
          <span class="count">${exact(fits.length)}</span>
        </header>
        <div class="body flush table-wrap">
          <table class="table stacked badged">
            <thead>
              <tr>
                <th scope="col">State</th>
                <th scope="col">Member</th>
                <th scope="col">Waiting for</th>
                <th scope="col">Created</th>
                <th scope="col" class="number">Duration</th>
                <th scope="col"></th>
              </tr>
            </thead>
            <tbody>
              ${fits.slice(0, ROWS).map(
                (node) => html`
                  <tr key=${node.execution_id}>
                    <td><${Badge} state=${node.public_state} /></td>
                    <td>
                      <a href=${`#/executions/${encodeURIComponent(node.execution_id)}`}>
                        ${childName(node)}
                      </a>
                      ${" "}
                      <span class="mono faint">${shortId(node.execution_id)}</span>
                    </td>
                    <td class="soft" data-label="Waiting for">
                      ${groups.has(node.execution_id) ? groupText(groups.get(node.execution_id)) : "–"}
                    </td>
                    <td class="soft" data-label="Created"><${When} ms=${node.created_at} /></td>
                    <td class="number soft" data-label="Duration">
                      ${node.started_at && node.completed_at ? duration(node.completed_at - node.started_at) : "–"}
                    </td>
                    <td class="actions">
                      ${
                        !isTree &&
                        html`
                      <button
                        type="button"
                        class="button quiet small"
                        onClick=${() => {
                          visit(changed({ member: node.execution_id }));
                          document.querySelector(".graph")?.scrollIntoView({ block: "nearest" });
                        }}
                      >
                        Show
                      </button>
                        `
                      }
                    </td>
                  </tr>
                `,
              )}
            </tbody>
          </table>
          ${!fits.length && html`<${Empty} icon="flows"><${NoMatches} all=${changed({ q: "", member: "" })} /></${Empty}>`}
          ${
            fits.length > ROWS &&
            html`<p class="loading">The first ${ROWS} of ${exact(fits.length)}. Search to find others.</p>`
          }
        </div>
      </section>
    </div>
  `;
}

const POLICIES = [
  ["cancel_all", "All executions that have not ended"],
  ["cancel_pending", "Only executions that have not started"],
  ["flow_only", "Nothing: only the flow itself"],
];

function cancel(id, nodes, refresh) {
  const open = nodes.filter((node) => !ended(node.public_state));
  const running = open.filter((node) => node.public_state === "active" || node.public_state === "suspended").length;
  confirm({
    title: "Cancel this flow?",
    about: id,
    danger: true,
    label: "Cancel",
    consequence: `Of ${plural(nodes.length, "member")}, ${exact(open.length)} have not ended: ${exact(running)} started, ${exact(open.length - running)} waiting. No new members start.`,
    fields: [
      { name: "policy", label: "Also cancel", value: "cancel_all", options: POLICIES },
      { name: "reason", label: "Reason", placeholder: "stored with the change" },
    ],
    act: async ({ policy, reason }, own) => {
      await own.post(`v1/flows/${id}/cancel`, { reason, cancellation_policy: policy });
      toast("Flow cancelled.");
      refresh();
    },
  });
}
