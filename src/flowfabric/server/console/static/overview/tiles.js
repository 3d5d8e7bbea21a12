// What the overview says in numbers, what needs a person, what fails; and the whole of it for those who see some
// namespaces only.
import { html } from "../dom.js";
import { get } from "../api.js";
import { useLive } from "../live.js";
import { now } from "../session.js";
import { count, duration, zoned } from "../format.js";
import { Empty, Loading } from "../parts.js";
import { Icon } from "../icons.js";
import { budgetPage, ownedKey } from "../owners.js";
import { hrefOf, term } from "../executions/address.js";
import { Groups } from "../executions/failures.js";

const WHERE = {
  asks: () => "#/approvals",
  lane: () => "#/workers",
  budget: (matter) => budgetPage(matter.subject, matter.namespace),
  worker: () => "#/workers",
};
const TONES = { asks: "suspended", lane: "warn", budget: "bad", worker: "bad" };
const ICONS = { asks: "approvals", lane: "executions", budget: "budgets", worker: "workers" };

/** Where a tile leads: to what it counts, over the same time. */
const ended = (states, within) => hrefOf({ states, within, by: "ended" });
const open = (...states) => hrefOf({ states });

/** Most of the time there are none. */
const limited = (amount) =>
  amount ? [["Rate limited", amount, "by budgets or quotas", "rate_limited", open("rate_limited")]] : [];

export function tilesOf({ now: pulse, series }, within) {
  const total = (name) => (series.ended[name] || []).reduce((sum, value) => sum + value, 0);
  const done = total("success");
  const failed = total("failed") + total("expired");
  const waiting = pulse.queues.reduce((sum, queue) => sum + queue.waiting, 0);
  const oldest = Math.max(0, ...pulse.queues.map((queue) => queue.oldest_age_ms));
  const minutes = (series.times.length * series.step_ms) / 60_000;
  return [
    [
      "Completed",
      done,
      `${count(Math.round(done / minutes))} per minute`,
      "completed",
      ended(["completed"], within),
    ],
    [
      "Failed",
      failed,
      done + failed ? `${((100 * failed) / (done + failed)).toFixed(1)} % of all ended` : "none ended",
      "failed",
      ended(["failed", "expired"], within),
    ],
    [
      "Waiting",
      waiting,
      waiting ? `oldest: ${duration(oldest)}` : "none waiting",
      "waiting",
      open("waiting", "resumable"),
    ],
    ["Active", pulse.active, "under a lease", "active", open("active")],
    ["Suspended", pulse.suspended, "on signals, timers or children", "suspended", open("suspended")],
    ["Delayed", pulse.delayed, "until their start time", "delayed", open("delayed")],
    ...limited(pulse.blocked),
    ["Workers", pulse.workers, "alive", "good", "#/workers"],
  ];
}

/** Where a number and the list behind it can differ. */
const REPLAYED = "Counts every end in this window. The list omits runs that were replayed since.";
const TITLES = { Completed: REPLAYED, Failed: REPLAYED };

export function Tiles({ tiles }) {
  return html`
    <div class="tiles">
      ${tiles.map(
        ([label, value, note, tone, href]) => html`
          <a class="tile" key=${label} href=${href} data-tone=${tone} data-tile=${label} title=${TITLES[label]}>
            <div class="label">
              <i class="dot"></i>
              ${label}
            </div>
            <div class="value">${count(value)}</div>
            <div class="note">${note}</div>
          </a>
        `,
      )}
    </div>
  `;
}

/** What failed most. */
export function Failing({ within, own }) {
  const { data } = useLive(
    () =>
      get("v1/search/failures", { namespace: own, created_from: Math.max(0, Math.floor(now() - within)), limit: 5 }),
    [own, within],
    10_000,
  );
  if (!data?.groups.length) return null;
  return html`
    <section class="card">
      <header>
        <h2>Failures by error</h2>
        <a class="small" href=${hrefOf({ tab: "failures", within })}>All failures</a>
      </header>
      <div class="body flush"><${Groups} groups=${data.groups} said=${{ q: "", within }} /></div>
    </section>
  `;
}

