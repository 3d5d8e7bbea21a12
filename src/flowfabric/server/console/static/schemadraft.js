// What is typed into a form, and what it means. A draft has the shape of its schema: texts for texts and numbers, a
// position for a choice, undefined for what is left out. Only a whole draft without problems becomes a value.
import { check, checkHere, choicesOf, isCompound, isNullable, kindOf, numberOf, own, resolved, wantedOf } from "./schemacheck.js";

const LEFT_OUT = Symbol("left out");
const LOCAL = /^\d{4,6}-\d\d-\d\dT\d\d:\d\d(:\d\d)?$/;
const CLOCK = /^\d\d:\d\d(:\d\d)?$/;

export const optionsOf = (schema) => schema.enum || [schema.const];
const same = (first, second) => JSON.stringify(first) === JSON.stringify(second);

/** Whether nothing may stand in its place. */
export const mayBeEmpty = (schema, required) => isNullable(schema) || (!required && !("default" in schema));

/** What a form begins with: what is given, or the default, or nothing. */
export function draftOf(given, root = given, value = undefined, required = true) {
  const schema = resolved(given, root);
  const start = value !== undefined ? value : schema.default;
  const kind = kindOf(schema, root);
  if (start === undefined || start === null) {
    if (isCompound(schema) && (start === null || !required) && mayBeEmpty(schema, required)) return undefined;
    return blank(schema, kind, root);
  }
  switch (kind) {
    case "object":
      return Object.fromEntries(
        Object.entries(schema.properties || {}).map(([name, inner]) => [
          name,
          draftOf(inner, root, own(start, name), (schema.required || []).includes(name)),
        ]),
      );
    case "map":
      return Object.entries(start).map(([name, each]) => [name, draftOf(schema.additionalProperties, root, each)]);
    case "array":
      return Array.isArray(start) ? start.map((each) => draftOf(schema.items, root, each)) : [];
    case "tuple":
      return schema.prefixItems.map((each, index) => draftOf(each, root, start[index]));
    case "union": {
      const choices = choicesOf(schema);
      const at = choices.findIndex((each) => check(each, start, root) === "");
      return at < 0 ? blank(schema, kind, root) : { at, inner: draftOf(choices[at], root, start) };
    }
    case "choice":
      return optionsOf(schema).findIndex((each) => same(each, start));
    case "boolean":
      return start;
    case "json":
      return JSON.stringify(start, null, 2);
    default:
      return textOf(schema, String(start));
  }
}

/** Dates and times as their fields hold them, in the browser's time zone. */
function textOf(schema, text) {
  if (schema.format !== "date-time" || !/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(Z|[+-]\d\d:\d\d)?$/.test(text)) return text;
  const made = new Date(text);
  if (text.length === 19 || Number.isNaN(made.getTime())) return text;
  const pad = (n, size = 2) => String(n).padStart(size, "0");
  const local = `${pad(made.getFullYear(), 4)}-${pad(made.getMonth() + 1)}-${pad(made.getDate())}T${pad(made.getHours())}:${pad(made.getMinutes())}:${pad(made.getSeconds())}`;
  // Some local times are there twice a year, and some clocks were not set by whole minutes.
  return new Date(local).getTime() === made.getTime() ? local : text;
}

function blank(schema, kind, root) {
  switch (kind) {
    case "object":
      return Object.fromEntries(
        Object.entries(schema.properties || {}).map(([name, inner]) => [
          name,
          draftOf(inner, root, undefined, (schema.required || []).includes(name)),
        ]),
      );
    case "map":
      return [];
    case "array":
      return Array.from({ length: Math.min(schema.minItems ?? 0, 20) }, () => draftOf(schema.items, root));
    case "tuple":
      return schema.prefixItems.map((each) => draftOf(each, root));
    case "union":
      return { at: -1, inner: undefined };
    case "choice":
      return optionsOf(schema).length === 1 && !isNullable(schema) ? 0 : -1;
    case "boolean":
      return null;
    default:
      return "";
  }
}

/**
 * What a draft means: {value, problems}. Problems are by the path of their field; there is no value if there are any.
 */
export function meant(given, draft, root = given, path = "answer") {
  const problems = new Map();
  const value = read(given, draft, root, path, true, problems);
  return problems.size ? { value: undefined, problems } : { value, problems };
}

