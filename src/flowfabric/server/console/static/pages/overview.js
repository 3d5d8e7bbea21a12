// The overview: how it goes, and what needs a person now.
import { html, useMemo, useState } from "../dom.js";
import { get } from "../api.js";
import { useLive } from "../live.js";
import { Live } from "../app.js";
import { everywhere, now } from "../session.js";
import { brief, count, duration, time } from "../format.js";
import { Chart, Legend, PALETTE, SPANS } from "../chart.js";
import { Empty, Loading, Segments, Trouble } from "../parts.js";
import { Icon } from "../icons.js";

const WINDOWS = [
  [300_000, "5 min"],
  [900_000, "15 min"],
  [3_600_000, "1 h"],
  [21_600_000, "6 h"],
  [86_400_000, "24 h"],
];
const WHERE = {
  asks: () => "#/approvals",
  lane: () => "#/workers",
  budget: (subject) => `#/budgets/${subject}`,
  worker: () => "#/workers",
};
const TONES = { asks: "suspended", lane: "warn", budget: "bad", worker: "bad" };
const ICONS = { asks: "approvals", lane: "executions", budget: "budgets", worker: "workers" };
const OUTCOMES = {
  success: ["Completed", "--completed"],
  failed: ["Failed", "--failed"],
  cancelled: ["Cancelled", "--cancelled"],
  expired: ["Expired", "--limited"],
  skipped: ["Skipped", "--waiting"],
};

export default function Overview() {
  const [within, setWithin] = useState(Number(sessionStorage.getItem("ff.window")) || 3_600_000);
  const whole = everywhere();
  const matters = useLive(() => get("v1/attention"), [], 5_000);
  const { data, problem } = useLive(
    () => (whole ? get("v1/overview", { window_ms: within }) : Promise.resolve(null)),
    [within, whole],
    5_000,
  );
  const choose = (value) => {
    sessionStorage.setItem("ff.window", value);
    setWithin(value);
  };
  return html`
    <div class="page">
      <div class="page-head">
        <h1>Overview</h1>
        <${Live} />
        ${
          whole &&
          html`
            <div class="actions">
              <${Segments} label="Window" options=${WINDOWS} value=${within} onChange=${choose} />
            </div>
          `
        }
      </div>
      <${Trouble} problem=${problem || matters.problem} />
      ${data && html`<${Tiles} data=${data} />`}
      ${
        !whole
          ? html`
              <${Matters} found=${matters.data} />
              <p class="note-box">
                This credential is limited to namespaces. The charts are about all of them, so they are not shown.
              </p>
            `
          : data
            ? html`<${Charts} data=${data} matters=${matters.data} />`
            : html`<${Loading} />`
      }
    </div>
  `;
}

