// The steps that a workflow remembers: what each gave, how long it took, and which child did it.
import { html } from "../dom.js";
import { may } from "../session.js";
import { duration, fromBase64, moment, size, time, words } from "../format.js";
import { Badge, Copy, Empty, ExecutionLink, Zone } from "../parts.js";
import { Bytes } from "../values.js";
import { Icon } from "../icons.js";
import { stepKey, stepName } from "./names.js";

/** How long steps took: a child's own time; for what ran in the workflow itself, since the step before it or the lease. */
export function took(steps, history, children) {
  const byStep = new Map(children.map((child) => [stepKey(child.step || ""), child]));
  return steps.map((step, index) => {
    const child = byStep.get(stepKey(step.name));
    if (child) {
      const ms = child.started_at && child.completed_at ? child.completed_at - child.started_at : null;
      return { child, ms };
    }
    const lease = history.leases.filter((each) => each.began_at <= step.recorded_at).at(-1);
    const from = Math.max(lease?.began_at ?? history.created_at, index ? steps[index - 1].recorded_at : 0);
    return { child: null, ms: step.recorded_at - from };
  });
}

/** The error that a step remembers, as its type and message. */
function errorOf(step) {
  if (step.outcome === "ok" || !step.value) return null;
  try {
    const { type, message } = JSON.parse(new TextDecoder().decode(fromBase64(step.value)));
    return typeof type === "string" ? `${type}${message ? `: ${message}` : ""}` : null;
  } catch {
    return null;
  }
}

export function Steps({ steps, open, history, children, forkFrom }) {
  if (!steps.length)
    return html`
      <${Empty} icon="executions">
        No recorded steps.
        <span class="small faint">Workflows record steps; tasks have only attempts.</span>
      </${Empty}>
    `;
  const times = took(steps, history, children);
  return html`
    <${Zone} />
    <div class="steps-list">
      ${steps.map(
        (step, index) => html`
          <details class="step" key=${step.place} open=${open === step.place}>
            <summary>
              <span class="faint number right">${step.place}</span>
              <span class="clip" title=${stepKey(step.name)}>${stepName(step.name)}</span>
              <${Badge} tone=${step.outcome === "ok" ? "good" : "bad"}>${step.outcome === "ok" ? "ok" : "failed"}</${Badge}>
              <span class="soft small number" data-took title=${times[index].child ? "The child's own time" : "Since the step before it"}>
                ${duration(times[index].ms)}
              </span>
              <time class="soft small number" title=${moment(step.recorded_at)}>${time(step.recorded_at)}</time>
            </summary>
            <div class="inside">
              ${
                times[index].child &&
                html`
                  <span class="small">
                    Child <${ExecutionLink} id=${times[index].child.execution_id} />, ${words(times[index].child.public_state)}
                  </span>
                `
              }
              ${
                errorOf(step)
                  ? html`
                      <div class="copied">
                        <div class="value-box problem grow" tabindex="0" role="region" aria-label=${`Error of ${stepName(step.name)}`}>
                          ${errorOf(step)}
                        </div>
                        <${Copy} text=${errorOf(step)} label="Copy the error" />
                      </div>
                    `
                  : html`
                      <${Bytes}
                        data=${step.value ? fromBase64(step.value) : null}
                        label=${`Value of ${stepName(step.name)}`}
                        nothing="No value"
                      />
                    `
              }
              ${
                step.value &&
                !errorOf(step) &&
                step.size > fromBase64(step.value).length &&
                html`<span class="tiny faint">The first part of ${size(step.size)}.</span>`
              }
              ${
                may("fork_execution") &&
                html`
                  <div>
                    <button type="button" class="button small" onClick=${() => forkFrom(step.name)}>
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