function read(given, draft, root, path, required, problems) {
  const schema = resolved(given, root);
  const kind = kindOf(schema, root);
  const wrong = (told) => {
    if (told && !problems.has(path)) problems.set(path, told);
  };
  const empty = (told) => {
    if (!required && !("default" in schema)) return LEFT_OUT;
    if (isNullable(schema)) return null;
    wrong(told);
    return undefined;
  };
  if (draft === undefined) return empty("Fill this in.");
  const checked = (value) => {
    wrong(checkHere(schema, value));
    return value;
  };
  const part = (name) => `${path}.${name}`;
  switch (kind) {
    case "object": {
      const found = Object.entries(schema.properties || {}).map(([name, inner]) => [
        name,
        read(inner, own(draft, name), root, part(name), (schema.required || []).includes(name), problems),
      ]);
      return checked(Object.fromEntries(found.filter(([, value]) => value !== LEFT_OUT)));
    }
    case "map": {
      const seen = new Set();
      const found = draft.map(([name, each], index) => {
        const told = seen.has(name) ? "This name is used twice." : check(schema.propertyNames, name, root);
        if (told) problems.set(part(`${index}.name`), told);
        seen.add(name);
        return [name, read(schema.additionalProperties, each, root, part(index), true, problems)];
      });
      return checked(Object.fromEntries(found));
    }
    case "array":
      return checked(draft.map((each, index) => read(schema.items, each, root, part(index), true, problems)));
    case "tuple":
      return checked(
        schema.prefixItems.map((each, index) => read(each, draft[index], root, part(index), true, problems)),
      );
    case "union": {
      if (draft.at < 0) return empty("Choose one.");
      return read(choicesOf(schema)[draft.at], draft.inner, root, part("one"), true, problems);
    }
    case "choice": {
      const options = optionsOf(schema);
      if (!options.length) {
        wrong("No answer is possible here.");
        return undefined;
      }
      if (draft < 0) return options.includes(null) ? null : empty("Choose one.");
      const value = options[draft];
      if (Number.isInteger(value) && !Number.isSafeInteger(value)) wrong(checkHere({ type: "integer" }, value));
      return value;
    }
    case "boolean":
      return draft === null ? empty("Choose yes or no.") : draft;
    case "nothing":
      return null;
    case "json":
      return readJson(schema, draft, root, wrong, empty);
    case "integer":
    case "number": {
      const text = draft.trim();
      if (!text) return empty(kind === "integer" ? "Enter a whole number." : "Enter a number.");
      const value = numberOf(text);
      if (value === undefined) wrong(kind === "integer" ? "Enter a whole number." : "Enter a number such as 12.5.");
      return value === undefined ? value : checked(value);
    }
    default: {
      const wanted = wantedOf(schema);
      const text = sent(schema, wanted ? draft.trim() : draft);
      const plain = !wanted && schema.default === "";
      if (text === "" && !plain && (wanted || mayBeEmpty(schema, required))) {
        if (wanted !== "base64" || mayBeEmpty(schema, required)) return empty(`Enter ${wanted}.`);
      }
      return checked(text);
    }
  }
}

/** What the fields for dates and times hold, as it travels. */
function sent(schema, text) {
  if (schema.format === "date-time" && LOCAL.test(text)) {
    if (schema["x-offset"] === "forbidden") return text.length === 16 ? `${text}:00` : text;
    const made = new Date(text);
    return Number.isNaN(made.getTime()) ? text : made.toISOString().replace(".000Z", "Z");
  }
  if (schema.format === "time" && CLOCK.test(text)) {
    const whole = text.length === 5 ? `${text}:00` : text;
    return schema["x-offset"] === "required" ? `${whole}${offset()}` : whole;
  }
  return text;
}

/** The offset of this browser's clock: +01:00. */
export function offset(at = new Date()) {
  const minutes = -at.getTimezoneOffset();
  const pad = (n) => String(Math.floor(n)).padStart(2, "0");
  return `${minutes < 0 ? "-" : "+"}${pad(Math.abs(minutes) / 60)}:${pad(Math.abs(minutes) % 60)}`;
}

function readJson(schema, draft, root, wrong, empty) {
  if (!draft.trim()) return empty("Enter a value as JSON.");
  let large = false;
  let value;
  try {
    value = JSON.parse(draft, (_, each, context) => {
      if (Number.isInteger(each) && !Number.isSafeInteger(each) && !(context?.source ?? "").toLowerCase().includes("e")) large = true;
      return each;
    });
  } catch {
    wrong('This is not JSON. Strings need quotes: "like this".');
    return undefined;
  }
  if (large) wrong("A number in it is too large for a browser. Send it through the API.");
  wrong(value === null && isNullable(schema) ? "" : check(schema, value, root));
  return value;
}
