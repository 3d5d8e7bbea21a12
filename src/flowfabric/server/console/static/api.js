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

/** Whoever wants to know whether the server answers. */
const listeners = new Set();
export const onReach = (listener) => listeners.add(listener);
const reached = (there) => {
  for (const listener of listeners) listener(there);
};

/** Fetch with the credential; throws a Problem with a sentence in it. `text` is a body that is JSON already. */
export async function request(method, path, { query, body, text, signal, key } = {}) {
  let response;
  const late = AbortSignal.timeout(PATIENCE);
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
  } catch (error) {
    if (error.name === "AbortError") throw error;
    if (error.name === "TimeoutError")
      throw new Problem(
        "The server took too long to respond. Reload to see whether the change was made.",
        0,
        "late",
      );
    reached(false);
    throw new Problem(
      "The server cannot be reached. Nothing was changed; retrying automatically.",
      0,
      "unreachable",
    );
  }
  reached(true);
  if (response.ok) return response;
  throw await problemOf(response);
}

export async function problemOf(response) {
  let told = null;
  try {
    told = await response.json();
  } catch {
    /* not JSON: the status has to do */
  }
  if (response.status === 401 && me.peek()?.signed_in) {
    signOut();
    return new Problem("The credential is no longer valid. Sign in again.", 401, "unauthenticated");
  }
  return new Problem(sentence(told?.error || `the server responded with ${response.status}`), response.status, told?.kind);
}

export const get = async (path, query, options) => (await request("GET", path, { query, ...options })).json();
const changing = (method) => async (path, body, options) => {
  const answer = await request(method, path, { body, key: crypto.randomUUID?.(), ...options });
  return answer.status === 204 ? null : answer.json();
};
export const post = changing("POST");
export const put = changing("PUT");
export const remove = changing("DELETE");
export const bytes = async (path, options) => new Uint8Array(await (await request("GET", path, options)).arrayBuffer());
export const at = (id, ...rest) => ["v1/executions", encodeURIComponent(id), ...rest].join("/");
/** One variant as [name, fields]. */
export const variant = (answer) => (typeof answer === "string" ? [answer, {}] : Object.entries(answer)[0]);