function Tiles({ data }) {
  const { now: pulse, series } = data;
  const total = (name) => (series.ended[name] || []).reduce((sum, value) => sum + value, 0);
  const done = total("success");
  const failed = total("failed") + total("expired");
  const waiting = pulse.queues.reduce((sum, queue) => sum + queue.waiting, 0);
  const oldest = Math.max(0, ...pulse.queues.map((queue) => queue.oldest_age_ms));
  const minutes = (series.times.length * series.step_ms) / 60_000;
  const tiles = [
    ["Completed", done, `${count(Math.round(done / minutes))} a minute`, "completed", "#/executions?state=completed"],
    [
      "Failed",
      failed,
      done + failed ? `${((100 * failed) / (done + failed)).toFixed(1)} % of those that ended` : "none ended",
      "failed",
      "#/executions?state=failed%2Cexpired",
    ],
    [
      "Waiting",
      waiting,
      waiting ? `the oldest for ${duration(oldest)}` : "nothing waits",
      "waiting",
      "#/executions?state=waiting",
    ],
    ["Running", pulse.active, "under a lease", "active", "#/executions?state=active"],
    ["Suspended", pulse.suspended, "for people, time, others", "suspended", "#/executions?state=suspended"],
    [
      "Delayed",
      pulse.delayed,
      pulse.blocked ? `${count(pulse.blocked)} more set aside` : "until their time",
      "delayed",
      "#/executions?state=delayed%2Crate_limited",
    ],
    ["Workers", pulse.workers, "alive", "good", "#/workers"],
  ];
  return html`
    <div class="tiles">
      ${tiles.map(
        ([label, value, note, tone, href]) => html`
          <a class="tile" key=${label} href=${href} data-tone=${tone} data-tile=${label}>
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

function Matters({ found, width = "" }) {
  return html`
    <section class=${`card matters ${width}`}>
      <header>
        <h2>Needs a person now</h2>
        ${found?.matters.length ? html`<span class="count hot">${found.matters.length}</span>` : null}
      </header>
      <div class="body flush">
        ${
          !found
            ? html`<${Loading} />`
            : found.matters.length === 0
              ? html`<${Empty} icon="check">Nothing. It runs by itself.</${Empty}>`
              : html`
                  <div class="inbox-list">
                    ${found.matters.map(
                      (matter) => html`
                        <a
                          class="inbox-item"
                          key=${matter.kind + matter.subject}
                          href=${WHERE[matter.kind](encodeURIComponent(matter.subject))}
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

function Charts({ data, matters }) {
  const { series, budgets } = data;
  const ended = useMemo(
    () =>
      Object.entries(OUTCOMES)
        .filter(([name]) => series.ended[name]?.some((n) => n) || name === "success" || name === "failed")
        .map(([name, [label, color]]) => ({
          name: label,
          color,
          values: series.ended[name] || series.times.map(() => 0),
        })),
    [series],
  );
  const unended = useMemo(
    () =>
      [
        ["Running", "--active", "active"],
        ["Suspended", "--suspended", "suspended"],
        ["Delayed", "--delayed", "delayed"],
        ["Set aside", "--limited", "blocked"],
      ].map(([name, color, key]) => ({ name, color, values: series.gauges[key] })),
    [series],
  );
  const lanes = (kind) =>
    Object.entries(series[kind]).map(([name, values], index) => ({
      name,
      color: PALETTE[index % PALETTE.length],
      values,
    }));
  const waiting = useMemo(() => lanes("lanes_waiting"), [series]);
  const oldest = useMemo(() => lanes("lanes_oldest_ms"), [series]);
  const burn = useMemo(
    () =>
      budgets.slice(0, 8).map((budget, index) => ({
        name: budget.scope_id || budget.budget_id.slice(0, 8),
        color: PALETTE[index % PALETTE.length],
        values: (series.budgets[budget.budget_id] || []).map((level) => (level === null ? null : level * 100)),
      })),
    [series, budgets],
  );
  const workers = useMemo(
    () => [{ name: "Workers", color: "--completed", values: series.gauges.workers, fill: true }],
    [series],
  );
  const card = (title, note, list, chart, width = "half") => html`
    <section class=${`card ${width}`} key=${title}>
      <header>
        <h2>${title}</h2>
        <span class="soft small">${note}</span>
      </header>
      <div class="body stack tight">
        ${chart}${
          list.length > 1 &&
          html`<${Legend} series=${list} />`
        }
      </div>
    </section>
  `;
  // Only what ends is stored for ever; everything else is sampled, and kept for a day.
  const since = (note) =>
    series.sampled_from
      ? html`
          ${note},${" "}
          <span data-sampled title="Servers take samples while they run; the store has none from before.">
            since ${time(series.sampled_from)}
          </span>
        `
      : note;
  const counted = series.ended_from ? `, since ${time(series.ended_from)}` : "";
  const per = `per ${brief(series.step_ms).replace("1 min", "minute")}`;
  return html`
    <div class="grid">
      <${Matters} found=${matters} width="five" />
      ${card(
        "Throughput",
        `ended, ${per}${counted}`,
        ended,
        html`<${Chart} label="Ended" times=${series.times} series=${ended} format=${count} bars=${true} />`,
        "seven",
      )}
      ${card(
        "Under way",
        since("not ended"),
        unended,
        html`<${Chart} label="Not ended" times=${series.times} series=${unended} format=${count} />`,
      )}
      ${card(
        "Queue depth",
        since("waiting in each lane"),
        waiting,
        html`<${Chart} label="Waiting by lane" times=${series.times} series=${waiting} format=${count} />`,
      )}
      ${card(
        "Oldest waiting",
        since("age in each lane"),
        oldest,
        html`
          <${Chart}
            label="Oldest by lane"
            times=${series.times}
            series=${oldest}
            format=${duration}
            brief=${brief}
            min=${1_000}
            steps=${SPANS}
          />
        `,
        "third",
      )}
      ${card(
        "Budget burn",
        since("of the limit"),
        burn,
        html`
          <${Chart}
            label="Budgets"
            times=${series.times}
            series=${burn}
            format=${(level) => `${Math.round(level)} %`}
            min=${100}
          />
        `,
        "third",
      )}
      ${card(
        "Workers",
        since("alive"),
        workers,
        html`<${Chart} label="Workers alive" times=${series.times} series=${workers} format=${count} />`,
        "third",
      )}
    </div>
  `;
}
