// Calls of the server. What goes wrong comes back as a sentence.
import { me, signOut, token } from "./session.js";

/** How long an answer may take before it is asked for again. */
const PATIENCE = 12_000;
const BASE = new URL("./", document.baseURI);

export class Problem extends Error {
  constructor(sentence, status, kind) {
    super(sentence);
    this.status = status;
    this.kind = kind;
  }
}

const sentence = (text) => {
  const trimmed = String(text).trim();
  const first = trimmed.charAt(0).toUpperCase() + trimmed.slice(1);
  return /[.!?…]$/.test(first) ? first : `${first}.`;
};

export function address(path, query) {
  const url = new URL(path, BASE);
  for (const [name, value] of Object.entries(query || {})) {
    if (value !== undefined && value !== null && value !== "") url.searchParams.set(name, value);
  }
  return url;
}

export function headers(more) {
  const given = token();
  return { ...(given ? { authorization: `Bearer ${given}` } : {}), ...more };
}

/** Called when the server answers again, or no longer. */
const listeners = new Set();
export const onReach = (listener) => listeners.add(listener);
const reached = (there) => {
  for (const listener of listeners) listener(there);
};

/** Told of every change that was asked for, as soon as its answer is there, or lost. */
const acted = new Set();
export const onActed = (listener) => acted.add(listener);

/** What went wrong on the way: the request or its answer did not arrive, or not in time. */
function lost(error, reading) {
  if (error.name === "AbortError") return error;
  if (error.name === "TimeoutError")
    return new Problem(
      `The server took too long to respond. ${reading ? "Retrying automatically." : "Reload to see whether the change was made."}`,
      0,
      "late",
    );
  reached(false);
  return new Problem(
    reading
      ? "The server cannot be reached. Nothing was changed; retrying automatically."
      : "The connection to the server was lost. Check whether the change was made before you try again.",
    0,
    "unreachable",
  );
}

/**
 * Fetch with the credential, and read the answer; throws a Problem with a sentence in it. `text` is a body that is JSON
 * already, `reads` says that nothing is changed even by a POST. An answer that breaks off is no answer.
 */
async function request(method, path, { query, body, text, signal, key, reads } = {}, read = (response) => response.json()) {
  const late = AbortSignal.timeout(PATIENCE);
  const used = token();
  let response;
  try {
    response = await fetch(address(path, query), {
      method,
      signal: signal ? AbortSignal.any([signal, late]) : late,
      cache: "no-store",
      credentials: "omit",
      referrerPolicy: "no-referrer",
      headers: headers({
        ...(body === undefined && text === undefined ? {} : { "content-type": "application/json" }),
        ...(key ? { "idempotency-key": key } : {}),
      }),
      body: text ?? (body === undefined ? undefined : JSON.stringify(body)),
    });
    if (response.ok) {
      const answer = response.status === 204 ? null : await read(response);
      reached(true);
      return answer;
    }
  } catch (error) {
    throw lost(error, reads || method === "GET");
  }
  reached(true);
  throw await problemOf(response, used);
}

/** What a refusal says; `used` is the credential that it was refused to, which need not be the one of now. */
export async function problemOf(response, used) {
  let told = null;
  try {
    told = await response.json();
  } catch {
    /* not JSON: the status has to do */
  }
  if (response.status === 401 && me.peek()?.signed_in && used === token()) {
    signOut();
    return new Problem("The credential is no longer valid. Sign in again.", 401, "unauthenticated");
  }
  return new Problem(sentence(told?.error || `the server responded with ${response.status}`), response.status, told?.kind);
}

/** Whether the server has said that there is no such thing. */
export const isGone = ({ status }) => status === 404;

/** Whether the server has said no: nothing was done, and asked for again it would be refused again. */
export const isRefusal = ({ status }) => status >= 400 && status < 500 && status !== 408 && status !== 429;

export const get = (path, query, options) => request("GET", path, { query, ...options });
const changing = (method) => async (path, body, options) => {
  try {
    return await request(method, path, { body, key: crypto.randomUUID?.(), ...options });
  } finally {
    if (!options?.reads) for (const listener of acted) listener();
  }
};
export const post = changing("POST");
export const put = changing("PUT");
export const remove = changing("DELETE");
export const bytes = async (path, options) =>
  (await request("GET", path, options, async (response) => new Uint8Array(await response.arrayBuffer()))) ?? new Uint8Array();

/**
 * `post`, `put` and `remove` of one intention: until it got an answer, a request that is made again is the same one for
 * the server, which does it once.
 */
export function intent() {
  const keys = new Map();
  const once = (change, name) => async (path, body, options = {}) => {
    const asked = JSON.stringify([name, path, body, options]);
    if (!keys.has(asked)) keys.set(asked, crypto.randomUUID?.());
    try {
      const answer = await change(path, body, { key: keys.get(asked), ...options });
      keys.delete(asked);
      return answer;
    } catch (problem) {
      // As long as the first try is at work, it may still be done; and what stands before the server does not know.
      if (isRefusal(problem) && problem.kind !== "contention") keys.delete(asked);
      throw problem;
    }
  };
  return { post: once(post, "POST"), put: once(put, "PUT"), remove: once(remove, "DELETE") };
}
export const at = (id, ...rest) => ["v1/executions", encodeURIComponent(id), ...rest].join("/");
/** One variant as [name, fields]. */
export const variant = (answer) => (typeof answer === "string" ? [answer, {}] : Object.entries(answer)[0]);
