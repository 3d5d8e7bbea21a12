// Whether a value fits its schema, told before it is sent. The server decides (sdk/asks/answer_checks.py); what is said here
// is no more lenient, except for a few patterns that are left to the server.
import { matches } from "./schemapattern.js";

const REFERENCE = "#/$defs/";
/** Fields that one form may begin with; larger ones are typed as JSON. */
const MOST_FIELDS = 300;

export const own = (value, key) => (value && Object.hasOwn(value, key) ? value[key] : undefined);
const NOTES = ["title", "description", "default"];

/** The schema itself, whatever stands between: references, and the one choice beside null. */
export function resolved(given, root) {
  let found = given === true || given === undefined ? {} : given === false ? { enum: [] } : given;
  for (let depth = 0; depth < 16; depth += 1) {
    let inner;
    let more = {};
    if (typeof found.$ref === "string") inner = own(root.$defs, found.$ref.slice(REFERENCE.length)) ?? {};
    else if (found.allOf?.length === 1 && !found.type) [inner] = found.allOf;
    else {
      const all = found.anyOf || found.oneOf || [];
      const choices = all.filter((each) => each.type !== "null");
      if (all.length && choices.length === 1) {
        [inner] = choices;
        if (all.length > 1) more = { nullable: true };
      } else if (isDecimal(choices)) {
        inner = choices.find((each) => each.type === "string");
        if (choices.length < all.length) more = { nullable: true };
      }
    }
    if (inner === undefined) break;
    const kept = Object.fromEntries(NOTES.filter((word) => word in found).map((word) => [word, found[word]]));
    if (found.nullable) more = { nullable: true };
    found = { ...(typeof inner === "object" ? inner : inner ? {} : { enum: [] }), ...kept, ...more };
  }
  return found;
}

/** A decimal may come as a number or as a text; a text keeps every digit. */
const isDecimal = (choices) =>
  choices.length === 2 &&
  choices.some((each) => each.type === "number") &&
  choices.some((each) => each.type === "string" && each.format === "decimal");

/** The choices of a union, without null. */
export const choicesOf = (schema) =>
  (schema.anyOf || schema.oneOf)?.filter((each) => each.type !== "null") ||
  typesOf(schema).map((type) => ({ ...schema, type, title: undefined, nullable: undefined }));

const typesOf = (schema) => [].concat(schema.type || []).filter((type) => type !== "null");

export const isNullable = (schema) =>
  Boolean(schema.nullable) ||
  [].concat(schema.type || []).includes("null") ||
  (schema.anyOf || schema.oneOf || []).some((each) => each.type === "null");

/** Which field a resolved schema gets. */
export function kindOf(schema, root) {
  if (schema.enum || "const" in schema) return "choice";
  if (schema.allOf) return "json";
  if (schema.anyOf || schema.oneOf) return isLarge(schema, root) ? "json" : "union";
  const types = typesOf(schema);
  if (types.length > 1) return "union";
  if (!types.length) return schema.type ? "nothing" : "json";
  if (types[0] === "object") {
    const names = Object.keys(schema.properties || {});
    if (isLarge(schema, root) || (schema.required || []).some((name) => names.length && !names.includes(name)))
      return "json";
    return names.length || schema.additionalProperties === false ? "object" : "map";
  }
  if (types[0] === "array") {
    if (isLarge(schema, root)) return "json";
    return schema.prefixItems ? "tuple" : "array";
  }
  return types[0];
}

const sizes = new WeakMap();

/** Whether a form for it would begin with more fields than anybody wants to fill in, or have no end. */
function isLarge(schema, root) {
  if (sizes.has(schema)) return sizes.get(schema);
  let left = MOST_FIELDS;
  const count = (given, depth) => {
    left -= 1;
    if (left < 0 || depth > 12) {
      left = -1;
      return;
    }
    const found = resolved(given, root);
    for (const each of found.prefixItems || []) count(each, depth + 1);
    for (const [name, each] of Object.entries(found.properties || {})) {
      if ((found.required || []).includes(name) || !isCompound(resolved(each, root))) count(each, depth + 1);
      if (left < 0) return;
    }
  };
  count(schema, 0);
  sizes.set(schema, left < 0);
  return left < 0;
}

