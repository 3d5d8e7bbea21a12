// The frames of an attempt, as they are written: output and log lines alike.
import { useEffect, useRef, useState } from "../dom.js";
import { at } from "../api.js";
import { follow } from "../live.js";
import { fromBase64 } from "../format.js";

const LOOK_AGAIN = 2_000;
/** How far from its end a box may stand and still follow. */
const NEAR = 40;

/** A frame's text: what people emitted, whatever its spelling. */
export function frameText(fields) {
  const payload = fields.payload ?? "";
  if (fields.encoding !== "base64") return payload;
  return new TextDecoder().decode(fromBase64(payload));
}

export const isLog = (fields) => fields.frame_type === "ff.log";

/** What `take(old, arrived)` makes of the frames of an attempt, whether they are followed, and why no more will come. */
export function useFrames(id, index, over, take) {
  const [found, setFound] = useState([]);
  const [status, setStatus] = useState("connecting");
  const [closed, setClosed] = useState(null);
  const pending = useRef([]);
  const last = useRef("");
  const [round, setRound] = useState(0);
  // A closed stream opens again if the run is replayed, under the same attempt.
  useEffect(() => {
    if (!closed || over) return undefined;
    const timer = setTimeout(() => setRound((rounds) => rounds + 1), LOOK_AGAIN);
    return () => clearTimeout(timer);
  }, [closed, over]);
  useEffect(() => {
    let scheduled = false;
    const flush = () => {
      scheduled = false;
      const arrived = pending.current;
      pending.current = [];
      setFound((old) => take(old, arrived));
    };
    const stop = follow(at(id, "attempts", index, "stream", "events"), {
      lastId: last.current,
      onState: setStatus,
      onEvent: (name, data, place) => {
        if (place !== undefined) last.current = place;
        if (name === "closed") {
          setClosed(data);
          stop();
        } else if (name === "frame" || name === "restart") {
          setClosed(null);
          pending.current.push({ ...data, restart: name === "restart" });
          if (!scheduled) {
            scheduled = true;
            requestAnimationFrame(flush);
          }
        }
      },
    });
    return () => stop();
  }, [id, index, round]);
  return { found, status, closed };
}

/** A box that stays at its end until somebody scrolls up. */
export function useFollowing(found) {
  const box = useRef(null);
  const [follows, setFollows] = useState(true);
  // What arrives may be longer than the box: whether it follows was decided when somebody last moved it.
  useEffect(() => {
    const element = box.current;
    if (element && follows) element.scrollTop = element.scrollHeight;
  }, [found, follows]);
  const onScroll = () => {
    const element = box.current;
    setFollows(element.scrollHeight - element.scrollTop - element.clientHeight < NEAR);
  };
  return { box, follows, onScroll, toEnd: () => setFollows(true) };
}
