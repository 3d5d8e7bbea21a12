// Workers and lanes: who is alive, where work waits, and closing or opening a lane.
import { html, useValue } from "../dom.js";
import { get, put } from "../api.js";
import { useLive } from "../live.js";
import { Live } from "../app.js";
import { everywhere, may, namespace, now } from "../session.js";
import { count, duration, words } from "../format.js";
import { Badge, Empty, Loading, Menu, Trouble, When } from "../parts.js";
import { confirm } from "../dialogs.js";
import { toast } from "../toasts.js";

const STATES = {
  active: ["Open", "good", "play", "It takes new work and hands it out."],
  paused: [
    "Pause",
    "warn",
    "pause",
    "New work is still taken, but none of it is handed out until the lane is opened again. What runs goes on.",
  ],
  draining: ["Drain", "active", "drain", "What is there is handed out and finished; new work is refused."],
  disabled: ["Close", "bad", "stop", "New work is refused and nothing is handed out. What runs goes on."],
};

export default function Workers() {
  const own = useValue(namespace);
  const { data, problem, refresh } = useLive(
    async () => {
      const [page, lanes, queues] = await Promise.all([
        get("v1/search/workers", { namespace: own, limit: 1_000 }),
        get("v1/lanes", { limit: 1_000 }),
        everywhere() ? get("v1/queues") : { queues: [] },
      ]);
      const told = lanes.lanes.map((name, index) => ({
        lane_id: name,
        state: lanes.states[index],
        state_reason: lanes.reasons[index],
        fair_by: lanes.fair_by[index],
      }));
      return {
        workers: page.entries,
        more: page.cursor !== null,
        lanes: told,
        queues: new Map(queues.queues.map((queue) => [queue.lane_id, queue])),
      };
    },
    [own],
    4_000,
  );
  if (!data)
    return html`
      <div class="page">
        <div class="page-head"><h1>Workers and lanes</h1></div>
        ${problem ? html`<${Trouble} problem=${problem} />` : html`<${Loading} />`}
      </div>
    `;
  const serving = new Map();
  for (const worker of data.workers) for (const lane of worker.lanes) serving.set(lane, (serving.get(lane) || 0) + 1);
  return html`
    <div class="page">
      <div class="page-head">
        <h1>Workers and lanes</h1>
        <${Live} />
      </div>
      <${Trouble} problem=${problem} />
      <section class="card">
        <header>
          <h2>Lanes</h2>
          <span class="count">${data.lanes.length}</span>
        </header>
        <div class="body flush table-wrap">
          ${
            !data.lanes.length
              ? html`<${Empty} icon="executions">No lane was used yet.</${Empty}>`
              : html`
                  <table class="table stacked">
                    <thead>
                      <tr>
                        <th scope="col">Lane</th>
                        <th scope="col">State</th>
                        <th scope="col" class="number">Waiting</th>
                        <th scope="col" class="number">Oldest</th>
                        <th scope="col" class="number">Workers</th>
                        <th scope="col">Shared by</th>
                        <th scope="col"><span class="visually-hidden">Actions</span></th>
                      </tr>
                    </thead>
                    <tbody>
                      ${data.lanes.map(
                        (lane) => html`
                          <${Lane}
                            key=${lane.lane_id}
                            lane=${lane}
                            queue=${data.queues.get(lane.lane_id)}
                            workers=${serving.get(lane.lane_id) || 0}
                            refresh=${refresh}
                          />
                        `,
                      )}
                    </tbody>
                  </table>
                `
          }
        </div>
      </section>
      <section class="card">
        <header>
          <h2>Workers</h2>
          <span class="count">${data.workers.length}${data.more ? " or more" : ""}</span>
        </header>
        <div class="body flush table-wrap">
          ${
            !data.workers.length
              ? html`
                  <${Empty} icon="workers">
                    No worker is registered and alive.
                    <span class="small faint">Start one with flowfabric worker module:app.</span>
                  </${Empty}>
                `
              : html`
                  <table class="table stacked">
                    <thead>
                      <tr>
                        <th scope="col">Worker</th>
                        <th scope="col">Namespace</th>
                        <th scope="col">Lanes</th>
                        <th scope="col">Can do</th>
                        <th scope="col">Last heard</th>
                        <th scope="col">Since</th>
                      </tr>
                    </thead>
                    <tbody>
                      ${data.workers.map(
                        (worker) => html`
                          <tr key=${worker.namespace + worker.worker_instance_id}>
                            <td>
                              <strong>${worker.worker_id}</strong>
                              <div class="tiny faint mono">${worker.worker_instance_id}</div>
                            </td>
                            <td class="soft" data-label="Namespace">${worker.namespace}</td>
                            <td data-label="Lanes">
                              <div class="people">
                                ${worker.lanes.map(
                                  (lane) => html`<span class="badge plain" key=${lane}>${lane}</span>`,
                                )}
                              </div>
                            </td>
                            <td data-label="Can do">
                              <div class="people">
                                ${worker.capabilities.length ? null : "–"}${worker.capabilities.map(
                                  (each) => html`
                                    <span class="badge plain" key=${each} data-tone="accent">${each}</span>
                                  `,
                                )}
                              </div>
                            </td>
                            <td data-label="Last heard">
                              ${
                                now() - worker.last_heartbeat_ms > worker.liveness_ttl_ms / 2
                                  ? html`<${Badge} tone="warn"><${When} ms=${worker.last_heartbeat_ms} /></${Badge}>`
                                  : html`<${When} ms=${worker.last_heartbeat_ms} />`
                              }
                            </td>
                            <td class="soft" data-label="Since"><${When} ms=${worker.registered_at_ms} /></td>
                          </tr>
                        `,
                      )}
                    </tbody>
                  </table>
                `
          }
        </div>
      </section>
    </div>
  `;
}

