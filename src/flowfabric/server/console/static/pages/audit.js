// The audit log: who has done what.
import { html, useState } from "../dom.js";
import { get } from "../api.js";
import { useLive } from "../live.js";
import { Live } from "../app.js";
import { moment, time, words } from "../format.js";
import { Badge, Empty, Loading, Trouble } from "../parts.js";

const subject = (text) => {
  try {
    return Object.entries(JSON.parse(text));
  } catch {
    return [["", text]];
  }
};

export default function Audit() {
  const [pages, setPages] = useState(1);
  const [text, setText] = useState("");
  const { data, problem } = useLive(
    async () => {
      let entries = [];
      let after;
      for (let page = 0; page < pages; page += 1) {
        const found = await get("v1/admin/audit", { after, limit: 200 });
        entries = entries.concat(found.entries);
        after = found.next_cursor;
        if (after === null) break;
      }
      return { entries, more: after !== null };
    },
    [pages],
    5_000,
  );
  const shown = (data?.entries || []).filter(
    (entry) => !text || `${entry.who} ${entry.act} ${entry.subject}`.toLowerCase().includes(text.toLowerCase()),
  );
  return html`
    <div class="page">
      <div class="page-head">
        <h1>Audit</h1>
        <${Live} />
        <div class="actions">
          <label class="visually-hidden" for="audit-q">Narrow the log</label>
          <input
            id="audit-q"
            data-search
            class="input"
            placeholder="Who, what or whom"
            value=${text}
            onInput=${(event) => setText(event.target.value)}
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
                ? html`<${Empty} icon="audit">Nobody has done anything${text ? " that fits" : " yet"}.</${Empty}>`
                : html`
                    <table class="table stacked">
                      <thead>
                        <tr>
                          <th scope="col">When</th>
                          <th scope="col">Who</th>
                          <th scope="col">Did</th>
                          <th scope="col">To</th>
                          <th scope="col" class="number">Answer</th>
                        </tr>
                      </thead>
                      <tbody>
                        ${shown.map(
                          (entry) => html`
                            <tr key=${entry.audit_id}>
                              <td class="soft no-wrap" title=${moment(entry.at_ms)}>${time(entry.at_ms)}</td>
                              <td data-label="Who">${entry.who}</td>
                              <td data-label="Did">${words(entry.act)}</td>
                              <td class="wrap-anywhere small" data-label="To">
                                ${subject(entry.subject).map(
                                  ([key, value]) => html`
                                    <span key=${key}>
                                      ${
                                        key && key !== "id"
                                          ? html`
                                              <span class="faint">${words(key)}</span>
                                              ${" "}
                                            `
                                          : null
                                      }${
                                        /^\{fp:\d+\}:/.test(String(value))
                                          ? html`
                                              <a class="mono" href=${`#/executions/${encodeURIComponent(value)}`}>
                                                ${String(value)}
                                              </a>
                                            `
                                          : html`<span class="mono">${String(value)}</span>`
                                      }${" "}
                                    </span>
                                  `,
                                )}
                              </td>
                              <td class="number" data-label="Answer">
                                <${Badge} tone=${entry.status < 400 ? "good" : "bad"}>${entry.status}</${Badge}>
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
        html`<div><button type="button" class="button" onClick=${() => setPages(pages + 1)}>Older</button></div>`
      }
    </div>
  `;
}
