// Flows: the list of them, and one of them as a graph that changes as it runs.
import { html, useEffect, useMemo, useState, useValue } from "../dom.js";
import { get, post } from "../api.js";
import { useLive } from "../live.js";
import { Live } from "../app.js";
import { may, namespace } from "../session.js";
import { duration, exact, plural, shortId, words } from "../format.js";
import { Absent, Badge, Copy, Empty, ended, Loading, Trouble, When } from "../parts.js";
import { confirm } from "../dialogs.js";
import { toast } from "../toasts.js";
import { Graph, groupText } from "../graph.js";
import { Icon } from "../icons.js";

const TONES = {
  open: "active",
  running: "active",
  blocked: "warn",
  cancelled: "cancelled",
  completed: "completed",
  failed: "failed",
  created: "waiting",
};
const ROWS = 200;

export default function Flows({ id, query }) {
  return id
    ? html`<${Flow} key=${id} id=${id} />`
    : html`<${List} query=${query} />`;
}

function List() {
  const own = useValue(namespace);
  const [kind, setKind] = useState("");
  const [pages, setPages] = useState(1);
  const { data, problem } = useLive(async () => {
    let flows = [];
    let cursor;
    for (let page = 0; page < pages; page += 1) {
      const found = await get("v1/search/flows", { namespace: own, kind: kind.trim(), limit: 100, cursor });
      flows = flows.concat(found.flows);
      cursor = found.next_cursor;
      if (cursor === null) break;
    }
    return { flows, more: cursor !== null };
  }, [own, kind, pages]);
  return html`
    <div class="page">
      <div class="page-head">
        <h1>Flows</h1>
        <${Live} />
      </div>
      <div class="search">
        <${Icon} name="search" />
        <label class="visually-hidden" for="flow-kind">Kind of flow</label>
        <input
          id="flow-kind"
          data-search
          class="input"
          placeholder="A kind of flow"
          value=${kind}
          onInput=${(event) => setKind(event.target.value)}
          autocomplete="off"
        />
      </div>
      <${Trouble} problem=${problem} />
      <section class="card">
        <div class="body flush table-wrap">
          ${
            !data
              ? html`<${Loading} />`
              : !data.flows.length
                ? html`
                    <${Empty} icon="flows">
                      There are no flows here.
                      <span class="small faint">Workflows that start others make one, and so does submit_flow.</span>
                    </${Empty}>
                  `
                : html`
                    <table class="table stacked badged">
                      <thead>
                        <tr>
                          <th scope="col">State</th>
                          <th scope="col">Flow</th>
                          <th scope="col">Namespace</th>
                          <th scope="col" class="number">Members</th>
                          <th scope="col">Created</th>
                          <th scope="col" class="number">Took</th>
                        </tr>
                      </thead>
                      <tbody>
                        ${data.flows.map(
                          (flow) => html`
                            <tr key=${flow.flow_id}>
                              <td>
                                <${Badge} tone=${TONES[flow.public_flow_state] || "waiting"}>
                                  ${words(flow.public_flow_state)}
                                </${Badge}>
                              </td>
                              <td>
                                <a href=${`#/flows/${flow.flow_id}`}>${flow.flow_kind || "(no kind)"}</a>
                                ${" "}
                                <span class="mono faint">${shortId(flow.flow_id)}</span>
                              </td>
                              <td class="soft" data-label="Namespace">${flow.namespace}</td>
                              <td class="number" data-label="Members">${exact(flow.node_count)}</td>
                              <td class="soft" data-label="Created"><${When} ms=${flow.created_at} /></td>
                              <td class="number soft" data-label="Took">
                                ${flow.ended_at ? duration(flow.ended_at - flow.created_at) : "–"}
                              </td>
                            </tr>
                          `,
                        )}
                      </tbody>
                    </table>
                  `
          }
        </div>
      </section>
      ${
        data?.more &&
        html`<div><button type="button" class="button" onClick=${() => setPages(pages + 1)}>More</button></div>`
      }
    </div>
  `;
}

async function members(id) {
  let found = [];
  let cursor;
  do {
    const page = await get(`v1/flows/${id}/members`, { limit: 1_000, cursor });
    found = found.concat(page.executions);
    cursor = page.next_cursor;
  } while (cursor !== null && found.length < 20_000);
  return found.reverse();
}

function Flow({ id }) {
  const { data, problem, refresh } = useLive(
    async () => {
      const [flow, nodes] = await Promise.all([get(`v1/flows/${id}`), members(id)]);
      return { flow, nodes };
    },
    [id],
    4_000,
  );
  const [graph, setGraph] = useState({ revision: -1, edges: [] });
  const revision = data?.flow.graph_revision ?? -1;
  useEffect(() => {
    if (revision < 0) return;
    get(`v1/flows/${id}/graph`).then(
      (found) =>
        setGraph({
          revision,
          edges: found.edges.map((edge) => ({
            from: edge.upstream_execution_id,
            to: edge.downstream_execution_id,
            state: edge.edge_state,
          })),
        }),
      () => {},
    );
  }, [id, revision]);
  const groups = useMemo(
    () => new Map((data?.flow.edge_groups || []).map((group) => [group.downstream_execution_id, group])),
    [data],
  );
  const [text, setText] = useState("");
  const [chosen, setChosen] = useState(null);
  if (!data)
    return html`<${Absent} problem=${problem} what="flow" all="Flows" href="#/flows" />`;
  const { flow, nodes } = data;
  const counts = new Map();
  for (const node of nodes) counts.set(node.public_state, (counts.get(node.public_state) || 0) + 1);
  const fits = nodes.filter(
    (node) => !text || `${node.execution_kind} ${node.execution_id} ${node.public_state}`.includes(text),
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
            <h1 class="wrap-anywhere">${flow.flow_kind || "(no kind)"}</h1>
            <${Badge} tone=${TONES[flow.public_flow_state] || "waiting"}>${words(flow.public_flow_state)}</${Badge}>
            <${Live} />
          </div>
          <div class="line">
            <span class="mono small soft">${id}</span>
            <${Copy} text=${id} label="Copy the id" />
          </div>
        </div>
        ${
          may("operator") &&
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
        <span class="soft small">${plural(nodes.length, "member")}, ${plural(flow.edge_count, "edge")}</span>
      </div>
      <section class="card">
        <header>
          <h2>Graph</h2>
          <div class="search">
            <${Icon} name="search" />
            <label class="visually-hidden" for="member">Find a member</label>
            <input
              id="member"
              data-search
              class="input"
              placeholder="Find a member"
              value=${text}
              onInput=${(event) => {
                setText(event.target.value);
                setChosen(null);
              }}
              autocomplete="off"
            />
          </div>
        </header>
        ${
          graph.revision < 0
            ? html`<${Loading} />`
            : html`
                <${Graph}
                  members=${nodes}
                  edges=${graph.edges}
                  groups=${groups}
                  found=${chosen || (text && fits[0]?.execution_id)}
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
                <th scope="col">Waits for</th>
                <th scope="col">Created</th>
                <th scope="col" class="number">Took</th>
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
                        ${node.execution_kind || "(no kind)"}
                      </a>
                      ${" "}
                      <span class="mono faint">${shortId(node.execution_id)}</span>
                    </td>
                    <td class="soft" data-label="Waits for">
                      ${groups.has(node.execution_id) ? groupText(groups.get(node.execution_id)) : "–"}
                    </td>
                    <td class="soft" data-label="Created"><${When} ms=${node.created_at} /></td>
                    <td class="number soft" data-label="Took">
                      ${node.started_at && node.completed_at ? duration(node.completed_at - node.started_at) : "–"}
                    </td>
                    <td class="actions">
                      <button
                        type="button"
                        class="button quiet small"
                        onClick=${() => {
                          setChosen(node.execution_id);
                          document.querySelector(".graph")?.scrollIntoView({ block: "nearest" });
                        }}
                      >
                        Show
                      </button>
                    </td>
                  </tr>
                `,
              )}
            </tbody>
          </table>
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
  ["cancel_all", "Everything that has not ended"],
  ["cancel_pending", "Only what has not begun"],
  ["flow_only", "Nothing: only the flow itself"],
];

function cancel(id, nodes, refresh) {
  const open = nodes.filter((node) => !ended(node.public_state));
  const begun = open.filter((node) => node.public_state === "active" || node.public_state === "suspended").length;
  confirm({
    title: "Cancel this flow?",
    danger: true,
    label: "Cancel it",
    consequence: `Of ${plural(nodes.length, "member")}, ${exact(open.length)} have not ended: ${exact(begun)} have begun, ${exact(open.length - begun)} wait. No member begins any more.`,
    fields: [
      { name: "policy", label: "What is cancelled with it", value: "cancel_all", options: POLICIES },
      { name: "reason", label: "Reason", placeholder: "for the record" },
    ],
    act: async ({ policy, reason }) => {
      await post(`v1/flows/${id}/cancel`, { reason, cancellation_policy: policy });
      toast("The flow is cancelled.");
      refresh();
    },
  });
}