/** For one namespace, or those who see only some: how it goes there, and the lanes with their work. */
export function Limited({ matters, within, own }) {
  const { data } = useLive(
    async () => {
      const since = Math.max(0, Math.floor(now() - within));
      const [after, before, depths] = await Promise.all([
        get("v1/search/states", { namespace: own, ended_from: since }),
        get("v1/search/states", { namespace: own }),
        get("v1/queues", { namespace: own }),
      ]);
      return { ended: after, all: before, queues: depths.queues };
    },
    [own, within],
    5_000,
  );
  if (!data)
    return html`
      <${Matters} found=${matters} />
      <${Loading} />
    `;
  const sum = (counts, states) => states.reduce((total, state) => total + (counts.counts[state] || 0), 0);
  const tile = (name, states, note, tone, counts, href) => [name, sum(counts, states), note, tone, href];
  const here = (name, states, note, tone = states[0]) => tile(name, states, note, tone, data.all, open(...states));
  const past = (name, states, note) =>
    tile(name, states, note, states[0], data.ended, ended(states, within));
  const tiles = [
    past("Completed", ["completed"], "in this window"),
    past("Failed", ["failed", "expired"], "in this window"),
    here("Waiting", ["waiting", "resumable"], "for a worker"),
    here("Active", ["active"], "under a lease"),
    here("Suspended", ["suspended"], "on signals, timers or children"),
    here("Delayed", ["delayed"], "until their start time"),
    ...limited(sum(data.all, ["rate_limited"])),
  ];
  return html`
    <${Tiles} tiles=${tiles} />
    <div class="grid">
      <${Matters} found=${matters} width="half" />
      <section class="card half" data-lanes>
        <header>
          <h2>Lanes</h2>
          <span class="soft small">waiting for a worker</span>
        </header>
        <div class="body flush">
          ${
            data.queues.length
              ? html`
                  <table class="table">
                    <thead>
                      <tr>
                        <th scope="col">Lane</th>
                        <th scope="col" class="number">Waiting</th>
                        <th scope="col" class="number">Oldest</th>
                      </tr>
                    </thead>
                    <tbody>
                      ${data.queues.map(
                        (queue) => html`
                          <tr key=${queue.lane_id}>
                            <td class="wrap-anywhere">
                              <a href=${hrefOf({ q: term("lane", queue.lane_id), states: ["waiting", "resumable"] })}>
                                ${queue.lane_id}
                              </a>
                            </td>
                            <td class="number">${count(queue.waiting)}</td>
                            <td class="number">${duration(queue.oldest_age_ms)}</td>
                          </tr>
                        `,
                      )}
                    </tbody>
                  </table>
                `
              : html`<${Empty} icon="check">Nothing is waiting for a worker.</${Empty}>`
          }
        </div>
      </section>
    </div>
    <p class="faint small">
      ${own ? `Only namespace ${own} is shown.` : "This credential is limited to some namespaces."}${" "}
      ${data.all.oldest && `The numbers cover executions created since ${zoned(data.all.oldest)}. `}
      Charts cover all namespaces, so they are not shown here.
    </p>
  `;
}

export function Matters({ found, width = "" }) {
  return html`
    <section class=${`card matters ${width}`}>
      <header>
        <h2>Needs attention</h2>
        ${found?.matters.length ? html`<span class="count hot">${found.matters.length}</span>` : null}
      </header>
      <div class="body flush">
        ${
          !found
            ? html`<${Loading} />`
            : found.matters.length === 0
              ? html`<${Empty} icon="check">All clear.</${Empty}>`
              : html`
                  <div class="inbox-list">
                    ${found.matters.map(
                      (matter) => html`
                        <a
                          class="inbox-item"
                          key=${matter.kind + ownedKey(matter.subject, matter.namespace)}
                          href=${WHERE[matter.kind](matter)}
                          data-tone=${TONES[matter.kind]}
                          data-matter=${matter.kind}
                        >
                          <span class="line">
                            <span class="badge plain" data-tone=${TONES[matter.kind]}>
                              <${Small} name=${ICONS[matter.kind]} />
                            </span>
                            <span class="grow">${capital(matter.sentence)}.</span>
                            ${
                              matter.since_ms
                                ? html`<span class="faint small">for ${duration(now() - matter.since_ms)}</span>`
                                : null
                            }
                          </span>
                        </a>
                      `,
                    )}
                  </div>
                `
        }
      </div>
    </section>
  `;
}
const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);
const Small = ({ name }) => html`
  <span class="small-icon"><${Icon} name=${name} /></span>
`;
