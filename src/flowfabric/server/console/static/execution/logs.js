// What an execution's functions log, as they log it.
import { html } from "../dom.js";
import { moment, plural, time } from "../format.js";
import { Copy, Empty, ended, Segments, Zone } from "../parts.js";
import { stepName } from "./names.js";
import { frameText, isLog, useFollowing, useFrames } from "./frames.js";
import { Following } from "./stream.js";

const LINES = 5_000;

function linesOf(frame) {
  try {
    return JSON.parse(frameText(frame.fields)).map((line, at) => ({ ...line, id: `${frame.id}.${at}` }));
  } catch {
    return [];
  }
}

const taken = (old, arrived) => [...old, ...arrived.filter(({ fields }) => isLog(fields)).flatMap(linesOf)].slice(-LINES);
const plain = ({ at_ms: at, level, step, text }) =>
  [new Date(at).toISOString(), level, ...(step ? [`[${stepName(step)}]`] : []), text].join(" ");

/** Lines of the newest attempt, or of the one that is chosen. */
export function Logs({ id, current, state, chosen, choose }) {
  const at = Number(chosen) - 1;
  const index = Number.isInteger(at) && at >= 0 && at <= current ? at : current;
  const attempts = Array.from({ length: current + 1 }, (_, at) => [at, `Attempt ${at + 1}`]).slice(-6);
  return html`
    <div class="stack tight">
      ${current > 0 && html`<${Segments} label="Attempt" options=${attempts} value=${index} onChange=${(at) => choose(at + 1)} />`}
      <${Lines} key=${index} ...${{ id, index, over: ended(state) || index < current }} />
    </div>
  `;
}

function Lines({ id, index, over }) {
  const { found: lines, status, closed } = useFrames(id, index, over, taken);
  const { box, follows, onScroll, toEnd } = useFollowing(lines);
  return html`
    <div class="line wide">
      <span class="line soft small">
        ${plural(lines.length, "line")}
        ${lines.length > 0 && html`<${Copy} text=${lines.map(plain).join("\n")} label="Copy the lines" />`}
      </span>
      <${Following} ...${{ live: !closed && !over, status, follows, some: lines.length > 0, toEnd }} />
    </div>
    ${
      lines.length
        ? html`
            <div class="stream logs" ref=${box} tabindex="0" role="log" aria-label="Logs" onScroll=${onScroll}>
              ${lines.map((line) => html`<${Line} key=${line.id} line=${line} />`)}
            </div>
            <${Zone} />
          `
        : html`<${Empty} icon="executions">No log lines${over ? "" : " yet"}. Functions write them with ctx.log.</${Empty}>`
    }
  `;
}

const Line = ({ line: { at_ms: at, level, step, text } }) => html`
  <div class="log-line" data-level=${level}>
    <time title=${moment(at)}>${time(at)}</time>
    <span class="level">${level}</span>
    <span class="what">${step && html`<span class="faint">${stepName(step)}${" "}</span>`}${text}</span>
  </div>
`;
