// Workers and lanes: who is alive, where work waits, and closing or opening a lane.
import { html } from "../dom.js";
import { useNamespace } from "../narrowing.js";
import { get } from "../api.js";
import { useLive } from "../live.js";
import { Live } from "../app.js";
import { everywhere, may } from "../session.js";
import { count, duration, words } from "../format.js";
import { listHref } from "../searchlinks.js";
import { Registry } from "../workers/registry.js";
import { Badge, Empty, Loading, Menu, Trouble } from "../parts.js";
import { confirm } from "../dialogs.js";
import { toast } from "../toasts.js";

const STATES = {
  active: ["Resume", "good", "play", "It accepts and starts executions."],
  paused: [
    "Pause",
    "warn",
    "pause",
    "New executions are accepted, but none start until the lane is resumed. Running ones continue.",
  ],
  draining: ["Drain", "active", "drain", "Waiting executions start and finish; new ones are refused."],
  disabled: ["Close", "bad", "stop", "New executions are refused and none start. Running ones continue."],
};

export default function Workers({ query }) {
  const own = useNamespace("workers", query);
  const { data, problem, refresh } = useLive(
    async () => {
      const [page, lanes, queues, load] = await Promise.all([
        get("v1/search/workers", { namespace: own, limit: 1_000 }),
        get("v1/lanes", { limit: 1_000 }),
        get("v1/queues", { namespace: own }),
        get("v1/workers/load", { namespace: own }),
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
        load,
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
              ? html`<${Empty} icon="executions">No lanes yet.</${Empty}>`
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
                            whole=${everywhere() && !own}
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
      <${Registry} workers=${data.workers} more=${data.more} load=${data.load} />
    </div>
  `;
}

function Lane({ lane, queue, workers, whole, refresh }) {
  const change = (state) => {
    const [label, , , consequence] = STATES[state];
    confirm({
      title: `${label} lane ${lane.lane_id}?`,
      label,
      danger: state === "disabled",
      consequence,
      fields: [{ name: "reason", label: "Reason", placeholder: "shown with the lane" }],
      act: async ({ reason }, own) => {
        await own.put(`v1/lanes/${encodeURIComponent(lane.lane_id)}/state`, { state, reason });
        toast(`Lane ${lane.lane_id} is ${state}.`);
        refresh();
      },
    });
  };
  return html`
    <tr data-lane=${lane.lane_id}>
      <td>
        <a href=${listHref({ lane: lane.lane_id })}><strong>${lane.lane_id}</strong></a>
      </td>
      <td>
        <${Badge} tone=${STATES[lane.state]?.[1]}>${words(lane.state)}</${Badge}>
        ${lane.state_reason ? html`<div class="tiny faint">${lane.state_reason}</div>` : null}
      </td>
      <td class="number" data-label="Waiting">${queue ? count(queue.waiting) : 0}</td>
      <td class="number soft" data-label="Oldest">${queue ? duration(queue.oldest_age_ms) : "–"}</td>
      <td class="number" data-label="Workers">
        ${
          workers
            ? count(workers)
            : queue && whole
              ? html`<${Badge} tone="warn">none</${Badge}>`
              : 0
        }
      </td>
      <td class="soft" data-label="Shared by">${lane.fair_by || "–"}</td>
      <td class="actions">
        ${
          may("set_lane_state") &&
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
