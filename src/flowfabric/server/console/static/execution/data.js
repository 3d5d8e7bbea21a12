// What an execution was given and gave, its rolling summary, and how it is set up.
import { html, useEffect, useMemo, useState } from "../dom.js";
import { at, bytes, get } from "../api.js";
import { fromBase64, words } from "../format.js";
import { Bytes, Json } from "../values.js";
import { ended, Loading, When } from "../parts.js";

export function Data({ id, info, history, input }) {
  const [result, setResult] = useState(null);
  const [summary, setSummary] = useState(null);
  const state = info.public_state;
  const index = info.current_attempt_index;
  useEffect(() => {
    let gone = false;
    setResult(null);
    if (state === "completed")
      bytes(at(id, "result")).then(
        (found) => {
          if (!gone) setResult(found);
        },
        () => {},
      );
    return () => {
      gone = true;
    };
  }, [id, state, index]);
  useEffect(() => {
    if (!history.has_summary) return;
    get(at(id, "attempts", index, "summary")).then(setSummary, () => {});
  }, [history]);
  return html`
    <div class="grid">
      <div class="half stack tight">
        <h3>Input</h3>
        ${
          input
            ? html`<${Bytes} data=${fromBase64(input.payload)} label="Input" nothing="It was given nothing." />`
            : html`<${Loading} />`
        }
      </div>
      <div class="half stack tight">
        <h3>Result</h3>
        ${
          state === "completed"
            ? html`<${Bytes} data=${result} label="Result" nothing="It gave nothing." />`
            : history.failure_reason
              ? html`
                  <div class="value-box problem" tabindex="0" role="region" aria-label="Failure">
                    ${history.failure_reason}
                  </div>
                `
              : html`<p class="soft small">${ended(state) ? `It ${words(state)} without a result.` : "Not yet."}</p>`
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

export function Details({ info, history, input, explained }) {
  const policy = useMemo(() => {
    try {
      return history.policy ? JSON.parse(history.policy) : null;
    } catch {
      return history.policy;
    }
  }, [history.policy]);
  const tags = Object.entries(input?.tags || {});
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
                        href=${`#/executions?q=${encodeURIComponent(`tag:${key}=${value}`)}`}
                      >
                        ${key}=${value}
                      </a>
                    `,
                  )}
                </div>
              `
            : html`<p class="soft small">None.</p>`
        }
        <h3>State</h3>
        <${Json} value=${info.state_vector} label="State vector" />
        ${
          explained.detail &&
          html`
            <h3>What it stands before</h3>
            <${Json} value=${explained.detail} label="Detail" />
          `
        }
      </div>
      <div class="half stack tight">
        <h3>Policy</h3>
        ${
          policy
            ? html`<${Json} value=${policy} label="Policy" />`
            : html`<p class="soft small">None of its own.</p>`
        }
        ${
          history.required_capabilities.length > 0 &&
          html`
            <h3>Needs</h3>
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
