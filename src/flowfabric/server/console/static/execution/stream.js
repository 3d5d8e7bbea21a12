// What an execution emits, as it is emitted.
import { html } from "../dom.js";
import { moment, plural, words } from "../format.js";
import { Copy, Empty, ended } from "../parts.js";
import { stepName } from "./names.js";
import { frameText, isLog, useFollowing, useFrames } from "./frames.js";

const FRAMES = 2_000;
const AGAIN = {
  retry: "after a failure",
  worker_lost: "again after its worker was lost",
  given_back: "again on another worker",
  resumed: "again after a pause",
  replayed: "again as a replay",
};

/** What a restart says, for people. */
function restarted(fields) {
  const { attempt, step, reason } = JSON.parse(frameText(fields));
  const what = step === null ? `attempt ${attempt}` : `step ${stepName(step)} in attempt ${attempt}`;
  return `Output starts over: ${what} ${AGAIN[reason] ?? "again"}`;
}

/** The frames with those that arrived; a restart makes earlier ones of its step no longer count. */
function taken(old, arrived) {
  const frames = [...old];
  for (const frame of arrived) {
    if (isLog(frame.fields)) continue;
    if (frame.restart)
      for (let place = 0; place < frames.length; place++)
        if (!frames[place].restart && frames[place].fields.step === frame.fields.step)
          frames[place] = { ...frames[place], forgotten: true };
    frames.push(frame);
  }
  return frames.slice(-FRAMES);
}

/** All that counts, as one text. */
const counted = (frames) =>
  frames.filter((frame) => !frame.restart && !frame.forgotten).map((frame) => frameText(frame.fields)).join("");

/** Whether a box follows, and the way back to its end. */
export const Following = ({ live, status, follows, some, toEnd }) => html`
  <span class="line">
    ${some && !follows && html`<button class="button small" onClick=${toEnd}>Go to the end</button>`}
    ${
      live &&
      html`
        <span class="live" data-live=${status}>
          ${status === "live" ? (follows ? "Following" : "Live, not following") : words(status)}
        </span>
      `
    }
  </span>
`;

export function Stream({ id, index, state }) {
  const over = ended(state);
  const { found: frames, status, closed } = useFrames(id, index, over, taken);
  const { box, follows, onScroll, toEnd } = useFollowing(frames);
  const live = !closed && !over;
  return html`
    <div class="stack tight">
      <div class="line wide">
        <span class="line soft small">
          ${plural(frames.filter((frame) => !frame.restart).length, "frame")} of
          attempt ${index + 1}${closed ? `, closed: ${words(closed.closed_reason)}` : ""}
          ${frames.length > 0 && html`<${Copy} text=${counted(frames)} label="Copy the output" />`}
        </span>
        <${Following} ...${{ live, status, follows, some: frames.length > 0, toEnd }} />
      </div>
      ${
        frames.length
          ? html`
              <div class="stream" ref=${box} tabindex="0" role="log" aria-label="Stream" onScroll=${onScroll}>
                ${frames.map(
                  (frame) =>
                    frame.restart
                      ? html`<${Divider} key=${frame.id} frame=${frame} />`
                      : html`<${Frame} key=${frame.id} frame=${frame} />`,
                )}${live && html`<span class="cursor-block"></span>`}
              </div>
            `
          : html`<${Empty} icon="executions">No output${over ? "" : " yet"}.</${Empty}>`
      }
    </div>
  `;
}

function Divider({ frame }) {
  return html`<div class="restart" title=${moment(Number(frame.fields.ts))}>${restarted(frame.fields)}</div>`;
}

function Frame({ frame }) {
  const { frame_type: kind, step } = frame.fields;
  const names = [kind === "stderr" ? "stderr" : kind === "event" ? "event" : "", frame.forgotten ? "forgotten" : ""];
  const about = [moment(Number(frame.fields.ts)), step && stepName(step), frame.forgotten && "no longer counts"];
  return html`
    <span class=${names.filter(Boolean).join(" ")} title=${about.filter(Boolean).join(", ")}>
      ${frameText(frame.fields)}
    </span>
  `;
}
