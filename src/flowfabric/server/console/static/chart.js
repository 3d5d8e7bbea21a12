// Lines over time. uPlot draws; this gives it colours, a tip, and new numbers as they come.
import { html, useEffect, useRef, useState } from "./dom.js";
import uPlot from "./vendor/uplot.js";
import { minute, moment } from "./format.js";

const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
/** Colours that can be told apart in both themes, for lines that have no meaning of their own. */
export const PALETTE = [
  "--accent",
  "--delayed",
  "--suspended",
  "--limited",
  "--completed",
  "--failed",
  "--waiting",
  "--active",
];

const TENS = Array.from({ length: 16 }, (_, power) => 10 ** power);
/** Steps between the lines across: whole numbers, and times as clocks count them. */
const WHOLE = TENS.flatMap((ten) => [ten, 2 * ten, 5 * ten]);
const DAY = 86_400_000;
export const SPANS = [
  ...WHOLE.filter((ms) => ms <= 10_000),
  ...[15, 30, 60, 120, 300, 600, 900, 1_800].map((seconds) => seconds * 1_000),
  ...[1, 2, 3, 6, 12].map((hours) => hours * 3_600_000),
  ...WHOLE.slice(0, 24).map((days) => days * DAY),
];

/** `series`: [{name, color (a token), values, fill, stacked}]; `times` in milliseconds. */
export function Chart({ label, times, series, format = String, brief = format, bars = false, min = 1, steps = WHOLE }) {
  const box = useRef(null);
  const plot = useRef(null);
  const [tip, setTip] = useState(null);
  const [theme, setTheme] = useState(0);
  const names = series.map((each) => each.name).join("\u0000");
  useEffect(() => {
    const again = () => setTheme((n) => n + 1);
    addEventListener("ff-theme", again);
    return () => removeEventListener("ff-theme", again);
  }, []);
  useEffect(() => {
    const element = box.current;
    const axis = {
      stroke: style("--text-faint"),
      grid: { stroke: style("--line"), width: 1 },
      ticks: { show: false },
      font: `11px ${style("--sans")}`,
    };
    const size = () => ({ width: Math.max(120, element.clientWidth), height: element.clientHeight });
    plot.current = new uPlot(
      {
        ...size(),
        padding: [8, 18, 0, 0],
        cursor: { y: false, points: { size: 6 }, drag: { x: false, y: false } },
        legend: { show: false },
        scales: {
          x: { time: true, ...(bars ? { range: whole } : {}) },
          y: { range: (_, low, high) => [0, Math.max(min, (high || 0) * 1.12)] },
        },
        axes: [
          { ...axis, size: 26, space: 58, values: (_, marks) => marks.map((mark) => minute(mark * 1_000)) },
          { ...axis, size: 46, incrs: steps, values: (_, marks) => marks.map((mark) => brief(mark)) },
        ],
        series: [
          {},
          ...series.map((each) => ({
            label: each.name,
            stroke: style(each.color),
            fill: each.fill ? `color-mix(in srgb, ${style(each.color)} 14%, transparent)` : undefined,
            width: bars ? 0 : 1.8,
            // Few of them make no line that could be seen; how many there are changes with time.
            points: { show: (own, line) => !bars && own.data[line].filter((value) => value !== null).length < 4, size: 5 },
            spanGaps: true,
            paths: bars ? uPlot.paths.bars({ size: [0.8, 14] }) : undefined,
            ...(bars ? { fill: style(each.color) } : {}),
          })),
        ],
        hooks: {
          setCursor: [
            (own) => {
              const { idx, left } = own.cursor;
              setTip(idx === null || idx === undefined || left < 0 ? null : { idx, left });
            },
          ],
        },
      },
      [[], ...series.map(() => [])],
      element,
    );
    const observer = new ResizeObserver(() => plot.current.setSize(size()));
    observer.observe(element);
    return () => {
      observer.disconnect();
      plot.current.destroy();
    };
  }, [names, theme]);
  useEffect(() => {
    // Bars stand on each other's shoulders: the last one drawn is the lowest.
    const sums = bars ? stacked(series) : series.map((each) => each.values);
    plot.current.setData([times.map((ms) => ms / 1_000), ...sums]);
  }, [times, series, names, theme]);
  const nothing = !series.some((each) => each.values.some((value) => value));
  const last = series
    .map((each) => `${each.name} ${format(each.values.findLast?.((value) => value !== null) ?? 0)}`)
    .join(", ");
  return html`
    <figure class="chart" role="img" aria-label=${`${label}: ${last}`}>
      <div ref=${box} style=${{ position: "absolute", inset: "0" }}></div>
      ${nothing && html`<div class="chart-note">No data in this time range</div>`}
      ${
        tip &&
        html`
          <div class="chart-tip" style=${tip.left > 200 ? { left: "56px", top: "4px" } : { right: "8px", top: "4px" }}>
            <div class="faint">${moment(times[tip.idx])}</div>
            ${series.map(
              (each) => html`
                <div key=${each.key ?? each.name} class="line">
                  <i class="dot" style=${{ background: style(each.color) }}></i>
                  ${each.name}${" "}
                  <strong>
                    ${each.values[tip.idx] === null || each.values[tip.idx] === undefined ? "–" : format(each.values[tip.idx])}
                  </strong>
                </div>
              `,
            )}
          </div>
        `
      }
    </figure>
  `;
}

/** Bars stand in the middle of their time: half of the first and of the last one lies beyond. */
function whole(own, first, last) {
  const [one, two] = own.data[0];
  const half = two ? (two - one) / 2 : 0;
  return [first - half, last + half];
}

function stacked(series) {
  const sums = [];
  let below = null;
  for (const each of [...series].reverse()) {
    below = each.values.map((value, index) => (value || 0) + (below ? below[index] : 0));
    sums.unshift(below);
  }
  return sums;
}

export const Legend = ({ series }) => html`
  <div class="legend" aria-hidden="true">
    ${series.map(
      (each) => html`
        <span key=${each.key ?? each.name}>
          <i class="dot" style=${{ background: `var(${each.color})` }}></i>
          ${each.name}
        </span>
      `,
    )}
  </div>
`;
