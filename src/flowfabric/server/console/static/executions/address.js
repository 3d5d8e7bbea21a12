// What the list shows is what its address says: filters, times, columns and tab are written there and nowhere else.
import { rewrite } from "../narrowing.js";
import { now } from "../session.js";

/** Columns that can be chosen, in their order: [key, title, width]. */
export const COLUMNS = [
  ["detail", "Detail", "minmax(110px, 3fr)"],
  ["tags", "Tags", "minmax(70px, 1fr)"],
  ["space", "Namespace", "minmax(76px, 0.8fr)"],
  ["lane", "Lane", "minmax(70px, 0.8fr)"],
  ["time", "Created", "104px"],
  ["end", "Ended", "104px"],
  ["took", "Duration", "88px"],
  ["tries", "Attempts", "64px"],
];
const USUAL = "detail,tags,space,lane,time,took";

const time = (text) => Math.max(0, Date.parse(text) || 0);
const stamp = (ms) => new Date(ms).toISOString().replace(/:00\.000Z$/, "Z");

/** What an address says: {q, states, within, by, from, until, roots, columns, tab, ns}. */
export function read(query) {
  const columns = (query.get("cols") ?? USUAL).split(",");
  return {
    q: query.get("q") || "",
    states: (query.get("state") || "").split(",").filter(Boolean),
    within: Number(query.get("within")) || 0,
    by: query.get("by") === "ended" ? "ended" : "created",
    from: time(query.get("from")),
    until: time(query.get("until")),
    roots: query.get("roots") === "1",
    columns: COLUMNS.map(([key]) => key).filter((key) => columns.includes(key)),
    tab: query.get("tab") === "failures" ? "failures" : "",
    ns: query.get("ns"),
  };
}

/** What the address says now, which need not be drawn yet. */
export const here = () => read(new URLSearchParams(location.hash.split("?")[1]));

/** The address that says it. */
export function hrefOf(said) {
  const found = new URLSearchParams();
  if (said.tab) found.set("tab", said.tab);
  if (said.q) found.set("q", said.q);
  if (said.states?.length) found.set("state", said.states.join(","));
  if (said.within) found.set("within", said.within);
  if (said.by === "ended") found.set("by", "ended");
  if (said.from) found.set("from", stamp(said.from));
  if (said.until) found.set("until", stamp(said.until));
  if (said.roots) found.set("roots", "1");
  if (said.ns) found.set("ns", said.ns);
  if (said.columns && said.columns.join(",") !== USUAL) found.set("cols", said.columns.join(","));
  return `#/executions${found.size ? `?${found}` : ""}`;
}

/** Whether the address is that of the list. */
const isHere = () => /^#\/executions(\?|$)/.test(location.hash);

/**
 * Change what the address says by now, which need not be drawn yet; or `replace` it without an entry in the history, as
 * typing does. Replacing does nothing once the list was left: it may come from a timer, or from what is still drawn.
 */
export function go(changes, { replace = false } = {}) {
  const hash = hrefOf({ ...here(), ...changes });
  if (location.hash === hash || (replace && !isHere())) return;
  if (!replace) {
    location.hash = hash;
    return;
  }
  rewrite(hash);
}

/** The times that are meant, from this moment on: {created_from, created_before} or the same of the end. */
export function times({ within, by, from, until }) {
  const least = within ? Math.max(0, Math.floor((until || now()) - within)) : 0;
  const low = Math.max(from, least);
  return { [`${by}_from`]: low || undefined, [`${by}_before`]: until || undefined };
}

/** What the server is asked for. */
export const filterOf = (said, namespace, at = times(said)) => ({
  namespace: namespace || undefined,
  q: said.q.trim() || undefined,
  state: said.states.join(",") || undefined,
  roots: said.roots ? "true" : undefined,
  ...at,
});

/** Whether anything is left out but by the namespace. */
export const isNarrowed = (said) =>
  Boolean(said.q.trim() || said.states.length || said.within || said.from || said.until || said.roots);

/** A word of a search, in quotes if it needs them. */
export const term = (name, value) => {
  const text = String(value).replaceAll('"', " ").trim();
  return /^[\w.@/=+-]+$/.test(text) ? `${name}:${text}` : `${name}:"${text}"`;
};