function Lane({ lane, queue, workers, refresh }) {
  const change = (state) => {
    const [label, , , consequence] = STATES[state];
    confirm({
      title: `${label} lane ${lane.lane_id}?`,
      label: `${label} it`,
      danger: state === "disabled",
      consequence,
      fields: [{ name: "reason", label: "Reason", placeholder: "shown to whoever wonders" }],
      act: async ({ reason }) => {
        await put(`v1/lanes/${encodeURIComponent(lane.lane_id)}/state`, { state, reason });
        toast(`Lane ${lane.lane_id} is ${state}.`);
        refresh();
      },
    });
  };
  return html`
    <tr data-lane=${lane.lane_id}>
      <td>
        <a href=${`#/executions?q=${encodeURIComponent(`lane:${lane.lane_id}`)}`}><strong>${lane.lane_id}</strong></a>
      </td>
      <td>
        <${Badge} tone=${STATES[lane.state]?.[1]}>${words(lane.state)}</${Badge}>
        ${lane.state_reason ? html`<div class="tiny faint">${lane.state_reason}</div>` : null}
      </td>
      <td class="number" data-label="Waiting">${queue ? count(queue.waiting) : everywhere() ? 0 : "–"}</td>
      <td class="number soft" data-label="Oldest">${queue ? duration(queue.oldest_age_ms) : "–"}</td>
      <td class="number" data-label="Workers">
        ${
          workers
            ? count(workers)
            : queue
              ? html`<${Badge} tone="warn">none</${Badge}>`
              : 0
        }
      </td>
      <td class="soft" data-label="Shared by">${lane.fair_by || "–"}</td>
      <td class="actions">
        ${
          may("operator") &&
          everywhere() &&
          html`
            <${Menu}
              label="Change"
              items=${Object.entries(STATES)
                .filter(([state]) => state !== lane.state)
                .map(([state, [label, , icon]]) => ({
                  label: `${label}…`,
                  icon,
                  danger: state === "disabled",
                  act: () => change(state),
                }))}
            />
          `
        }
      </td>
    </tr>
  `;
}
