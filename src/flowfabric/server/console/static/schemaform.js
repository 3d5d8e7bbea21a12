// A form made from a JSON Schema: each type gets the field people expect, and what is typed becomes what the type says.
import { html, useState } from "./dom.js";
import { words } from "./format.js";

/** The schema itself, whatever stands between: references, and the one choice beside null. */
export function resolved(schema, root) {
  let found = schema || {};
  for (let depth = 0; depth < 16; depth += 1) {
    if (found.$ref) found = root.$defs?.[found.$ref.split("/").pop()] || {};
    else {
      const choices = (found.anyOf || found.oneOf || []).filter((each) => each.type !== "null");
      if (choices.length !== 1) break;
      found = {
        ...choices[0],
        title: found.title,
        description: found.description,
        default: found.default,
        nullable: true,
      };
    }
  }
  return found;
}

const kindOf = (schema) => {
  if (schema.enum || "const" in schema) return "choice";
  const types = [].concat(schema.type || []).filter((type) => type !== "null");
  if (types.length === 1) return types[0];
  return "json";
};

/** What the form begins with. */
export function initial(given, root = given) {
  const schema = resolved(given, root);
  if ("default" in schema) return schema.default;
  switch (kindOf(schema)) {
    case "object":
      return Object.fromEntries(
        Object.entries(schema.properties || {}).map(([name, inner]) => [name, initial(inner, root)]),
      );
    case "array":
      return [];
    case "boolean":
      return null;
    case "choice":
      return schema.nullable ? null : "const" in schema ? schema.const : null;
    case "json":
      return null;
    default:
      return "";
  }
}

/** What the form means: numbers from texts, nothing for what was left out. Throws a sentence. */
export function meant(given, value, root = given, where = "") {
  const schema = resolved(given, root);
  const name = where || "the answer";
  const optional = schema.nullable || [].concat(schema.type || []).includes("null");
  switch (kindOf(schema)) {
    case "object": {
      const found = {};
      for (const [key, inner] of Object.entries(schema.properties || {})) {
        const required = (schema.required || []).includes(key);
        const one = value?.[key];
        const own = resolved(inner, root);
        if (!required && (one === "" || one === null || one === undefined) && kindOf(own) !== "string" && !own.nullable)
          continue;
        found[key] = meant(inner, one, root, key);
      }
      return found;
    }
    case "array":
      return (value || []).map((each, index) => meant(schema.items || {}, each, root, `${name} ${index + 1}`));
    case "integer":
    case "number": {
      if (value === "" || value === null || value === undefined) {
        if (optional) return null;
        throw new Error(`Give a number for ${words(name)}.`);
      }
      const number = Number(value);
      if (!Number.isFinite(number) || (kindOf(schema) === "integer" && !Number.isInteger(number)))
        throw new Error(`${words(name)} is not ${kindOf(schema) === "integer" ? "a whole number" : "a number"}.`);
      return number;
    }
    case "boolean":
      if (value === null || value === undefined) {
        if (optional) return null;
        throw new Error(`Say yes or no${where ? ` to ${words(name)}` : ""}.`);
      }
      return value;
    case "choice":
      if (value === null && !optional) throw new Error(`Choose one for ${words(name)}.`);
      return value;
    case "string":
      return value === "" && optional ? null : String(value ?? "");
    default:
      if (typeof value !== "string") return value;
      try {
        return JSON.parse(value);
      } catch {
        throw new Error(`${words(name)} is not JSON.`);
      }
  }
}

const label = (name, schema) => schema.title || words(name).replace(/^./, (c) => c.toUpperCase());