export const isCompound = (schema) =>
  !schema.enum &&
  !("const" in schema) &&
  Boolean(
    schema.anyOf ||
      schema.oneOf ||
      schema.allOf ||
      typesOf(schema).length > 1 ||
      ["object", "array"].includes(typesOf(schema)[0]),
  );

// -- texts -----------------------------------------------------------------------------------------------------------

const NUMBER = /^[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,3})?$/;
/** Digits that one number may have. */
const MOST_DIGITS = 400;
const date = (text) => {
  const [, year, month, day] = /^(\d{4})-(\d\d)-(\d\d)$/.exec(text) || [];
  const made = new Date(`${text}T00:00:00Z`);
  return year > 0 && month > 0 && made.getUTCDate() === Number(day);
};
const clock = (text) => /^([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,6})?(Z|[+-]([01]\d|2[0-3]):[0-5]\d)?$/.test(text);
const uuid = (version) => (text) =>
  /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i.test(text) &&
  (!version || (text[14] === String(version) && "89abAB".includes(text[19])));
const ipv4 = (text) => /^((25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)(\.(?!$)|$)){4}$/.test(text);
const ipv6 = (text) => /^[0-9a-f:.]+$/i.test(text) && text.includes(":") && URL.canParse(`ftp://[${text}]/`);

const isAddress = (text) => {
  const [name, host, ...more] = text.split("@");
  return Boolean(name && host?.includes(".") && !more.length && !text.includes(" "));
};

/** What each format reads, and what to ask for. */
const FORMATS = {
  date: [date, "a date such as 2030-12-31"],
  "date-time": [
    (text) => date(text.slice(0, 10)) && text[10] === "T" && clock(text.slice(11)),
    "a date and time such as 2030-12-31T12:00:00Z",
  ],
  time: [clock, "a time such as 12:00:00"],
  duration: [
    (text) => /^-?P(?=\d|T\d)(\d{1,6}D)?(T(?=\d)(\d{1,6}H)?(\d{1,6}M)?(\d{1,6}(\.\d{1,6})?S)?)?$/.test(text),
    "a duration such as P1DT2H",
  ],
  uuid: [uuid(0), "a UUID"],
  ...Object.fromEntries([1, 3, 4, 5, 6, 7, 8].map((n) => [`uuid${n}`, [uuid(n), `a UUID of version ${n}`]])),
  decimal: [(text) => text.length <= MOST_DIGITS && NUMBER.test(text), "a decimal number such as 12.50"],
  ipv4: [ipv4, "an IPv4 address"],
  ipv6: [ipv6, "an IPv6 address"],
  ipvanyaddress: [(text) => ipv4(text) || ipv6(text), "an IP address"],
  email: [isAddress, "an email address"],
  uri: [(text) => URL.canParse(text), "a web address"],
};
const BASE64 = /^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$/;

const isBase64 = (schema) => schema.contentEncoding === "base64" || schema.format === "base64url";

/** What to type, for texts that have to look like something. */
export const wantedOf = (schema) => own(FORMATS, schema.format)?.[1] || (isBase64(schema) ? "base64" : "");

const plural = (n, one) => `${n} ${one}${n === 1 ? "" : "s"}`;

function checkText(schema, text) {
  const length = [...text].length;
  if (text.isWellFormed && !text.isWellFormed()) return "Remove the character that is not valid text.";
  if (length < (schema.minLength ?? 0))
    return text ? `Enter at least ${plural(schema.minLength, "character")}.` : "Enter text.";
  if (length > (schema.maxLength ?? Infinity)) return `Enter at most ${plural(schema.maxLength, "character")}.`;
  const [reads, wanted] = own(FORMATS, schema.format) || [];
  if (reads && !reads(text)) return `Enter ${wanted}.`;
  if (schema.format === "date-time" || schema.format === "time") {
    const offset = /(Z|[+-]\d\d:\d\d)$/.test(text);
    if (schema["x-offset"] === "required" && !offset) return "Add a UTC offset, such as Z.";
    if (schema["x-offset"] === "forbidden" && offset) return "Leave out the UTC offset.";
  }
  return checkBytes(schema, text) || checkPattern(schema, text) || (schema.format === "decimal" ? checkDecimal(schema, text) : "");
}

