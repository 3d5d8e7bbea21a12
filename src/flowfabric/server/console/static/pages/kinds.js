// Kinds: how often each is started, how much of it fails, how long it takes.
import { html } from "../dom.js";
import { get } from "../api.js";
import { useLive } from "../live.js";
import { changed, narrowed, rewrite, useNamespace } from "../narrowing.js";
import { Live } from "../app.js";
import { may } from "../session.js";
import { count, duration, exact, moment, plural } from "../format.js";
import { listHref } from "../searchlinks.js";
import { toast } from "../toasts.js";
import { Badge, Empty, Loading, NoMatches, Segments, Total, Trouble } from "../parts.js";

const WINDOWS = [
  [900_000, "15 min"],
  [3_600_000, "1 h"],
  [86_400_000, "24 h"],
  [604_800_000, "7 d"],
];
const HOUR = 3_600_000;

/** Per minute if that says something, else per hour or per day. */
export function rate(n, ms) {
  for (const [unit, span] of [
    ["min", 60_000],
    ["h", HOUR],
    ["d", 24 * HOUR],
  ]) {
    const each = (n * span) / Math.max(ms, 1);
    if (each >= 1 || unit === "d") return `${each >= 10 ? count(Math.round(each)) : Math.round(each * 10) / 10} / ${unit}`;
  }
  return "–";
}

export const share = (failed, ended) => {
  if (!ended) return "–";
  const percent = (100 * failed) / ended;
  return percent && percent < 0.1 ? "< 0.1 %" : `${percent >= 10 ? Math.round(percent) : Math.round(percent * 10) / 10} %`;
};

/** The dialog comes with its form when it is first needed. */
const start = (kind) =>
  import("../execution/starting.js").then(
    ({ startNew }) => startNew({ kind }),
    () => toast("The form could not be loaded. Try again.", "bad"),
  );

const href = (kind, state) => listHref({ kind }, state);

export default function Kinds({ query }) {
  const own = useNamespace("kinds", query);
  const asked = Number(query.get("window"));
  const within = WINDOWS.some(([ms]) => ms === asked) ? asked : HOUR;
  const text = query.get("q") || "";
  const { data, problem } = useLive(
    () => get("v1/kinds", { namespace: own, window_ms: within }),
    [own, within],
    15_000,
  );
  // What begins with $ is the SDK's own, part of somebody's workflow.
  const shown = (data?.kinds || []).filter(
    ({ execution_kind: kind }) => !kind.startsWith("$") && kind.toLowerCase().includes(text.toLowerCase()),
  );
  const span = data ? data.until_ms - data.since_ms : 0;
  return html`
    <div class="page">
      <div class="page-head">
        <h1>Kinds</h1>
        <${Live} />
        ${data && html`<${Total} text=${plural(shown.length, "kind")} />`}
        <div class="actions">
          <${Segments}
            label="Window"
            options=${WINDOWS}
            value=${within}
            onChange=${(ms) => {
              location.hash = changed({ window: ms });
            }}
          />
          <label class="visually-hidden" for="kind-q">Find a kind</label>
          <input
            id="kind-q"
            data-search
            class="input"
            placeholder="Find a kind"
            value=${text}
            onInput=${(event) => rewrite(changed({ q: event.target.value }))}
            autocomplete="off"
          />
        </div>
      </div>
      <${Trouble} problem=${problem} />
      ${
        data &&
        !data.complete &&
        html`
          <p class="note-box">
            Based on the newest executions only, created since ${moment(data.since_ms)}.
          </p>
        `
      }
      <section class="card">
        <div class="body flush table-wrap">
          ${
            !data
              ? html`<${Loading} />`
              : !shown.length
                ? html`<${Empty} icon="kinds">${text ? html`<${NoMatches} all=${narrowed("kinds", { window: asked, ns: own })} />` : "No executions in this time range."}</${Empty}>`
                : html`
                    <table class="table stacked">
                      <thead>
                        <tr>
                          <th scope="col">Kind</th>
                          <th scope="col" class="number">Created</th>
                          <th scope="col" class="number">Rate</th>
                          <th scope="col" class="number">Open</th>
                          <th scope="col" class="number">Failed</th>
                          <th scope="col" class="number">Failure share</th>
                          <th scope="col" class="number" title="Half took no longer than this">p50</th>
                          <th scope="col" class="number" title="95 % took no longer than this">p95</th>
                          ${may("create_execution") && html`<th scope="col"><span class="visually-hidden">Actions</span></th>`}
                        </tr>
                      </thead>
                      <tbody>
                        ${shown.map((each) => html`<${Kind} key=${each.execution_kind} each=${each} span=${span} />`)}
                      </tbody>
                    </table>
                  `
          }
        </div>
      </section>
      <p class="small faint">
        Executions created in the window. Durations run from the first start to the end, waits included.
      </p>
    </div>
  `;
}

function Kind({ each, span }) {
  const { execution_kind: kind, completed, failed } = each;
  const ended = completed + failed;
  const ratio = ended ? failed / ended : 0;
  return html`
    <tr data-kind=${kind}>
      <td><a href=${href(kind)}><strong>${kind || "no kind"}</strong></a></td>
      <td class="number" data-label="Created">${exact(each.created)}</td>
      <td class="number soft" data-label="Rate">${rate(each.created, span)}</td>
      <td class="number" data-label="Open">${exact(each.unended)}</td>
      <td class="number" data-label="Failed">
        ${failed ? html`<a href=${href(kind, "failed")}>${exact(failed)}</a>` : 0}
      </td>
      <td class="number" data-label="Failure share">
        ${
          ratio >= 0.05
            ? html`<${Badge} tone=${ratio >= 0.2 ? "bad" : "warn"}>${share(failed, ended)}</${Badge}>`
            : share(failed, ended)
        }
      </td>
      <td class="number" data-label="p50">${duration(each.p50_ms)}</td>
      <td class="number" data-label="p95">${duration(each.p95_ms)}</td>
      ${
        may("create_execution") &&
        html`
          <td class="row-action">
            ${kind && html`<button type="button" class="button small" aria-label=${`Start ${kind}`} onClick=${() => start(kind)}>Start…</button>`}
          </td>
        `
      }
    </tr>
  `;
}
