// Worker processes: alive ones with their load, and those that have gone, for a while.
import { html } from "../dom.js";
import { now } from "../session.js";
import { count, duration, exact } from "../format.js";
import { listHref } from "../searchlinks.js";
import { Badge, Copy, Empty, Meter, When } from "../parts.js";

/** The list of what a worker runs, or ran. */
export const workerHref = (instance) => listHref({ worker: instance });

// Names of instances are anybody's, so nothing that every object has may count.
const heldBy = (load, { worker_instance_id: own }) => (Object.hasOwn(load.held, own) ? load.held[own] : 0);

const Names = ({ names, tone }) => html`
  <div class="people">
    ${names.length ? null : "–"}${names.map((each) => html`<span class="badge plain" key=${each} data-tone=${tone}>${each}</span>`)}
  </div>
`;

const Name = ({ worker }) => html`
  <td>
    <a href=${workerHref(worker.worker_instance_id)}><strong>${worker.worker_id}</strong></a>
    <div class="line">
      <span class="tiny faint mono wrap-anywhere">${worker.worker_instance_id}</span>
      <${Copy} text=${worker.worker_instance_id} label="Copy the instance id" />
    </div>
  </td>
`;

function Load({ held, worker }) {
  if (!worker.slots) return html`${exact(held)} running`;
  return html`
    <div class="stack tight">
      <span class="number">${exact(held)} / ${exact(worker.slots)}</span>
      <${Meter} level=${held / worker.slots} full="accent" label=${`Slots in use on ${worker.worker_instance_id}`} />
    </div>
  `;
}

export function Registry({ workers, more, load }) {
  return html`
    <section class="card">
      <header>
        <h2>Workers</h2>
        <span class="count">${count(workers.length)}${more ? " or more" : ""}</span>
      </header>
      <div class="body flush table-wrap">
        ${
          !workers.length
            ? html`
                <${Empty} icon="workers">
                  No live workers.
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
                      <th scope="col">Capabilities</th>
                      <th scope="col">Load</th>
                      <th scope="col">Last heartbeat</th>
                      <th scope="col">Up since</th>
                    </tr>
                  </thead>
                  <tbody>
                    ${workers.map(
                      (worker) => html`
                        <tr key=${worker.namespace + worker.worker_instance_id} data-worker=${worker.worker_instance_id}>
                          <${Name} worker=${worker} />
                          <td class="soft" data-label="Namespace">${worker.namespace}</td>
                          <td data-label="Lanes"><${Names} names=${worker.lanes} /></td>
                          <td data-label="Capabilities"><${Names} names=${worker.capabilities} tone="accent" /></td>
                          <td data-label="Load"><${Load} held=${heldBy(load, worker)} worker=${worker} /></td>
                          <td data-label="Last heartbeat">
                            ${
                              now() - worker.last_heartbeat_ms > worker.liveness_ttl_ms / 2
                                ? html`<${Badge} tone="warn"><${When} ms=${worker.last_heartbeat_ms} /></${Badge}>`
                                : html`<${When} ms=${worker.last_heartbeat_ms} />`
                            }
                          </td>
                          <td class="soft" data-label="Up since"><${When} ms=${worker.registered_at_ms} /></td>
                        </tr>
                      `,
                    )}
                  </tbody>
                </table>
              `
        }
      </div>
    </section>
    ${load.gone.length ? html`<${Gone} load=${load} />` : null}
  `;
}

const Gone = ({ load }) => html`
  <section class="card">
    <header>
      <h2>Stopped workers</h2>
      <span class="count">${count(load.gone.length)}</span>
      <span class="soft small">shown for ${duration(load.kept_ms)}</span>
    </header>
    <div class="body flush table-wrap">
      <table class="table stacked">
        <thead>
          <tr>
            <th scope="col">Worker</th>
            <th scope="col">Namespace</th>
            <th scope="col">Why</th>
            <th scope="col">Stopped</th>
            <th scope="col">Last heartbeat</th>
            <th scope="col">Was up for</th>
            <th scope="col">Lanes</th>
          </tr>
        </thead>
        <tbody>
          ${load.gone.map(
            (worker) => html`
              <tr key=${worker.namespace + worker.worker_instance_id} data-gone=${worker.worker_instance_id}>
                <${Name} worker=${worker} />
                <td class="soft" data-label="Namespace">${worker.namespace}</td>
                <td data-label="Why">
                  ${
                    worker.reason === null
                      ? html`<${Badge} tone="bad">no heartbeat</${Badge}>`
                      : html`<${Badge} tone="cancelled">${worker.reason || "stopped"}</${Badge}>`
                  }
                </td>
                <td data-label="Stopped"><${When} ms=${worker.gone_at_ms} /></td>
                <td class="soft" data-label="Last heartbeat"><${When} ms=${worker.last_heartbeat_ms} /></td>
                <td class="soft" data-label="Was up for">
                  ${duration(worker.last_heartbeat_ms - worker.registered_at_ms)}
                </td>
                <td data-label="Lanes"><${Names} names=${worker.lanes} /></td>
              </tr>
            `,
          )}
        </tbody>
      </table>
    </div>
  </section>
`;
