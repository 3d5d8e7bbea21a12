// One schedule: what it starts and when, its past and next runs.
import { html } from "../dom.js";
import { get } from "../api.js";
import { useLive } from "../live.js";
import { Live } from "../app.js";
import { may } from "../session.js";
import { decoded, duration, exact, fromBase64, moment, relative, zone } from "../format.js";
import { Absent, Badge, Copy, Empty, ExecutionLink, Menu, Trouble, When } from "../parts.js";
import { listHref } from "../searchlinks.js";
import { backfill } from "./backfill.js";
import { edit } from "./form.js";
import { runsHref, schedulePath } from "./links.js";
import { CATCH_UPS, OVERLAPS, Timing, Verbs, forget, skipText } from "./verbs.js";

const SHOWN = 20;

export function Detail({ id, owner }) {
  const { data, problem, refresh } = useLive(
    async () => {
      const [schedule, runs] = await Promise.all([
        get(schedulePath(id, owner)),
        get(`${schedulePath(id, owner, "runs")}&limit=${SHOWN}`),
      ]);
      return { schedule, runs };
    },
    [id, owner],
    5_000,
  );
  if (!data) return html`<${Absent} problem=${problem} what="schedule" all="Schedules" href="#/schedules" />`;
  const { schedule: each, runs } = data;
  return html`
    <div class="page" data-schedule-page=${each.schedule_id}>
      <div class="page-head">
        <div>
          <div class="tiny faint"><a href="#/schedules">Schedules</a></div>
          <h1>${each.schedule_id} ${each.paused && html`<${Badge} tone="warn">paused</${Badge}>`}</h1>
        </div>
        <${Copy} text=${each.schedule_id} label="Copy the name" />
        <${Live} />
        <div class="actions">
          <${Verbs} each=${each} refresh=${refresh} />
          <${Menu}
            items=${[
              may("put_schedule") && { label: "Edit…", icon: "settings", act: () => edit(each, refresh) },
              may("backfill_schedule") && { label: "Backfill…", icon: "replay", act: () => backfill(each, refresh) },
              may("delete_schedule") && { label: "Delete…", icon: "close", danger: true, act: () => forget(each) },
            ]}
          />
        </div>
      </div>
      <${Trouble} problem=${problem} />
      <${Facts} each=${each} />
      <div class="grid">
        <section class="card two-thirds">
          <header>
            <h2>Past runs</h2>
            <div class="actions"><a class="button small" href=${runsHref(each.schedule_id, each.namespace)}>All runs</a></div>
          </header>
          <div class="body flush table-wrap"><${Past} runs=${runs.past} /></div>
        </section>
        <section class="card third">
          <header>
            <h2>Next runs</h2>
            <span class="soft small">${zone()}</span>
          </header>
          <div class="body">
            ${
              runs.next.length
                ? html`
                    <ol class="next-runs">
                      ${runs.next.slice(0, 10).map(
                        (ms) => html`
                          <li key=${ms}>
                            ${moment(ms)}
                            <span class="faint small">${relative(ms)}</span>
                          </li>
                        `,
                      )}
                    </ol>
                  `
                : html`<${Empty} icon="schedules">${each.paused ? "Paused: nothing starts" : "No next run"}.</${Empty}>`
            }
          </div>
        </section>
      </div>
    </div>
  `;
}

function Facts({ each }) {
  const input = each.input_payload ? decoded(fromBase64(each.input_payload)) : { kind: "nothing" };
  const written = input.kind === "json" ? JSON.stringify(input.value) : input.value;
  return html`
    <section class="card">
      <div class="body stack">
        <dl class="facts">
          <div>
            <dt>Starts</dt>
            <dd><a href=${listHref({ kind: each.execution_kind })}>${each.execution_kind}</a></dd>
          </div>
          <div>
            <dt>When</dt>
            <dd><${Timing} spec=${each.spec} /></dd>
          </div>
          <div>
            <dt>Overlap</dt>
            <dd>${OVERLAPS[each.overlap]}</dd>
          </div>
          <div>
            <dt>After downtime</dt>
            <dd>${CATCH_UPS[each.catch_up]}${each.catch_up === "all" ? `, at most ${exact(each.catch_up_limit)}` : ""}</dd>
          </div>
          <div>
            <dt>Lane</dt>
            <dd><a href=${listHref({ lane: each.lane_id })}>${each.lane_id}</a></dd>
          </div>
          <div>
            <dt>Namespace</dt>
            <dd>${each.namespace}</dd>
          </div>
          <div>
            <dt>Priority</dt>
            <dd>${each.priority}</dd>
          </div>
          ${
            each.jitter_ms
              ? html`
                  <div>
                    <dt>Jitter</dt>
                    <dd>up to ${duration(each.jitter_ms)}</dd>
                  </div>
                `
              : null
          }
          <div>
            <dt>Started</dt>
            <dd>${exact(each.started_count)}</dd>
          </div>
          <div>
            <dt>Skipped</dt>
            <dd>
              ${exact(each.skipped_count)}
              ${
                each.last_skipped_ms &&
                html`
                  <span class="faint small">
                    ${" "}last <${When} ms=${each.last_skipped_ms} />: ${skipText(each.last_skip_reason)}
                  </span>
                `
              }
            </dd>
          </div>
          <div>
            <dt>Created</dt>
            <dd><${When} ms=${each.created_at_ms} /></dd>
          </div>
          <div>
            <dt>Last changed</dt>
            <dd><${When} ms=${each.updated_at_ms} /></dd>
          </div>
        </dl>
        <div class="line wraps">
          <span class="soft small">Input</span>
          ${
            input.kind === "nothing"
              ? html`<span class="faint small">No input</span>`
              : input.kind === "binary"
                ? html`<span class="faint small">Binary, ${exact(input.size)} bytes</span>`
                : html`
                    <code class="wrap-anywhere">${written.length > 400 ? `${written.slice(0, 400)}…` : written}</code>
                    <${Copy} text=${written} label="Copy the input" />
                  `
          }
        </div>
      </div>
    </section>
  `;
}

const Past = ({ runs }) =>
  runs.length
    ? html`
        <table class="table stacked">
          <thead>
            <tr>
              <th scope="col">Scheduled for</th>
              <th scope="col">State</th>
              <th scope="col">Execution</th>
              <th scope="col">Duration</th>
            </tr>
          </thead>
          <tbody>
            ${runs.map(
              (run) => html`
                <tr key=${run.slot_ms ?? run.execution_id} data-slot=${run.slot_ms}>
                  <td>
                    ${run.slot_ms ? moment(run.slot_ms) : html`<span class="soft">Manual run, ${moment(run.created_at)}</span>`}
                  </td>
                  <td data-label="State">
                    ${
                      run.public_state
                        ? html`<${Badge} state=${run.public_state} />`
                        : html`<span class="faint">not started</span>`
                    }
                  </td>
                  <td data-label="Execution">
                    ${run.execution_id ? html`<${ExecutionLink} id=${run.execution_id} />` : "–"}
                  </td>
                  <td class="soft" data-label="Duration">
                    ${run.started_at && run.ended_at ? duration(run.ended_at - run.started_at) : "–"}
                  </td>
                </tr>
              `,
            )}
          </tbody>
        </table>
      `
    : html`<${Empty} icon="schedules">No runs yet.</${Empty}>`;