const checkPattern = (schema, text) =>
  schema.pattern && !matches(schema.pattern, text) ? `This must match the pattern ${schema.pattern}.` : "";

function checkBytes(schema, text) {
  let size;
  if (isBase64(schema)) {
    const plain = schema.format === "base64url" ? text.replaceAll("-", "+").replaceAll("_", "/") : text;
    if (!BASE64.test(plain)) return "Enter base64.";
    size = (plain.length / 4) * 3 - (plain.endsWith("==") ? 2 : plain.endsWith("=") ? 1 : 0);
  } else if (schema.format === "binary") size = new TextEncoder().encode(text).length;
  else return "";
  if (size < (schema["x-minBytes"] ?? 0)) return `Enter at least ${plural(schema["x-minBytes"], "byte")}.`;
  return size > (schema["x-maxBytes"] ?? Infinity) ? `Enter at most ${plural(schema["x-maxBytes"], "byte")}.` : "";
}

// -- numbers ---------------------------------------------------------------------------------------------------------

const BOUNDS = [
  ["minimum", "of at least", (order) => order < 0],
  ["exclusiveMinimum", "more than", (order) => order <= 0],
  ["maximum", "of at most", (order) => order > 0],
  ["exclusiveMaximum", "less than", (order) => order >= 0],
];

/** A decimal as a whole number and the digits behind its point; numbers as JavaScript writes them too. */
function parts(text) {
  const [, sign, whole, rest = "", exponent] = /^([+-]?)(\d*)(?:\.(\d*))?(?:[eE]([+-]?\d+))?$/.exec(text);
  return { units: BigInt(`${sign === "-" ? "-" : ""}${whole}${rest}` || "0"), scale: rest.length - Number(exponent || 0), digits: whole + rest };
}
const scaled = ({ units, scale }, to) => units * 10n ** BigInt(to - scale);
const aligned = (first, second) => {
  const to = Math.max(first.scale, second.scale);
  return [scaled(first, to), scaled(second, to)];
};

function checkDecimal(schema, text) {
  const value = parts(text);
  for (const [word, called, beyond] of BOUNDS) {
    if (!(word in schema)) continue;
    const [mine, bound] = aligned(value, parts(String(schema[word])));
    if (beyond(mine < bound ? -1 : mine > bound ? 1 : 0)) return `Enter a number ${called} ${schema[word]}.`;
  }
  if (schema.multipleOf) {
    const [mine, step] = aligned(value, parts(String(schema.multipleOf)));
    if (mine % step !== 0n) return `Enter a multiple of ${schema.multipleOf}.`;
  }
  // Digits as they are written, as Decimal counts them.
  const places = Math.max(value.scale, 0);
  const written = value.digits.replace(/^0+(?=.)/, "").length;
  const whole = Math.max(written - value.scale, 0);
  const [most, mostPlaces] = [schema["x-maxDigits"], schema["x-maxPlaces"]];
  if (mostPlaces !== undefined && places > mostPlaces) return `Enter at most ${plural(mostPlaces, "digit")} after the decimal point.`;
  if (most !== undefined && whole + places > most) return `Enter at most ${plural(most, "digit")}.`;
  if (most !== undefined && mostPlaces !== undefined && whole > most - mostPlaces)
    return `Enter at most ${plural(most - mostPlaces, "digit")} before the decimal point.`;
  return "";
}

function checkNumber(schema, value, type) {
  if (!Number.isFinite(value)) return "Enter a smaller number.";
  if (type === "integer" && !Number.isInteger(value)) return "Enter a whole number.";
  if (Number.isInteger(value) && !Number.isSafeInteger(value) && type !== "number")
    return "This number is too large for a browser. Send it through the API.";
  for (const [word, called, beyond] of BOUNDS) {
    if (word in schema && beyond(value - schema[word]))
      return `Enter a number ${called} ${schema[word]}.`;
  }
  if (schema.multipleOf && value % schema.multipleOf !== 0) return `Enter a multiple of ${schema.multipleOf}.`;
  return "x-maxDigits" in schema || "x-maxPlaces" in schema ? checkDecimal(schema, String(value)) : "";
}

