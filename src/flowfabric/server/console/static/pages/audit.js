// The audit log: who has done what.
import { html } from "../dom.js";
import { get } from "../api.js";
import { usePages } from "../live.js";
import { changed, rewrite } from "../narrowing.js";
import { Live } from "../app.js";
import { iso, moment, plural } from "../format.js";
import { actName, told } from "../audit/telling.js";
import { Badge, Empty, Loading, NoMatches, Total, Trouble } from "../parts.js";

const searched = (entry) => `${entry.who} ${entry.act} ${actName(entry.act)} ${entry.subject}`.toLowerCase();

export default function Audit({ query }) {
  const text = query.get("q") || "";
  const { data, problem, more } = usePages(
    async (after) => {
      const { entries, next_cursor: next } = await get("v1/admin/audit", { after, limit: 200 });
      return { rows: entries, next };
    },
    [],
    { every: 5_000 },
  );
  const shown = (data?.rows || []).filter(
    (entry) => !text || searched(entry).includes(text.toLowerCase()),
  );
  return html`
    <div class="page">
      <div class="page-head">
        <h1>Audit</h1>
        <${Live} />
        ${data && html`<${Total} text=${plural(shown.length, "entry", "entries")} more=${data.more} />`}
        <div class="actions">
          <label class="visually-hidden" for="audit-q">Filter the log</label>
          <input
            id="audit-q"
            data-search
            class="input"
            placeholder="Actor, action or target"
            value=${text}
            onInput=${(event) => rewrite(changed({ q: event.target.value }))}
            autocomplete="off"
          />
        </div>
      </div>
      <${Trouble} problem=${problem} />
      <section class="card">
        <div class="body flush table-wrap">
          ${
            !data
              ? html`<${Loading} />`
              : !shown.length
                ? html`<${Empty} icon="audit">${text ? html`<${NoMatches} all="#/audit" among=${data.more && plural(data.rows.length, "entry", "entries")} />` : "No audit entries."}</${Empty}>`
                : html`
                    <table class="table stacked">
                      <thead>
                        <tr>
                          <th scope="col">When</th>
                          <th scope="col">Actor</th>
                          <th scope="col">Action</th>
                          <th scope="col">Target</th>
                          <th scope="col">Result</th>
                        </tr>
                      </thead>
                      <tbody>
                        ${shown.map(
                          (entry) => html`
                            <tr key=${entry.audit_id}>
                              <td class="soft no-wrap"><time datetime=${iso(entry.at_ms)}>${moment(entry.at_ms)}</time></td>
                              <td data-label="Actor">${entry.who}</td>
                              <td data-label="Action">${actName(entry.act)}</td>
                              <td class="wrap-anywhere small" data-label="Target">
                                ${told(entry.subject).map(
                                  ({ key, label, text: value, before }) => html`
                                    <span class="told" key=${key}>
                                      ${label && html`<span class="faint">${label}</span> `}
                                      ${before && html`<s>${before}</s>${" → "}`}
                                      <span>${value}</span>
                                    </span>
                                  `,
                                )}
                              </td>
                              <td data-label="Result">
                                ${
                                  entry.status < 400
                                    ? html`<${Badge} tone="good">done</${Badge}>`
                                    : html`<${Badge} tone="bad"><span title=${`HTTP ${entry.status}`}>${entry.status < 500 ? "refused" : "failed"}</span></${Badge}>`
                                }
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
        html`<div><button type="button" class="button" onClick=${more}>Older</button></div>`
      }
    </div>
  `;
}