export function Fields({ schema, value, onChange, root = schema, name = "", path = "answer", required = true }) {
  const own = resolved(schema, root);
  const kind = kindOf(own);
  const id = `f-${path.replace(/[^\w-]/g, "-")}`;
  const title = name ? label(name, own) : own.title && kind !== "object" ? own.title : "Answer";
  const hint =
    own.description &&
    html`<span class="hint">${own.description}</span>`;
  if (kind === "object") {
    const inner = Object.entries(own.properties || {}).map(
      ([key, each]) => html`
        <${Fields}
          key=${key}
          schema=${each}
          root=${root}
          name=${key}
          path=${`${path}.${key}`}
          required=${(own.required || []).includes(key)}
          value=${value?.[key]}
          onChange=${(next) => onChange({ ...value, [key]: next })}
        />
      `,
    );
    return name
      ? html`
          <fieldset class="stack tight">
            <legend>${title}</legend>
            ${hint}${inner}
          </fieldset>
        `
      : html`<div class="stack tight">${inner}</div>`;
  }
  if (kind === "boolean") {
    return html`
      <div class="field">
        <span class="label" id=${id}>${title}</span>
        <div class="segments" role="group" aria-labelledby=${id}>
          ${[[true, "Yes"], [false, "No"], ...(own.nullable ? [[null, "Not said"]] : [])].map(
            ([each, text]) => html`
              <button
                type="button"
                key=${text}
                data-field=${name || "answer"}
                aria-pressed=${String(value === each)}
                onClick=${() => onChange(each)}
              >
                ${text}
              </button>
            `,
          )}
        </div>
        ${hint}
      </div>
    `;
  }
  if (kind === "choice") {
    const options = own.enum || [own.const];
    return html`
      <div class="field">
        <label for=${id}>${title}</label>
        <select
          id=${id}
          class="input"
          value=${String(options.indexOf(value))}
          onChange=${(event) => onChange(event.target.value === "-1" ? null : options[Number(event.target.value)])}
        >
          <option value="-1">${own.nullable ? "None" : "Choose…"}</option>
          ${options.map(
            (option, index) => html`<option key=${index} value=${String(index)}>${String(option)}</option>`,
          )}
        </select>
        ${hint}
      </div>
    `;
  }
  if (kind === "array") {
    const list = value || [];
    return html`
      <fieldset class="stack tight">
        <legend>${title}</legend>
        ${hint}
        ${list.map(
          (each, index) => html`
            <div class="line" key=${index}>
              <div class="grow">
                <${Fields}
                  schema=${own.items || {}}
                  root=${root}
                  name=${`${name || "item"} ${index + 1}`}
                  path=${`${path}.${index}`}
                  value=${each}
                  onChange=${(next) => onChange(list.map((old, at) => (at === index ? next : old)))}
                />
              </div>
              <button
                type="button"
                class="button small"
                aria-label=${`Remove ${index + 1}`}
                onClick=${() => onChange(list.filter((_, at) => at !== index))}
              >
                Remove
              </button>
            </div>
          `,
        )}
        <div>
          <button
            type="button"
            class="button small"
            onClick=${() => onChange([...list, initial(own.items || {}, root)])}
          >
            Add
          </button>
        </div>
      </fieldset>
    `;
  }
  const set = (event) => onChange(event.target.value);
  const numeric = kind === "integer" || kind === "number";
  const long = kind === "json" || (kind === "string" && /note|text|comment|reason|message|body/i.test(name));
  const text =
    kind === "json" && typeof value !== "string"
      ? value === null || value === undefined
        ? ""
        : JSON.stringify(value, null, 2)
      : (value ?? "");
  return html`
    <div class="field">
      <label for=${id}>
        ${title}${
          required
            ? ""
            : html`
                ${" "}
                <span class="faint">(optional)</span>
              `
        }
      </label>
      ${
        long
          ? html`
              <textarea
                id=${id}
                class="input"
                value=${text}
                onInput=${set}
                placeholder=${kind === "json" ? "JSON" : ""}
              ></textarea>
            `
          : html`
              <input
                id=${id}
                class="input"
                value=${text}
                onInput=${set}
                autocomplete="off"
                type=${numeric ? "number" : own.format === "date" ? "date" : "text"}
                step=${kind === "number" ? "any" : null}
                min=${own.minimum ?? null}
                max=${own.maximum ?? null}
              />
            `
      }${hint}
    </div>
  `;
}

/** The whole form: yes and no as two buttons where the answer is one, fields and one button otherwise. */
export function AnswerForm({ schema, approves, busy, problem, onAnswer }) {
  const [value, setValue] = useState(() => initial(schema));
  const [wrong, setWrong] = useState("");
  const flag = approves === "" ? "" : (approves ?? null);
  const give = (said) => (event) => {
    event.preventDefault();
    try {
      setWrong("");
      const whole = flag === "" ? said : flag !== null && said !== undefined ? { ...value, [flag]: said } : value;
      onAnswer(meant(schema, whole));
    } catch (error) {
      setWrong(error.message.charAt(0).toUpperCase() + error.message.slice(1));
    }
  };
  const own = resolved(schema, schema);
  const rest = flag
    ? {
        ...own,
        $defs: schema.$defs,
        properties: Object.fromEntries(Object.entries(own.properties || {}).filter(([name]) => name !== flag)),
      }
    : schema;
  const decides = flag !== null;
  return html`
    <form class="stack" onSubmit=${give(undefined)}>
      ${flag !== "" && html`<${Fields} schema=${rest} root=${schema} value=${value} onChange=${setValue} />`}
      ${(wrong || problem) && html`<p class="problem" role="alert">${wrong || problem.message}</p>`}
      <div class="line wraps">
        ${
          decides
            ? html`
                <button type="button" class="button primary" disabled=${busy} onClick=${give(true)}>Yes</button>
                <button type="button" class="button danger" disabled=${busy} onClick=${give(false)}>No</button>
              `
            : html`<button type="submit" class="button primary" disabled=${busy}>Answer</button>`
        }
      </div>
    </form>
  `;
}
