// What an execution emits, as it is emitted.
import { html, useEffect, useRef, useState } from "../dom.js";
import { at } from "../api.js";
import { follow } from "../live.js";
import { fromBase64, plural, time, words } from "../format.js";
import { Empty, ended } from "../parts.js";

const FRAMES = 2_000;

/** A frame's text: what people emitted, whatever its spelling. */
export function frameText(fields) {
  const payload = fields.payload ?? "";
  if (fields.encoding !== "base64") return payload;
  return new TextDecoder().decode(fromBase64(payload));
}

export function Stream({ id, index, state }) {
  const [frames, setFrames] = useState([]);
  const [status, setStatus] = useState("connecting");
  const [closed, setClosed] = useState(null);
  const box = useRef(null);
  const pending = useRef([]);
  useEffect(() => {
    let scheduled = false;
    const flush = () => {
      scheduled = false;
      const arrived = pending.current;
      pending.current = [];
      setFrames((old) => [...old, ...arrived].slice(-FRAMES));
    };
    const stop = follow(at(id, "attempts", index, "stream", "events"), {
      onState: setStatus,
      onEvent: (name, data) => {
        if (name === "closed") {
          setClosed(data);
          stop();
        } else if (name === "frame") {
          pending.current.push(data);
          if (!scheduled) {
            scheduled = true;
            requestAnimationFrame(flush);
          }
        }
      },
    });
    return () => stop();
  }, [id, index]);
  useEffect(() => {
    const element = box.current;
    if (element && element.scrollHeight - element.scrollTop - element.clientHeight < 120)
      element.scrollTop = element.scrollHeight;
  }, [frames]);
  return html`
    <div class="stack tight">
      <div class="line wide">
        <span class="soft small">
          ${plural(frames.length, "frame")} of
          attempt ${index + 1}${closed ? `, closed: ${words(closed.closed_reason)}` : ""}
        </span>
        ${
          !closed &&
          !ended(state) &&
          html`<span class="live" data-live=${status}>${status === "live" ? "Following" : words(status)}</span>`
        }
      </div>
      ${
        frames.length
          ? html`
              <div class="stream" ref=${box} tabindex="0" role="log" aria-label="Stream">
                ${frames.map(
                  (frame) => html`<${Frame} key=${frame.id} frame=${frame} />`,
                )}${
                  !closed &&
                  !ended(state) &&
                  html`<span class="cursor-block"></span>`
                }
              </div>
            `
          : html`<${Empty} icon="executions">Nothing was emitted${ended(state) ? "" : " yet"}.</${Empty}>`
      }
    </div>
  `;
}

function Frame({ frame }) {
  const { frame_type: kind } = frame.fields;
  return html`
    <span
      class=${kind === "stderr" ? "stderr" : kind === "event" ? "event" : ""}
      title=${time(Number(frame.fields.ts))}
    >
      ${frameText(frame.fields)}
    </span>
  `;
}
