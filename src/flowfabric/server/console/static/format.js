// Numbers, times and ids as people read them.
import { now } from "./session.js";

const whole = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const clock = new Intl.DateTimeFormat(undefined, {
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
  hourCycle: "h23",
});
const day = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short" });
const full = new Intl.DateTimeFormat(undefined, {
  day: "numeric",
  month: "short",
  year: "numeric",
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
  hourCycle: "h23",
  timeZoneName: "short",
});
/** The zone that all times are shown in. */
export const zone = () =>
  new Intl.DateTimeFormat(undefined, { timeZoneName: "short" })
    .formatToParts(now())
    .find((part) => part.type === "timeZoneName").value;

export const count = (n) =>
  n === null || n === undefined ? "–" : Math.abs(n) < 100_000 ? whole.format(n) : short.format(n);
export const exact = (n) => whole.format(n);
/** A date and time with its time zone: the one way to write a moment out in full. */
export const moment = (ms) => (ms ? full.format(ms) : "–");
export const iso = (ms) => new Date(ms).toISOString();

/** 1.2 s, 3 min 4 s, 2 h 10 min, 3 d 4 h. */
export function duration(ms) {
  if (ms === null || ms === undefined) return "–";
  const span = Math.max(0, ms);
  if (span < 1_000) return `${Math.round(span)} ms`;
  if (span < 10_000) return `${(span / 1_000).toFixed(1)} s`;
  const seconds = Math.round(span / 1_000);
  if (seconds < 60) return `${seconds} s`;
  const parts = [
    ["d", 86_400],
    ["h", 3_600],
    ["min", 60],
    ["s", 1],
  ];
  const first = parts.findIndex(([, size]) => seconds >= size);
  const [name, size] = parts[first];
  const [nextName, nextSize] = parts[first + 1] || ["", 0];
  const rest = nextSize ? Math.floor((seconds % size) / nextSize) : 0;
  return `${Math.floor(seconds / size)} ${name}${rest ? ` ${rest} ${nextName}` : ""}`;
}

/** The same as short as it goes, for axes: 1.5 min, 12 min, 3 h. */
export function brief(ms) {
  const [name, unit] = [
    ["d", 86_400_000],
    ["h", 3_600_000],
    ["min", 60_000],
    ["s", 1_000],
    ["ms", 1],
  ].find(([, one]) => ms >= one) || ["ms", 1];
  return `${Math.round((ms / unit) * 10) / 10} ${name}`;
}

/** "just now", "3 min ago", "in 2 h". */
export function relative(ms) {
  if (!ms) return "–";
  const distance = ms - now();
  const span = Math.abs(distance);
  if (span < 3_000) return "just now";
  const text = duration(span)
    .split(" ")
    .slice(0, 2)
    .join(" ")
    .replace(/^(\d+)\.\d/, "$1");
  return distance < 0 ? `${text} ago` : `in ${text}`;
}

export function time(ms) {
  return Math.abs(now() - ms) < 86_400_000 ? clock.format(ms) : `${day.format(ms)}, ${clock.format(ms)}`;
}
/** A time with its zone, for sentences. */
export const zoned = (ms) => `${time(ms)} ${zone()}`;
/** Hours and minutes, for axes. */
export const minute = (ms) => clock.format(ms).slice(0, 5);

/** A time as a field for dates and times holds it, in the browser's time zone; and back. */
export const toLocal = (ms) =>
  ms ? new Date(ms - new Date(ms).getTimezoneOffset() * 60_000).toISOString().slice(0, 16) : "";
export const fromLocal = (text) => Math.max(0, Date.parse(text) || 0);

/** The end of the UUID is enough to tell executions apart by eye; its beginning is the time. */
export const shortId = (id) => (id ? String(id).slice(-8) : "–");
export const size = (n) =>
  n < 1_024 ? `${n} bytes` : n < 1_048_576 ? `${(n / 1_024).toFixed(1)} KB` : `${(n / 1_048_576).toFixed(1)} MB`;
export const words = (text) => String(text ?? "").replaceAll("_", " ");
export const plural = (n, one, many) => `${exact(n)} ${n === 1 ? one : many || `${one}s`}`;

export function fromBase64(text) {
  const binary = atob(text);
  return Uint8Array.from(binary, (character) => character.charCodeAt(0));
}
export function toBase64(given) {
  let binary = "";
  for (const byte of given) binary += String.fromCharCode(byte);
  return btoa(binary);
}

/** Bytes by what they are: {kind: "json" | "text" | "binary" | "nothing", value}. */
export function decoded(given) {
  if (!given || !given.length) return { kind: "nothing", value: null, size: 0 };
  let text;
  try {
    text = new TextDecoder("utf-8", { fatal: true }).decode(given);
  } catch {
    return { kind: "binary", value: given, size: given.length };
  }
  try {
    return { kind: "json", value: JSON.parse(text), size: given.length };
  } catch {
    return { kind: "text", value: text, size: given.length };
  }
}

export const STATES = [
  "waiting",
  "delayed",
  "rate_limited",
  "waiting_children",
  "active",
  "suspended",
  "resumable",
  "completed",
  "failed",
  "cancelled",
  "expired",
  "skipped",
];
export const ENDED = new Set(["completed", "failed", "cancelled", "expired", "skipped"]);
const MONEY = new Set([
  "aud",
  "brl",
  "cad",
  "chf",
  "cny",
  "dkk",
  "eur",
  "gbp",
  "hkd",
  "inr",
  "jpy",
  "krw",
  "nok",
  "pln",
  "sek",
  "usd",
]);
/** Money is counted in millionths; everything else as it is. */
export const amount = (dimension, n) =>
  MONEY.has(dimension)
    ? new Intl.NumberFormat("en", {
        style: "currency",
        currency: dimension.toUpperCase(),
        maximumFractionDigits: 2,
      }).format(n / 1_000_000)
    : count(n);
export const units = (dimension, text) => Math.round(Number(text) * (MONEY.has(dimension) ? 1_000_000 : 1));
export const written = (dimension, n) => String(MONEY.has(dimension) ? n / 1_000_000 : n);
