// Schedules: what starts by itself, when next, and pausing or starting it now.
import { html, useValue } from "../dom.js";
import { get, post, variant } from "../api.js";
import { useLive } from "../live.js";
import { Live } from "../app.js";
import { may, namespace } from "../session.js";
import { count, duration, exact, moment, relative, words } from "../format.js";
import { Badge, Empty, ExecutionLink, Loading, Trouble, When } from "../parts.js";
import { confirm } from "../dialogs.js";
import { toast } from "../toasts.js";
import { Icon } from "../icons.js";

export default function Schedules() {
  const own = useValue(namespace);
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
  return html`
    <div class="page">
      <div class="page-head">
        <h1>Schedules</h1>
        <${Live} />
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
                      Nothing starts by itself here.
                      <span class="small faint">Make one with @app.cron, or with PUT /v1/schedules.</span>
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
                      <tbody>
                        ${data.schedules.map(
                          (each) => html`
                            <${Schedule} key=${each.namespace + each.schedule_id} each=${each} refresh=${refresh} />
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

const rhythm = (spec) =>
  spec.expression
    ? html`
        <span class="mono">${spec.expression}</span>
        ${" "}
        <span class="faint small">${spec.time_zone}</span>
      `
    : `every ${duration(spec.every_ms)}`;

function Schedule({ each, refresh }) {
  const path = `v1/schedules/${encodeURIComponent(each.schedule_id)}`;
  const query = `?namespace=${encodeURIComponent(each.namespace)}`;
  const act = (verb, text) => async () => {
    try {
      await post(`${path}/${verb}${query}`, undefined);
      toast(text);
      refresh();
    } catch (problem) {
      toast(problem.message, "bad");
    }
  };
  const trigger = () =>
    confirm({
      title: `Start ${each.schedule_id} now?`,
      label: "Start it",
      consequence:
        "It starts once, besides its rhythm, which stays as it is. Whether it may overlap with the last one is as the schedule says.",
      act: async () => {
        const [name, fields] = variant(await post(`${path}/trigger${query}`, {}));
        toast(
          fields.execution_id ? "It is started." : `Nothing was started: ${words(fields.reason || name)}.`,
          fields.execution_id ? "good" : "warn",
        );
        refresh();
      },
    });
  return html`
    <tr data-schedule=${each.schedule_id}>
      <td>
        <strong>${each.schedule_id}</strong>
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
        ${rhythm(each.spec)}
        <div class="tiny faint">
          ${words(each.overlap)} if the last one
          runs${each.jitter_ms ? `, up to ${duration(each.jitter_ms)} late` : ""}
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
        ${
          may("operator") &&
          html`
            <button type="button" class="button small" onClick=${trigger}>
              <${Icon} name="plus" />
              Start…
            </button>
            ${
              each.paused
                ? html`
                    <button type="button" class="button small" onClick=${act("resume", "It starts by itself again.")}>
                      <${Icon} name="play" />
                      Resume
                    </button>
                  `
                : html`
                    <button type="button" class="button small" onClick=${act("pause", "It is paused.")}>
                      <${Icon} name="pause" />
                      Pause
                    </button>
                  `
            }
          `
        }
      </td>
    </tr>
  `;
}
