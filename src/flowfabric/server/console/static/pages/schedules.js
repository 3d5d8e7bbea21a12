// Schedules: what starts by itself, when next, and one of them with its past and next runs.
import { html } from "../dom.js";
import { useNamespace } from "../narrowing.js";
import { get } from "../api.js";
import { useLive } from "../live.js";
import { Live } from "../app.js";
import { may } from "../session.js";
import { count, duration, exact, moment, plural, relative } from "../format.js";
import { Badge, Empty, ExecutionLink, Loading, Total, Trouble, When } from "../parts.js";
import { Icon } from "../icons.js";
import { Detail } from "../schedules/detail.js";
import { edit } from "../schedules/form.js";
import { schedulePage } from "../schedules/links.js";
import { useStill } from "../still.js";
import { OVERLAPS, Timing, Verbs } from "../schedules/verbs.js";

export default function Schedules({ id, query }) {
  return id
    ? html`<${Detail} id=${id} owner=${query.get("namespace") || "default"} />`
    : html`<${List} query=${query} />`;
}

const keyOf = (each) => JSON.stringify([each.namespace, each.schedule_id]);

function List({ query }) {
  const own = useNamespace("schedules", query);
  const { data, problem, refresh } = useLive(
    async () => {
      const { schedules, next_cursor: more } = await get("v1/search/schedules", { namespace: own, limit: 1_000 });
      return {
        schedules: schedules.sort((a, b) => (a.next_at_ms ?? Infinity) - (b.next_at_ms ?? Infinity)),
        more: more !== null,
      };
    },
    [own],
    5_000,
  );
  const { shown, still } = useStill(data?.schedules || [], keyOf);
  return html`
    <div class="page">
      <div class="page-head">
        <h1>Schedules</h1>
        <${Live} />
        ${data && html`<${Total} text=${plural(data.schedules.length, "schedule")} more=${data.more} />`}
        ${
          may("put_schedule") &&
          html`
            <div class="actions">
              <button type="button" class="button primary" onClick=${() => edit(null, refresh)}>
                <${Icon} name="plus" />
                New schedule…
              </button>
            </div>
          `
        }
      </div>
      <${Trouble} problem=${problem} />
      <section class="card">
        <div class="body flush table-wrap">
          ${
            !data
              ? html`<${Loading} />`
              : !data.schedules.length
                ? html`
                    <${Empty} icon="schedules">
                      No schedules.
                      <span class="small faint">Create one with @app.cron, or with PUT /v1/schedules.</span>
                    </${Empty}>
                  `
                : html`
                    <table class="table stacked">
                      <thead>
                        <tr>
                          <th scope="col">Schedule</th>
                          <th scope="col">Starts</th>
                          <th scope="col">When</th>
                          <th scope="col">Next</th>
                          <th scope="col">Last</th>
                          <th scope="col" class="number">Started</th>
                          <th scope="col"><span class="visually-hidden">Actions</span></th>
                        </tr>
                      </thead>
                      <tbody ...${still}>
                        ${shown.map(
                          (each) => html`
                            <${Schedule} key=${keyOf(each)} each=${each} refresh=${refresh} />
                          `,
                        )}
                      </tbody>
                    </table>
                    ${
                      data.more &&
                      html`
                        <p class="loading">
                          The first ${exact(data.schedules.length)} by name. Choose a namespace to see others.
                        </p>
                      `
                    }
                  `
          }
        </div>
      </section>
    </div>
  `;
}

function Schedule({ each, refresh }) {
  return html`
    <tr data-schedule=${each.schedule_id}>
      <td>
        <a href=${schedulePage(each.schedule_id, each.namespace)}><strong>${each.schedule_id}</strong></a>
        ${
          each.paused
            ? html`
                ${" "}
                <${Badge} tone="warn">paused</${Badge}>
              `
            : null
        }
        <div class="tiny faint">${each.namespace}${each.source ? `, from ${each.source}` : ""}</div>
      </td>
      <td data-label="Starts">
        ${each.execution_kind}
        <div class="tiny faint">lane ${each.lane_id}</div>
      </td>
      <td data-label="When">
        <${Timing} spec=${each.spec} />
        <div class="tiny faint">
          ${OVERLAPS[each.overlap]}${each.jitter_ms ? `, up to ${duration(each.jitter_ms)} late` : ""}
        </div>
      </td>
      <td data-label="Next">
        ${
          each.next_at_ms
            ? html`
                <span title=${moment(each.next_at_ms)}>${relative(each.next_at_ms)}</span>
                <div class="tiny faint">${moment(each.next_at_ms)}</div>
              `
            : "–"
        }
      </td>
      <td data-label="Last">
        ${
          each.last_execution_id
            ? html`
                <${ExecutionLink} id=${each.last_execution_id} />
                <div class="tiny faint"><${When} ms=${each.last_started_at_ms} /></div>
              `
            : "–"
        }
      </td>
      <td class="number" data-label="Started">${count(each.started_count)}</td>
      <td class="actions">
        <${Verbs} each=${each} refresh=${refresh} small />
      </td>
    </tr>
  `;
}
