// Server-sent events over fetch, which can carry a credential: continued with Last-Event-ID, tried again when cut off.
// One stream of hints per tab says that something has changed; whoever shows something then looks again, at most once
// in a while. A hidden tab holds no connection.
import { signal, useEffect, useRef, useState } from "./dom.js";
import { address, headers, onReach, problemOf } from "./api.js";
import { may, me } from "./session.js";

/** "live", "connecting", "polling" or "offline". */
export const connection = signal("connecting");
const FIRST_PAUSE = 500;
const LAST_PAUSE = 10_000;
/** How soon a view looks again after a hint, and how often it looks anyway. */
const COALESCE = 700;
const POLL = 4_000;

/** Follow a stream until `stop` is called; `onEvent(name, data, id)`. Returns stop. */
export function follow(path, { onEvent, onState = () => {}, lastId = "", query } = {}) {
  let stopped = false;
  let abort = null;
  let pause = FIRST_PAUSE;
  let timer = null;
  let last = lastId;
  const visible = () => {
    if (document.hidden) abort?.abort();
    else if (!abort) start();
  };
  async function start() {
    clearTimeout(timer);
    if (stopped || abort || document.hidden) return;
    const own = (abort = new AbortController());
    onState("connecting");
    try {
      const response = await fetch(address(path, query), {
        headers: headers({ accept: "text/event-stream", ...(last ? { "last-event-id": last } : {}) }),
        signal: own.signal,
        cache: "no-store",
        credentials: "omit",
        referrerPolicy: "no-referrer",
      });
      if (!response.ok) {
        const problem = await problemOf(response);
        if (response.status < 500 && response.status !== 429) {
          stopped = true;
          onState("refused", problem);
          return;
        }
        throw problem;
      }
      onState("live");
      pause = FIRST_PAUSE;
      await read(response.body, (event) => {
        if (event.id !== undefined) last = event.id;
        if (!stopped) onEvent(event.name, event.data, event.id);
      });
    } catch (error) {
      if (error.name !== "AbortError" && !stopped) onState("offline", error);
    } finally {
      if (abort === own) abort = null;
      if (!stopped && !document.hidden) {
        timer = setTimeout(start, pause * (0.75 + Math.random() / 2));
        pause = Math.min(pause * 2, LAST_PAUSE);
      }
    }
  }
  document.addEventListener("visibilitychange", visible);
  start();
  return () => {
    stopped = true;
    clearTimeout(timer);
    document.removeEventListener("visibilitychange", visible);
    abort?.abort();
  };
}

async function read(body, onEvent) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const event = { name: "message", data: null, id: undefined };
      let data = "";
      for (const line of block.split("\n")) {
        const colon = line.indexOf(": ");
        const field = line.slice(0, colon);
        const text = line.slice(colon + 2);
        if (field === "event") event.name = text;
        else if (field === "id") event.id = text;
        else if (field === "data") data += text;
      }
      if (data) onEvent({ ...event, data: JSON.parse(data) });
    }
  }
}

// -- hints -----------------------------------------------------------------------------------------------------------

const viewers = new Set();
let stopHints = null;

function hint() {
  for (const viewer of viewers) viewer.hinted();
}

// Without a stream, every answer tells whether the server is there.
let polls = false;
onReach((there) => {
  if (!polls) return;
  const back = there && connection.peek() === "offline";
  connection.value = there ? "polling" : "offline";
  if (back) hint();
});

/** Begin to listen for hints, once it is known who listens. */
export function begin() {
  stopHints?.();
  stopHints = null;
  if (!me.peek()?.signed_in) return;
  polls = !may("follow_changes");
  if (polls) {
    connection.value = "polling";
    return;
  }
  stopHints = follow("v1/changes", {
    onEvent: (name) => name === "changed" && hint(),
    onState: (state) => {
      polls = state === "refused";
      // While it is tried again, it is still gone.
      if (state === "connecting" && connection.peek() === "offline") return;
      const back = connection.peek() === "offline" && state === "live";
      connection.value = polls ? "polling" : state;
      if (back) hint();
    },
  });
}

/** Look again when something has changed; at most every COALESCE milliseconds, at least every `every`. */
class Viewer {
  constructor(look, every) {
    this.look = look;
    this.every = every;
    this.at = 0;
    this.busy = false;
    this.again = false;
    this.visible = () => {
      if (!document.hidden) this.now();
    };
    document.addEventListener("visibilitychange", this.visible);
    viewers.add(this);
    this.now();
  }
  plan(delay) {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.now(), delay);
  }
  hinted() {
    if (this.busy) this.again = true;
    else this.plan(Math.max(0, this.at + COALESCE - performance.now()));
  }
  async now() {
    // A tab that was opened in the background has something to show when one comes to it.
    if (this.stopped || (document.hidden && this.at)) return;
    if (this.busy) {
      this.again = true;
      return;
    }
    clearTimeout(this.timer);
    this.busy = true;
    this.at = performance.now();
    try {
      await this.look();
    } finally {
      this.busy = false;
      if (!this.stopped) this.plan(this.again ? COALESCE : this.every);
      this.again = false;
    }
  }
  stop() {
    this.stopped = true;
    clearTimeout(this.timer);
    viewers.delete(this);
    document.removeEventListener("visibilitychange", this.visible);
  }
}

/** Call `look` now, on hints and now and then, as long as the component is there. Returns a function that looks at once. */
export function useWatch(look, deps, every = POLL) {
  const viewer = useRef(null);
  const latest = useRef(look);
  latest.current = look;
  useEffect(() => {
    const own = (viewer.current = new Viewer(() => latest.current(), every));
    return () => own.stop();
  }, deps);
  return () => viewer.current?.now();
}

/** What `load` gives, kept fresh: {data, problem, refresh}. What was loaded stays while something goes wrong. */
export function useLive(load, deps, every = POLL) {
  const [state, setState] = useState({ data: null, problem: null });
  const run = useRef(0);
  useEffect(() => {
    run.current += 1;
    setState({ data: null, problem: null });
  }, deps);
  const refresh = useWatch(
    async () => {
      const mine = run.current;
      try {
        const data = await load();
        if (mine === run.current) setState({ data, problem: null });
      } catch (problem) {
        if (mine === run.current && problem.name !== "AbortError") setState((old) => ({ data: old.data, problem }));
      }
    },
    deps,
    every,
  );
  return { ...state, refresh };
}
