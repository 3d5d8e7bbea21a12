// What an execution left behind: steps, leases, waits and signals, usage, events, others in its flow.
import { html } from "../dom.js";
import { at, post } from "../api.js";
import { may } from "../session.js";
import { amount, duration, fromBase64, moment, plural, shortId, size, time, words } from "../format.js";
import { Badge, Empty, When } from "../parts.js";
import { Bytes } from "../values.js";
import { confirm } from "../dialogs.js";
import { toast } from "../toasts.js";
import { holder, LEASE_ENDS, leaseEnd } from "../history.js";
import { Icon } from "../icons.js";

/** As many relatives are asked for. */
const MOST = 199;

export function Steps({ id, steps, open, info }) {
  if (!steps.length)
    return html`
      <${Empty} icon="executions">
        It remembers no steps.
        <span class="small faint">Durable functions do; tasks have attempts only.</span>
      </${Empty}>
    `;
  const fork = (step) =>
    confirm({
      title: `Fork from step ${step.sequence}?`,
      label: "Fork it",
      consequence: `A new execution of ${info.execution_kind} remembers the ${plural(step.sequence - 1, "step")} before ${step.name} and goes on from there. This one stays as it is.`,
      act: async () => {
        const made = await post(at(id, "fork"), { at: step.name });
        toast(`Forked with ${plural(made.steps, "step")} remembered.`);
        location.hash = `#/executions/${encodeURIComponent(made.execution_id)}`;
      },
    });
  return html`
    <div class="steps-list">
      ${steps.map(
        (step) => html`
          <details class="step" key=${step.sequence} open=${open === step.sequence}>
            <summary>
              <span class="faint number right">${step.sequence}</span>
              <span class="clip">${step.name}</span>
              <${Badge} tone=${step.outcome === "ok" ? "good" : "bad"}>${step.outcome}</${Badge}>
              <span class="soft small number">${time(step.recorded_at)}</span>
            </summary>
            <div class="inside">
              <${Bytes}
                data=${step.value ? fromBase64(step.value) : null}
                label=${`Value of ${step.name}`}
                nothing="It gave nothing."
              />
              ${
                step.value &&
                step.size > fromBase64(step.value).length &&
                html`<span class="tiny faint">The beginning of ${size(step.size)}.</span>`
              }
              ${
                may("operator") &&
                html`
                  <div>
                    <button type="button" class="button small" onClick=${() => fork(step)}>
                      <${Icon} name="fork" />
                      Fork from here…
                    </button>
                  </div>
                `
              }
            </div>
          </details>
        `,
      )}
    </div>
  `;
}

export function Leases({ leases }) {
  if (!leases.length)
    return html`<${Empty} icon="workers">No worker has held it yet.</${Empty}>`;
  return html`
    <div class="table-wrap">
      <table class="table stacked">
        <thead>
          <tr>
            <th scope="col">Worker</th>
            <th scope="col" class="number">Attempt</th>
            <th scope="col">From</th>
            <th scope="col">Until</th>
            <th scope="col" class="number">For</th>
            <th scope="col">How it ended</th>
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
                      : html`<span title=${moment(lease.expires_at)}>renewed until ${time(lease.expires_at)}</span>`
                  }
                </td>
                <td class="number soft" data-label="For">
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
    return html`<${Empty} icon="clock">It has never waited for a signal.</${Empty}>`;
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
                  <th scope="col">Made</th>
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
                      <td data-label="Made"><${When} ms=${each.created_at} /></td>
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
                    <span class="soft small">${time(signal.accepted_at)}</span>
                  </summary>
                  <div class="inside">
                    <span class="soft small">${words(signal.effect)}</span>
                    <${Bytes}
                      data=${signal.payload ? fromBase64(signal.payload) : null}
                      label="Payload"
                      nothing="Without a payload."
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
    return html`<${Empty} icon="budgets">It is charged to no budget.</${Empty}>`;
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
                    <tr key=${each.budget_id + each.dimension}>
                      <td><a class="mono" href=${`#/budgets/${each.budget_id}`}>${shortId(each.budget_id)}</a></td>
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
            Must
            fit ${history.budget_ids.map(
              (id, index) => html`
                ${index ? ", " : ""}
                <a class="mono" href=${`#/budgets/${id}`}>${shortId(id)}</a>
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

export const Events = ({ events }) => html`
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
export function Relatives({ title, found, flow }) {
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
              <th scope="col" class="number">Took</th>
            </tr>
          </thead>
          <tbody>
            ${found.slice(-100).map(
              (each) => html`
                <tr key=${each.execution_id}>
                  <td><${Badge} state=${each.public_state} /></td>
                  <td>
                    <a href=${`#/executions/${encodeURIComponent(each.execution_id)}`}>
                      ${each.execution_kind === "$ask" ? "question" : each.execution_kind || "(no kind)"}
                    </a>
                    ${" "}
                    <span class="mono faint">${shortId(each.execution_id)}</span>
                  </td>
                  <td class="soft" data-label="Lane">${each.lane_id}</td>
                  <td class="soft" data-label="Created"><${When} ms=${each.created_at} /></td>
                  <td class="number soft" data-label="Took">
                    ${each.started_at ? duration((each.completed_at ?? Date.now()) - each.started_at) : "–"}
                  </td>
                </tr>
              `,
            )}
          </tbody>
        </table>
      </div>
    </section>
  `;
}