/** The number that a text means; undefined if it means none. */
export const numberOf = (text) => (text.length <= MOST_DIGITS && NUMBER.test(text) ? Number(text) : undefined);

// -- anything --------------------------------------------------------------------------------------------------------

/** What is wrong with a text, a number, or the size of a list or an object; "" if nothing is. */
export function checkHere(schema, value) {
  if (typeof value === "string") return checkText(schema, value);
  if (typeof value === "number") return checkNumber(schema, value, typesOf(schema)[0]);
  if (!value || typeof value !== "object") return "";
  const list = Array.isArray(value);
  const size = list ? value.length : Object.keys(value).length;
  const [least, most] = list ? [schema.minItems, schema.maxItems] : [schema.minProperties, schema.maxProperties];
  if (size < (least ?? 0)) return `Add at least ${least === 1 ? "1 entry" : `${least} entries`}.`;
  if (size > (most ?? Infinity)) return `Keep at most ${most === 1 ? "1 entry" : `${most} entries`}.`;
  if (list && schema.uniqueItems === true && new Set(value.map((each) => JSON.stringify(each))).size < size)
    return "Remove the duplicate entry.";
  return "";
}

const TYPES = {
  string: (value) => typeof value === "string",
  integer: Number.isInteger,
  number: (value) => typeof value === "number",
  boolean: (value) => typeof value === "boolean",
  object: (value) => value !== null && typeof value === "object" && !Array.isArray(value),
  array: Array.isArray,
  null: (value) => value === null,
};

/** What is wrong with any value, with its place in front; "" if nothing is. For what was typed as JSON. */
export function check(given, value, root, where = "", depth = 0) {
  if (depth > 60) return "This is nested too deeply to be checked here.";
  const at = (told) => (where ? `${where}: ${told}` : told);
  if (given === true || given === undefined) return "";
  if (given === false) return at("nothing is allowed here.");
  if (given.$ref) {
    const found = check(own(root.$defs, given.$ref.slice(REFERENCE.length)) ?? true, value, root, where, depth + 1);
    if (found) return found;
  }
  for (const each of given.allOf || []) {
    const found = check(each, value, root, where, depth + 1);
    if (found) return found;
  }
  for (const choices of [given.anyOf, given.oneOf]) {
    if (!choices) continue;
    const told = choices.map((each) => check(each, value, root, where, depth + 1));
    if (!told.includes("")) return told.length === 1 ? told[0] : at("this matches none of the choices.");
  }
  const allowed = given.enum || ("const" in given ? [given.const] : null);
  if (allowed && !allowed.some((each) => JSON.stringify(each) === JSON.stringify(value)))
    return at(`choose one of ${allowed.slice(0, 20).map((each) => JSON.stringify(each)).join(", ")}.`);
  const types = [].concat(given.type || []);
  if (types.length && !types.some((type) => own(TYPES, type)?.(value))) return at(`this must be ${types.join(" or ")}.`);
  const here = checkHere(given, value);
  if (here) return at(here);
  if (Array.isArray(value)) {
    for (const [index, each] of value.entries()) {
      const fitting = index < (given.prefixItems?.length ?? 0) ? given.prefixItems[index] : given.items;
      const found = check(fitting, each, root, `${where}[${index}]`, depth + 1);
      if (found) return found;
    }
  } else if (value && typeof value === "object") {
    const missing = (given.required || []).find((name) => !Object.hasOwn(value, name));
    if (missing !== undefined) return at(`${missing} is missing.`);
    for (const [name, each] of Object.entries(value)) {
      const place = where ? `${where}.${name}` : name;
      const known = own(given.properties, name);
      if (known === undefined && check(given.propertyNames, name, root)) return `${place}: this name is not allowed.`;
      if (known === undefined && given.additionalProperties === false) return `${place}: this name is unknown.`;
      const found = check(known ?? given.additionalProperties, each, root, place, depth + 1);
      if (found) return found;
    }
  }
  return "";
}
