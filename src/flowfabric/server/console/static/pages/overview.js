// The overview: how it goes, and what needs a person now.
import { html, useMemo } from "../dom.js";
import { get } from "../api.js";
import { useLive } from "../live.js";
import { changed, useNamespace } from "../narrowing.js";
import { Live } from "../app.js";
import { everywhere, may } from "../session.js";
import { brief, count, duration, shortId, zoned } from "../format.js";
import { Chart, Legend, PALETTE, SPANS } from "../chart.js";
import { Loading, Segments, Trouble, Zone } from "../parts.js";
import { whose } from "../owners.js";
import { Failing, Limited, Matters, Tiles, tilesOf } from "../overview/tiles.js";

const WINDOWS = [
  [300_000, "5 min"],
  [900_000, "15 min"],
  [3_600_000, "1 h"],
  [21_600_000, "6 h"],
  [86_400_000, "24 h"],
];
const OUTCOMES = {
  success: ["Completed", "--completed"],
  failed: ["Failed", "--failed"],
  cancelled: ["Cancelled", "--cancelled"],
  expired: ["Expired", "--expired"],
  skipped: ["Skipped", "--skipped"],
};

export default function Overview({ query }) {
  const asked = Number(query.get("within"));
  const within = WINDOWS.some(([ms]) => ms === asked) ? asked : 3_600_000;
  const own = useNamespace("overview", query);
  // Samples are of all namespaces.
  const whole = may("overview") && !own;
  const matters = useLive(() => get("v1/attention", { namespace: own }), [own], 5_000);
  const { data, problem } = useLive(
    () => (whole ? get("v1/overview", { window_ms: within }) : Promise.resolve(null)),
    [within, whole],
    5_000,
  );
  const choose = (value) => {
    location.hash = changed({ within: value });
  };
  return html`
    <div class="page">
      <div class="page-head">
        <h1>Overview</h1>
        <${Live} />
        <div class="actions">
          <${Segments} label="Window" options=${WINDOWS} value=${within} onChange=${choose} />
        </div>
      </div>
      <${Trouble} problem=${problem || matters.problem} />
      ${data && html`<${Tiles} tiles=${tilesOf(data, within)} />`}
      ${
        !whole
          ? html`<${Limited} matters=${matters.data} within=${within} own=${own} />`
          : data
            ? html`<${Charts} data=${data} matters=${matters.data} />`
            : html`<${Loading} />`
      }
      ${(whole || own || !everywhere()) && may("group_failures") && html`<${Failing} within=${within} own=${own} />`}
    </div>
  `;
}

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
        ["Active", "--active", "active"],
        ["Suspended", "--suspended", "suspended"],
        ["Delayed", "--delayed", "delayed"],
        ["Rate limited", "--limited", "blocked"],
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
      budgets
        .slice(0, 8)
        .map((budget, index) => ({
          key: budget.line,
          name: (budget.scope_id || shortId(budget.budget_id)) + whose(budget.namespace),
          color: PALETTE[index % PALETTE.length],
          values: (series.budgets[budget.line] || []).map((level) => (level === null ? null : level * 100)),
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
          <span data-sampled title="Servers take samples while they run; there are no earlier ones.">
            since ${zoned(series.sampled_from)}
          </span>
        `
      : note;
  const counted = series.ended_from ? `, since ${zoned(series.ended_from)}` : "";
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
        "In progress",
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
    <${Zone} />
  `;
}
