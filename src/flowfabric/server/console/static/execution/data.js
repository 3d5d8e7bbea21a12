// What an execution was given and gave, its rolling summary, and how it is set up.
import { html, useMemo } from "../dom.js";
import { at, bytes, get } from "../api.js";
import { useLive, useOnce } from "../live.js";
import { fromBase64 } from "../format.js";
import { Bytes, Json } from "../values.js";
import { me } from "../session.js";
import { Copy, ended, Loading, Trouble, When } from "../parts.js";
import { listHref } from "../searchlinks.js";

export function Data({ id, info, history, input, unread }) {
  const state = info.public_state;
  const index = info.current_attempt_index;
  // A replay ends the same attempt again, at another time.
  const { data: result, problem } = useOnce(
    async () => (state === "completed" ? bytes(at(id, "result")) : null),
    [id, state, index, history.ended_at],
  );
  const { data: summary } = useLive(
    async () => (history.has_summary ? get(at(id, "attempts", index, "summary")) : null),
    [id, index, history.has_summary],
  );
  return html`
    <div class="grid">
      <div class="half stack tight">
        <h3>Input</h3>
        ${
          input
            ? html`<${Bytes} data=${fromBase64(input.payload)} label="Input" nothing="No input" />`
            : unread
              ? html`<${Trouble} problem=${unread} />`
              : html`<${Loading} />`
        }
      </div>
      <div class="half stack tight">
        <h3>Result</h3>
        ${
          state === "completed"
            ? result || problem?.status === 404
              ? html`<${Bytes} data=${result} label="Result" nothing="No result" />`
              : problem
                ? html`<${Trouble} problem=${problem} />`
                : html`<${Loading} />`
            : history.failure_reason
              ? html`
                  <div class="copied">
                    <div class="value-box problem" tabindex="0" role="region" aria-label="Failure">
                      ${history.failure_reason}
                    </div>
                    <${Copy} text=${history.failure_reason} label="Copy the failure" />
                  </div>
                `
              : html`<p class="soft small">${ended(state) ? "No result." : "Not finished yet."}</p>`
        }
      </div>
      ${
        summary &&
        html`
          <div class="stack tight">
            <h3>Rolling summary</h3>
            <${Json} value=${summaryOf(summary)} label="Rolling summary" />
            <span class="tiny faint">
              version ${summary.version},${" "}
              <${When} ms=${summary.last_updated_ms} />
            </span>
          </div>
        `
      }
    </div>
  `;
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

/** The trace that an execution belongs to, if it was started in one. */
const traceId = (tags) => /^[0-9a-f]{2}-([0-9a-f]{32})-/.exec(tags["trace.traceparent"] || "")?.[1];

/** A trace, as a link if the server knows where traces are looked at. */
function Trace({ id }) {
  const template = me.peek()?.trace_url;
  return html`
    <h3>Trace</h3>
    <div class="line" data-trace>
      ${
        template
          ? html`
              <a class="mono small wrap-anywhere" rel="noreferrer" href=${template.replaceAll("{trace_id}", id)}>${id}</a>
            `
          : html`<span class="mono small wrap-anywhere">${id}</span>`
      }
      <${Copy} text=${id} label="Copy the trace id" />
    </div>
  `;
}

export function Details({ info, history, input, explained }) {
  const policy = useMemo(() => {
    try {
      return history.policy ? JSON.parse(history.policy) : null;
    } catch {
      return history.policy;
    }
  }, [history.policy]);
  const tags = Object.entries(input?.tags || {});
  const trace = traceId(input?.tags || {});
  return html`
    <div class="grid">
      <div class="half stack tight">
        <h3>Tags</h3>
        ${
          tags.length
            ? html`
                <div class="people">
                  ${tags.map(
                    ([key, value]) => html`
                      <a
                        class="badge plain"
                        key=${key}
                        data-tone="accent"
                        href=${listHref({ tag: `${key}=${value}` })}
                      >
                        ${key}=${value}
                      </a>
                    `,
                  )}
                  <${Copy} text=${tags.map(([key, value]) => `${key}=${value}`).join("\n")} label="Copy the tags" />
                </div>
              `
            : html`<p class="soft small">No tags.</p>`
        }
        ${trace && html`<${Trace} id=${trace} />`}
        <h3>State</h3>
        <${Json} value=${info.state_vector} label="State vector" />
        ${
          explained.detail &&
          html`
            <h3>Waiting for</h3>
            <${Json} value=${explained.detail} label="Detail" />
          `
        }
      </div>
      <div class="half stack tight">
        <h3>Policy</h3>
        ${
          policy
            ? html`<${Json} value=${policy} label="Policy" />`
            : html`<p class="soft small">Default policy.</p>`
        }
        ${
          history.required_capabilities.length > 0 &&
          html`
            <h3>Required capabilities</h3>
            <div class="people">
              ${history.required_capabilities.map(
                (each) => html`<span class="badge plain" key=${each}>${each}</span>`,
              )}
            </div>
          `
        }
      </div>
    </div>
  `;
}
