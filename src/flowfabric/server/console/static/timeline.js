// What an execution went through, drawn over time: waiting, attempts, leases, suspensions, retries, steps, children.
import { html, useEffect, useState } from "./dom.js";
import { duration, ENDED, moment, zoned } from "./format.js";
import { now } from "./session.js";
import { Segments } from "./parts.js";
import { rowsOf } from "./history.js";

/** A scale over time that lets long stretches in which nothing happens take less room than they would. */
export function compressed(points, from, to) {
  const edges = [...new Set([from, ...points.filter((point) => point > from && point < to), to])].sort((a, b) => a - b);
  const each = Math.max(1, Math.ceil(edges.length / 200));
  const kept = edges.filter((_, index) => index % each === 0 || index === edges.length - 1);
  const weights = kept.slice(1).map((edge, index) => (edge - kept[index]) ** 0.25);
  const total = weights.reduce((sum, weight) => sum + weight, 0) || 1;
  const places = [0];
  for (const weight of weights) places.push(places[places.length - 1] + weight / total);
  return {
    edges: kept,
    place: (ms) => {
      let at = kept.findIndex((edge) => edge >= ms);
      if (at < 0) return 1;
      if (at === 0) return 0;
      const share = (ms - kept[at - 1]) / (kept[at] - kept[at - 1]);
      return places[at - 1] + share * (places[at] - places[at - 1]);
    },
    moment: (share) => {
      let at = places.findIndex((place) => place >= share);
      if (at <= 0) return at < 0 ? to : from;
      return kept[at - 1] + ((share - places[at - 1]) / (places[at] - places[at - 1])) * (kept[at] - kept[at - 1]);
    },
  };
}

/** Whether most of what happened would be a hair's breadth wide. */
const squeezed = (points, from, to) => {
  const inner = points.filter((point) => point > from && point < to);
  return (
    inner.length > 2 &&
    inner.filter((point) => point - from < (to - from) / 25 || to - point < (to - from) / 25).length / inner.length >
      0.7
  );
};

/** A label is drawn where this much of the width, in per cent, is left for it. */
const ROOM = 7;

export function Timeline({ info, history, steps, children, onStep, chosen, onScale }) {
  const [, again] = useState(0);
  const over = ENDED.has(info.public_state);
  useEffect(() => {
    if (over) return undefined;
    const timer = setInterval(() => again((n) => n + 1), 1_000);
    return () => clearInterval(timer);
  }, [over]);
  const rows = rowsOf({ info, history, steps, children });
  const from = history.created_at;
  const to = Math.max(from + 1, history.ended_at ?? now(), ...rows.flatMap((row) => row.bars.map((bar) => bar.to)));
  const points = rows.flatMap((row) => [
    ...row.bars.flatMap((bar) => [bar.from, bar.to]),
    ...(row.ticks || []).map((tick) => tick.at),
  ]);
  const mode = ["short", "true"].includes(chosen) ? chosen : squeezed(points, from, to) ? "short" : "true";
  const scale =
    mode === "short"
      ? compressed(points, from, to)
      : { place: (ms) => (ms - from) / (to - from), moment: (share) => from + share * (to - from) };
  const part = (ms) => Math.max(0, Math.min(1, scale.place(ms))) * 100;
  const left = (ms) => `${part(ms)}%`;
  const width = (bar) => `${Math.max(0, part(bar.to) - part(bar.from))}%`;
  return html`
    <div class="stack tight">
      <div
        class="timeline"
        role="group"
        aria-label=${`Timeline of ${duration(to - from)}: ${rows.map((row) => row.name).join(", ")}`}
      >
        ${rows.map(
          (row, index) => html`
            <div class="name clip" key=${`n${index}`} title=${row.title || row.name}>
              ${
                row.href
                  ? html`<a href=${`#/executions/${encodeURIComponent(row.href)}`}>${row.name}</a>`
                  : row.name
              }
            </div>
            <div class="track" key=${`t${index}`}>
              ${row.bars.map(
                (bar, number) => html`
                  <span
                    key=${number}
                    class=${`bar ${bar.style || ""}`}
                    data-tone=${bar.tone}
                    title=${bar.title}
                    style=${{ left: left(bar.from), width: width(bar) }}
                  >
                    ${part(bar.to) - part(bar.from) > ROOM ? bar.label || duration(bar.to - bar.from) : null}
                  </span>
                `,
              )}
              ${(row.ticks || []).map(
                (tick, number) => html`
                  <span
                    key=${`k${number}`}
                    class="tick"
                    data-tone=${tick.tone}
                    title=${`${tick.title} (${zoned(tick.at)})`}
                    style=${{ left: left(tick.at) }}
                    onClick=${() => tick.step && onStep?.(tick.step)}
                  ></span>
                `,
              )}
              ${row.bars.slice(-1).map((bar) => {
                const end = part(bar.to);
                return row.timed && end - part(bar.from) <= ROOM
                  ? html`
                      <span
                        key="after"
                        class="tick-label"
                        aria-hidden="true"
                        style=${end > 85 ? { right: `${100 - part(bar.from)}%`, paddingRight: "5px" } : { left: `${end}%` }}
                      >
                        ${duration(bar.to - bar.from)}
                      </span>
                    `
                  : null;
              })}
              ${(row.ticks || []).map((tick, number) => {
                const room = (number + 1 < row.ticks.length ? part(row.ticks[number + 1].at) : 100) - part(tick.at);
                return room > ROOM && tick.label
                  ? html`
                      <span
                        key=${`l${number}`}
                        class="tick-label clip"
                        aria-hidden="true"
                        style=${{ left: left(tick.at), maxWidth: `calc(${room}% - 12px)` }}
                      >
                        ${tick.label}
                      </span>
                    `
                  : null;
              })}
            </div>
          `,
        )}
        <div class="name"></div>
        <div class="scale">
          ${[0, 0.2, 0.4, 0.6, 0.8, 1].map(
            (share) => html`
              <span key=${share} style=${{ left: `${share * 100}%` }} title=${moment(scale.moment(share))}>
                ${share === 0 ? zoned(from) : `+${duration(scale.moment(share) - from)}`}
              </span>
            `,
          )}
        </div>
      </div>
      <div class="line wide wraps">
        <div class="legend" aria-hidden="true">
          <span data-tone="waiting">
            <i class="dot"></i>
            waiting
          </span>
          <span data-tone="active">
            <i class="dot"></i>
            active
          </span>
          <span data-tone="suspended">
            <i class="dot"></i>
            suspended
          </span>
          <span data-tone="rate_limited">
            <i class="dot"></i>
            waiting for retry, lease lost
          </span>
          <span data-tone="completed">
            <i class="dot"></i>
            completed
          </span>
          <span data-tone="failed">
            <i class="dot"></i>
            failed
          </span>
        </div>
        <${Segments}
          label="Scale"
          options=${[
            ["true", "Real time"],
            ["short", "Compress waits"],
          ]}
          value=${mode}
          onChange=${onScale}
        />
      </div>
    </div>
  `;
}
