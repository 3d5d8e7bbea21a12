// Server-sent events over fetch, which can carry a credential: continued with Last-Event-ID, retried when cut off.
// One stream of hints per tab says that something has changed; what is shown is then read again, at most once in
// a while. A hidden tab holds no connection.
import { effect, signal, useEffect, useLayoutEffect, useMemo, useRef, useState } from "./dom.js";
import { address, headers, isGone, isRefusal, onActed, onReach, problemOf } from "./api.js";
import { may, me, token } from "./session.js";

/** "live", "connecting", "polling" or "offline". */
export const connection = signal("connecting");
const FIRST_PAUSE = 500;
const LAST_PAUSE = 10_000;
/** How soon a view looks again after a hint, and how often it looks anyway. */
const COALESCE = 700;
const POLL = 4_000;
/** How soon something is asked for again that is there once and for all. */
const ONCE_AGAIN = 2_000;

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
      const used = token();
      const response = await fetch(address(path, query), {
        headers: headers({ accept: "text/event-stream", ...(last ? { "last-event-id": last } : {}) }),
        signal: own.signal,
        cache: "no-store",
        credentials: "omit",
        referrerPolicy: "no-referrer",
      });
      if (!response.ok) {
        const problem = await problemOf(response, used);
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

// Any view may have changed after an act, also if the answer to it was lost.
onActed(hint);

// Without a stream, every answer tells whether the server is there.
let polls = false;
onReach((there) => {
  if (!polls) return;
  const back = there && connection.peek() === "offline";
  connection.value = there ? "polling" : "offline";
  if (back) hint();
});

/** Listen for hints with the credential of who is signed in. */
function begin() {
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

effect(() => {
  if (me.value) begin();
});

/** Look again when something has changed; at most every COALESCE milliseconds, at least every `every`. */
class Viewer {
  constructor(look, every) {
    this.look = look;
    this.every = every;
    this.at = 0;
    this.busy = false;
    this.again = false;
    this.waiting = [];
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
    this.again = false;
    this.at = performance.now();
    const waiting = this.waiting.splice(0);
    let seen = false;
    try {
      seen = (await this.look()) !== false;
    } finally {
      this.busy = false;
      if (seen || this.stopped) for (const settle of waiting) settle();
      else this.waiting.unshift(...waiting);
      const soon = this.waiting.length && seen ? 0 : COALESCE;
      if (!this.stopped) this.plan(this.waiting.length || this.again ? soon : this.every);
    }
  }
  /** Look now, or right after the look under way, which may have read what was before. Settles once that is seen. */
  fresh() {
    if (this.stopped) return Promise.resolve();
    return new Promise((settle) => {
      this.waiting.push(settle);
      this.now();
    });
  }
  stop() {
    this.stopped = true;
    clearTimeout(this.timer);
    viewers.delete(this);
    document.removeEventListener("visibilitychange", this.visible);
    for (const settle of this.waiting.splice(0)) settle();
  }
}

/**
 * What is asked for, as long as `deps` stay the same: `open` turns false as soon as something else is drawn, or nothing.
 * An answer is for the question it was given to: look whether that is still open after each wait.
 */
export function useQuestion(deps) {
  const question = useMemo(() => ({ open: true }), deps);
  const latest = useRef(question);
  if (latest.current !== question) latest.current.open = false;
  latest.current = question;
  useLayoutEffect(
    () => () => {
      latest.current.open = false;
    },
    [],
  );
  return question;
}

/**
 * Call `look` now, on hints and now and then, as long as the component is there; `false` says that it saw nothing.
 * Returns a function that looks at once, and settles when something was seen that was read after the call.
 */
export function useWatch(look, deps, every = POLL) {
  const viewer = useRef(null);
  const latest = useRef(look);
  latest.current = look;
  useEffect(() => {
    const own = (viewer.current = new Viewer(() => latest.current(), every));
    return () => own.stop();
  }, deps);
  return () => viewer.current?.fresh() ?? Promise.resolve();
}

const NOTHING = { data: null, problem: null };

/**
 * What `load` gives, kept fresh: {data, problem, refresh}. What was loaded stays while something goes wrong, but not if
 * the server says that it does not exist.
 */
export function useLive(load, deps, every = POLL) {
  const question = useQuestion(deps);
  const [told, setTold] = useState(NOTHING);
  const tell = (next) =>
    setTold((old) => {
      const known = old.question === question ? old : NOTHING;
      const same = known === old && Object.entries(next).every(([name, value]) => old[name] === value);
      return same || !question.open ? old : { ...known, question, ...next };
    });
  const refresh = useWatch(
    async () => {
      try {
        const data = await load();
        tell({ data, problem: null });
        return true;
      } catch (problem) {
        if (problem.name !== "AbortError") tell(isGone(problem) ? { data: null, problem } : { problem });
        return false;
      }
    },
    [question],
    every,
  );
  const { data, problem } = told.question === question ? told : NOTHING;
  return { data, problem, refresh };
}

/**
 * What `load` gives, asked for until there is an answer, which may be a refusal: {data, problem}. An answer that does not
 * `settle` it is shown, and asked for again: what cannot be done now may be possible in a moment.
 */
export function useOnce(load, deps, settles = () => true) {
  const question = useQuestion(deps);
  return useLive(
    async () => {
      if (question.answer) return question.answer.data;
      if (question.refusal) throw question.refusal;
      try {
        const data = await load();
        if (settles(data)) question.answer = { data };
        return data;
      } catch (problem) {
        if (isRefusal(problem)) question.refusal = problem;
        throw problem;
      }
    },
    [question],
    ONCE_AGAIN,
  );
}

/**
 * A list that is read page by page, kept fresh: `page(cursor)` gives {rows, next}. {data: {rows, more}, problem, refresh,
 * more}: `more()` reads a further page; what is there stays meanwhile.
 */
export function usePages(page, deps, { first = 1, every = POLL } = {}) {
  const wanted = useMemo(() => ({ pages: first }), deps);
  const { data, problem, refresh } = useLive(
    async () => {
      const { pages } = wanted;
      let rows = [];
      let cursor;
      for (let number = 0; number < pages && cursor !== null; number += 1) {
        const found = await page(cursor);
        rows = rows.concat(found.rows);
        cursor = found.next;
      }
      return { rows, more: cursor !== null, pages };
    },
    [wanted],
    every,
  );
  const more = () => {
    // Until it is there, it is the same page that is asked for.
    wanted.pages = data.pages + 1;
    refresh();
  };
  return { data, problem, refresh, more };
}
