// What an execution left behind: leases, waits and signals, usage, events, others in its flow.
import { html } from "../dom.js";
import { amount, duration, fromBase64, moment, shortId, time, words } from "../format.js";
import { Badge, Empty, When, Zone } from "../parts.js";
import { childName } from "./names.js";
import { Bytes } from "../values.js";
import { holder, LEASE_ENDS, leaseEnd } from "../history.js";
import { Icon } from "../icons.js";
import { BudgetLink, ownedKey } from "../owners.js";

/** As many relatives are asked for. */
const MOST = 199;
/** As many are shown. */
const SHOWN = 100;

export function Leases({ leases }) {
  if (!leases.length)
    return html`<${Empty} icon="workers">No worker has claimed it yet.</${Empty}>`;
  return html`
    <${Zone} />
    <div class="table-wrap">
      <table class="table stacked">
        <thead>
          <tr>
            <th scope="col">Worker</th>
            <th scope="col" class="number">Attempt</th>
            <th scope="col">From</th>
            <th scope="col">Until</th>
            <th scope="col" class="number">Duration</th>
            <th scope="col">End</th>
          </tr>
        </thead>
        <tbody>
          ${leases.map(
            (lease, index) => html`
              <tr key=${index} data-lease>
                <td class="wrap-anywhere">${holder(lease)}</td>
                <td class="number" data-label="Attempt">${lease.attempt_index + 1}</td>
                <td class="soft" data-label="From">
                  <time title=${moment(lease.began_at)}>${time(lease.began_at)}</time>
                </td>
                <td class="soft" data-label="Until">
                  ${
                    lease.ended_at
                      ? html`<time title=${moment(lease.ended_at)}>${time(lease.ended_at)}</time>`
                      : html`<span title=${moment(lease.expires_at)}>expires ${time(lease.expires_at)}</span>`
                  }
                </td>
                <td class="number soft" data-label="Duration">
                  ${duration((lease.ended_at ?? Date.now()) - lease.began_at)}
                </td>
                <td class="wrap-anywhere">
                  ${
                    lease.ended
                      ? html`<${Badge} tone=${LEASE_ENDS[lease.ended]?.[0]}>${leaseEnd(lease)}</${Badge}>`
                      : html`<${Badge} tone="active">held</${Badge}>`
                  }
                </td>
              </tr>
            `,
          )}
        </tbody>
      </table>
    </div>
  `;
}

export function Waits({ history }) {
  if (!history.waitpoints.length && !history.signals.length)
    return html`<${Empty} icon="clock">No signals, and never waited for one.</${Empty}>`;
  return html`
    <div class="stack">
      ${
        history.waitpoints.length > 0 &&
        html`
          <div class="table-wrap">
            <table class="table stacked">
              <thead>
                <tr>
                  <th scope="col">Waitpoint</th>
                  <th scope="col">State</th>
                  <th scope="col">Created</th>
                  <th scope="col">Expires</th>
                  <th scope="col" class="number">Signals</th>
                </tr>
              </thead>
              <tbody>
                ${history.waitpoints.map(
                  (each) => html`
                    <tr key=${each.waitpoint_id}>
                      <td>
                        ${
                          each.waitpoint_key ||
                          html`<span class="mono">${shortId(each.waitpoint_id)}</span>`
                        }
                      </td>
                      <td data-label="State">${words(each.state)}</td>
                      <td data-label="Created"><${When} ms=${each.created_at} /></td>
                      <td data-label="Expires"><${When} ms=${each.expires_at} /></td>
                      <td class="number" data-label="Signals">${each.signal_count}</td>
                    </tr>
                  `,
                )}
              </tbody>
            </table>
          </div>
        `
      }
      ${
        history.signals.length > 0 &&
        html`
          <div class="stack tight">
            <h3>Signals</h3>
            ${history.signals.map(
              (signal) => html`
                <details class="step signal" key=${signal.signal_id}>
                  <summary>
                    <span class="clip">
                      <strong>${signal.signal_name}</strong>
                      ${" "}
                      <span class="soft">for ${signal.waitpoint_key}</span>
                    </span>
                    <span class="soft small">${signal.source_identity || signal.source_type}</span>
                    <time class="soft small" title=${moment(signal.accepted_at)}>${time(signal.accepted_at)}</time>
                  </summary>
                  <div class="inside">
                    <span class="soft small">${words(signal.effect)}</span>
                    <${Bytes}
                      data=${signal.payload ? fromBase64(signal.payload) : null}
                      label="Payload"
                      nothing="No payload"
                    />
                  </div>
                </details>
              `,
            )}
          </div>
        `
      }
    </div>
  `;
}

