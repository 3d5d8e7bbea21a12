// The list of flows: what each one is about, how far it is, how long it took.
import { html } from "../dom.js";
import { get } from "../api.js";
import { usePages } from "../live.js";
import { changed, narrowed, rewrite, useNamespace } from "../narrowing.js";
import { Live } from "../app.js";
import { duration, exact, plural, shortId, words } from "../format.js";
import { Badge, Empty, Loading, NoMatches, Total, Trouble, When } from "../parts.js";
import { Icon } from "../icons.js";

/** Every state that a flow can be in, and its colour. */
export const TONES = {
  open: "waiting",
  running: "active",
  blocked: "suspended",
  completed: "completed",
  failed: "failed",
  cancelled: "cancelled",
};

/** A workflow's flow is called as its root is, with its key. */
export const flowName = (flow) => flow.root_kind || flow.flow_kind || "(no kind)";

export function List({ query }) {
  const own = useNamespace("flows", query);
  const kind = query.get("kind") || "";
  const state = TONES[query.get("state")] ? query.get("state") : "";
  const { data, problem, more } = usePages(async (cursor) => {
    const query = { namespace: own, kind: kind.trim(), state, limit: 100, cursor };
    const { flows, next_cursor: next } = await get("v1/search/flows", query);
    return { rows: flows, next };
  }, [own, kind, state]);
  return html`
    <div class="page">
      <div class="page-head">
        <h1>Flows</h1>
        <${Live} />
        ${data && html`<${Total} text=${plural(data.rows.length, "flow")} more=${data.more} />`}
      </div>
      <div class="search">
        <${Icon} name="search" />
        <label class="visually-hidden" for="flow-kind">Kind of flow</label>
        <input
          id="flow-kind"
          data-search
          class="input"
          placeholder="Kind of flow"
          value=${kind}
          onInput=${(event) => rewrite(changed({ kind: event.target.value }))}
          autocomplete="off"
        />
      </div>
      <div class="chips" role="group" aria-label="State">
        ${["", ...Object.keys(TONES)].map(
          (each) => html`
            <a
              key=${each}
              class="chip"
              data-state=${each}
              aria-current=${each === state ? "true" : null}
              href=${narrowed("flows", { kind, state: each, ns: own })}
            >
              ${each || "all"}
            </a>
          `,
        )}
      </div>
      <${Trouble} problem=${problem} />
      <section class="card">
        <div class="body flush table-wrap">
          ${
            !data
              ? html`<${Loading} />`
              : !data.rows.length
                ? html`
                    <${Empty} icon="flows">
                      ${
                        kind || state
                          ? html`<${NoMatches} all=${narrowed("flows", { ns: own })} among=${data.more && "flows"} />`
                          : html`
                              No flows.
                              <span class="small faint">
                                Workflows that start others create flows, and so does submit_flow.
                              </span>
                            `
                      }
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
                          <th scope="col" class="number">Duration</th>
                        </tr>
                      </thead>
                      <tbody>
                        ${data.rows.map(
                          (flow) => html`
                            <tr key=${flow.flow_id}>
                              <td>
                                <${Badge} tone=${TONES[flow.public_flow_state] || "waiting"}>
                                  ${words(flow.public_flow_state)}
                                </${Badge}>
                              </td>
                              <td>
                                <a href=${`#/flows/${flow.flow_id}`}>${flowName(flow)}</a>
                                ${" "}
                                ${flow.root_key && html`<span class="soft" data-key>${flow.root_key}${" "}</span>`}
                                <span class="mono faint">${shortId(flow.flow_id)}</span>
                              </td>
                              <td class="soft" data-label="Namespace">${flow.namespace}</td>
                              <td class="number" data-label="Members">${exact(flow.node_count)}</td>
                              <td class="soft" data-label="Created"><${When} ms=${flow.created_at} /></td>
                              <td class="number soft" data-label="Duration">
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
        html`<div><button type="button" class="button" onClick=${more}>More</button></div>`
      }
    </div>
  `;
}