export function Usage({ history }) {
  if (!history.spends.length && !history.budget_ids.length && !history.quota_policy_id)
    return html`<${Empty} icon="budgets">No budget.</${Empty}>`;
  const known = new Set(history.budgets.map((each) => each.budget_id));
  const named = [
    ...history.budgets.map(
      (each) => html`<${BudgetLink} id=${each.budget_id} namespace=${each.namespace} name=${each.name} />`,
    ),
    // What else it names does not exist, or is not for this credential to see.
    ...history.budget_ids
      .filter((id) => !known.has(id))
      .map(
        (id) => html`<span class="mono">${shortId(id)}</span>`,
      ),
  ];
  return html`
    <div class="stack tight">
      ${
        history.spends.length > 0 &&
        html`
          <div class="table-wrap">
            <table class="table stacked">
              <thead>
                <tr>
                  <th scope="col">Budget</th>
                  <th scope="col">Dimension</th>
                  <th scope="col" class="number">Spent</th>
                </tr>
              </thead>
              <tbody>
                ${history.spends.map(
                  (each) => html`
                    <tr key=${ownedKey(each.budget_id, each.namespace) + each.dimension}>
                      <td><${BudgetLink} id=${each.budget_id} namespace=${each.namespace} name=${each.name} /></td>
                      <td data-label="Dimension">${each.dimension}</td>
                      <td class="number" data-label="Spent">${amount(each.dimension, each.amount)}</td>
                    </tr>
                  `,
                )}
              </tbody>
            </table>
          </div>
        `
      }
      ${
        history.budget_ids.length > 0 &&
        html`
          <p class="soft small">
            Charged
            to ${named.map(
              (link, index) => html`
                ${index ? ", " : ""}${link}
              `,
            )}.
          </p>
        `
      }
      ${
        history.quota_policy_id &&
        html`
          <p class="soft small">
            Admitted by quota${" "}
            <span class="mono">${shortId(history.quota_policy_id)}</span>
            .
          </p>
        `
      }
    </div>
  `;
}

/** Everything that the page knows, as a file. */
function save(all) {
  const text = JSON.stringify({ ...all, id: undefined, execution_id: all.id }, null, 2);
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  link.download = `${all.id.split(":").pop()}.json`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

export const Events = ({ events, all }) => html`
  <div class="line wide wraps">
    <${Zone} />
    <button type="button" class="button small" onClick=${() => save(all)}>
      <${Icon} name="download" />
      Download as JSON
    </button>
  </div>
  <div class="events">
    ${events.map(
      (event, index) => html`
        <div class="when" key=${`w${index}`}><time title=${moment(event.at)}>${time(event.at)}</time></div>
        <div class="what" key=${`e${index}`} data-tone=${event.tone}>${event.text}</div>
      `,
    )}
  </div>
`;

/** Executions that have to do with this one: whom it has started, who else is in its flow. */
export function Relatives({ title, found, flow, all = `#/flows/${flow}` }) {
  return html`
    <section class="card" data-relatives=${title}>
      <header>
        <h2>${title}</h2>
        <span class="count">${found.length < MOST ? found.length : `${MOST} or more`}</span>
        ${flow && html`<div class="actions"><a class="button small" href=${`#/flows/${flow}`}>Graph</a></div>`}
      </header>
      <div class="body flush table-wrap">
        <table class="table stacked badged">
          <thead>
            <tr>
              <th scope="col">State</th>
              <th scope="col">Execution</th>
              <th scope="col">Lane</th>
              <th scope="col">Created</th>
              <th scope="col" class="number">Duration</th>
            </tr>
          </thead>
          <tbody>
            ${found.slice(-SHOWN).map(
              (each) => html`
                <tr key=${each.execution_id}>
                  <td><${Badge} state=${each.public_state} /></td>
                  <td>
                    <a href=${`#/executions/${encodeURIComponent(each.execution_id)}`}>
                      ${childName(each)}
                    </a>
                    ${" "}
                    <span class="mono faint">${shortId(each.execution_id)}</span>
                  </td>
                  <td class="soft" data-label="Lane">${each.lane_id}</td>
                  <td class="soft" data-label="Created"><${When} ms=${each.created_at} /></td>
                  <td class="number soft" data-label="Duration">
                    ${each.started_at ? duration((each.completed_at ?? Date.now()) - each.started_at) : "–"}
                  </td>
                </tr>
              `,
            )}
          </tbody>
        </table>
        ${found.length > SHOWN && html`<p class="loading">The newest ${SHOWN}. <a href=${all}>Show all</a></p>`}
      </div>
    </section>
  `;
}
