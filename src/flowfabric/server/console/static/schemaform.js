// A form made from a JSON Schema: each type gets the field people expect, what is wrong is said at its field, and
// nothing is sent that the schema does not allow.
import { html } from "./dom.js";
import { words } from "./format.js";
import { choicesOf, isCompound, isNullable, kindOf, own, resolved, wantedOf } from "./schemacheck.js";
import { draftOf, mayBeEmpty, offset, optionsOf } from "./schemadraft.js";

const capital = (text) => text.replace(/^./, (first) => first.toUpperCase());
const label = (name, schema) => schema.title || capital(words(name));
const idOf = (path) => `f-${path.replace(/[^\w-]/g, "-")}`;

const KINDS = { string: "Text", integer: "Whole number", number: "Number", boolean: "Yes or no", array: "List", object: "Object" };

/** What one choice of a union is called. */
function called(given, root) {
  const schema = resolved(given, root);
  if (schema.title) return schema.title;
  const wanted = wantedOf(schema);
  if (wanted) return capital(wanted.split(" such as ")[0].replace(/^an? /, ""));
  return own(KINDS, schema.type) || (schema.enum ? schema.enum.map(String).join(", ").slice(0, 60) : "JSON");
}

/** What the browser's own fields for dates and times hold. */
function fieldFor(schema, text) {
  if (schema.format === "date" && /^(\d{4}-\d\d-\d\d)?$/.test(text)) return "date";
  if (schema.format === "date-time" && /^(\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d)?)?$/.test(text)) return "datetime-local";
  if (schema.format === "time" && /^(\d\d:\d\d(:\d\d)?)?$/.test(text)) return "time";
  return "text";
}

/** What belongs beside a field: what it is for, how it has to look, whose clock it goes by. */
function hintOf(schema, field) {
  const wanted = wantedOf(schema);
  const zone =
    field === "datetime-local" && schema["x-offset"] !== "forbidden"
      ? "Your local time."
      : field === "time" && schema["x-offset"] === "required"
        ? `Your local time, UTC${offset()}.`
        : "";
  const look = wanted && field === "text" ? `${capital(wanted)}.` : "";
  return [schema.description, look, zone].filter(Boolean).join(" ");
}

const Said = ({ path, problem }) =>
  problem ? html`<span class="field-problem" role="alert" id=${`${idOf(path)}-problem`}>${problem}</span>` : null;

const Hint = ({ text }) => (text ? html`<span class="hint">${text}</span>` : null);

/** The fields of one schema. `draft` is what is typed so far, `problems` what was wrong with it when it was last read. */
export function Fields(props) {
  const { schema, root = schema, name = "", path = "answer", required = true, draft, onChange, problems } = props;
  const found = resolved(schema, root);
  const kind = kindOf(found, root);
  const title = name ? label(name, found) : !isCompound(found) && found.title ? found.title : "Answer";
  const given = { ...props, root, path, required, own: found, kind, title, problem: problems?.get(path) };
  const optional = isCompound(found) && (Boolean(name) || isNullable(found)) && mayBeEmpty(found, required);
  if (optional && draft === undefined) return html`<${Absent} ...${given} />`;
  const remove = optional ? () => onChange(undefined) : null;
  const Part = PARTS[kind] || TextField;
  return html`<${Part} ...${given} remove=${remove} />`;
}

/** Something with parts that is left out so far. */
const Absent = ({ title, own: schema, root, path, problem, onChange }) => html`
  <div class="field" data-path=${path}>
    <span class="label">${title} <span class="faint">(optional)</span></span>
    <div>
      <button
        type="button"
        class="button small"
        data-add
        aria-label=${`Add ${title}`}
        onClick=${() => onChange(draftOf(bare(schema), root))}
      >
        Add
      </button>
    </div>
    <${Hint} text=${schema.description} />
    <${Said} path=${path} problem=${problem} />
  </div>
`;

/** The same without what lets it be left out. */
const bare = (schema) => {
  const { nullable: _nullable, default: _default, ...rest } = schema;
  for (const word of ["anyOf", "oneOf"])
    if (rest[word]) rest[word] = rest[word].filter((each) => each.type !== "null");
  if (Array.isArray(rest.type)) rest.type = rest.type.filter((each) => each !== "null");
  return rest;
};

/** A frame around parts, with its name, what is wrong with the whole, and a way to leave it out. */
const Framed = ({ title, own: schema, path, problem, remove, children }) => html`
  <fieldset class="stack tight" data-path=${path}>
    <legend>${title}</legend>
    <${Hint} text=${schema.description} />
    ${children}
    <${Said} path=${path} problem=${problem} />
    ${
      remove &&
      html`
        <div>
          <button type="button" class="button small quiet" data-remove aria-label=${`Remove ${title}`} onClick=${remove}>
            Remove
          </button>
        </div>
      `
    }
  </fieldset>
`;

function ObjectFields(given) {
  const { own: schema, root, name, path, draft, onChange, problems, remove, problem } = given;
  const inner = Object.entries(schema.properties || {}).map(
    ([key, each]) => html`
      <${Fields}
        key=${key}
        schema=${each}
        root=${root}
        name=${key}
        path=${`${path}.${key}`}
        required=${(schema.required || []).includes(key)}
        draft=${own(draft, key)}
        problems=${problems}
        onChange=${(next) => onChange((old) => ({ ...old, [key]: applied(next, own(old, key)) }))}
      />
    `,
  );
  if (name || remove) return html`<${Framed} ...${given}>${inner}</${Framed}>`;
  return html`<div class="stack tight">${inner}<${Said} path=${path} problem=${problem} /></div>`;
}

/** A change is a draft, or says how one follows from the last: two fields may change before anything is drawn. */
export const applied = (next, old) => (typeof next === "function" ? next(old) : next);
const replaced = (list, index, next) => list.map((old, at) => (at === index ? applied(next, old) : old));

function ListFields(given) {
  const { own: schema, root, name, path, draft, onChange, problems, kind } = given;
  const named = kind === "map";
  const tuple = kind === "tuple";
  const schemaAt = (index) => (tuple ? schema.prefixItems[index] : named ? schema.additionalProperties : schema.items) ?? {};
  const change = (index) => (next) =>
    onChange((list) =>
      replaced(list, index, named ? (pair) => [pair[0], applied(next, pair[1])] : next),
    );
  return html`
    <${Framed} ...${given}>
      ${(draft || []).map(
        (each, index) => html`
          <div class="stack tight" key=${index}>
            ${
              named &&
              html`
                <div class="field" data-path=${`${path}.${index}.name`}>
                  <label for=${idOf(`${path}.${index}.name`)}>Name ${index + 1}</label>
                  <input
                    id=${idOf(`${path}.${index}.name`)}
                    class="input"
                    data-kind="name"
                    autocomplete="off"
                    value=${each[0]}
                    onInput=${(event) => {
                      const text = event.target.value;
                      onChange((list) => replaced(list, index, (pair) => [text, pair[1]]));
                    }}
                  />
                  <${Said} path=${`${path}.${index}.name`} problem=${problems?.get(`${path}.${index}.name`)} />
                </div>
              `
            }
            <div class="line">
              <div class="grow">
                <${Fields}
                  schema=${schemaAt(index)}
                  root=${root}
                  name=${`${name || "item"} ${index + 1}`}
                  path=${`${path}.${index}`}
                  draft=${named ? each[1] : each}
                  problems=${problems}
                  onChange=${change(index)}
                />
              </div>
              ${
                !tuple &&
                html`
                  <button
                    type="button"
                    class="button small"
                    data-drop
                    aria-label=${`Remove ${index + 1}`}
                    onClick=${() => onChange((list) => list.filter((_, at) => at !== index))}
                  >
                    Remove
                  </button>
                `
              }
            </div>
          </div>
        `,
      )}
      ${
        !tuple &&
        html`
          <div>
            <button
              type="button"
              class="button small"
              data-append
              aria-label=${`Add to ${given.title}`}
              onClick=${() => {
                const made = draftOf(schemaAt(0), root);
                onChange((list) => [...(list || []), named ? ["", made] : made]);
              }}
            >
              Add
            </button>
          </div>
        `
      }
    </${Framed}>
  `;
}

function UnionFields(given) {
  const { own: schema, root, path, draft, onChange, problems, title } = given;
  const choices = choicesOf(schema);
  return html`
    <${Framed} ...${given}>
      <div class="field">
        <label for=${idOf(path)}>Type</label>
        <select
          id=${idOf(path)}
          class="input"
          data-kind="union"
          aria-label=${`Type of ${title}`}
          value=${String(draft?.at ?? -1)}
          onChange=${(event) => {
            const at = Number(event.target.value);
            onChange({ at, inner: at < 0 ? undefined : draftOf(choices[at], root) });
          }}
        >
          <option value="-1">Choose…</option>
          ${choices.map(
            (each, index) => html`<option key=${index} value=${String(index)}>${called(each, root)}</option>`,
          )}
        </select>
      </div>
      ${
        draft?.at >= 0 &&
        html`
          <${Fields}
            key=${draft.at}
            schema=${choices[draft.at]}
            root=${root}
            name="value"
            path=${`${path}.one`}
            draft=${draft.inner}
            problems=${problems}
            onChange=${(next) => onChange((old) => ({ ...old, inner: applied(next, old.inner) }))}
          />
        `
      }
    </${Framed}>
  `;
}

function BooleanField({ own: schema, path, required, draft, onChange, title, name, problem }) {
  const choices = [[true, "Yes"], [false, "No"], ...(mayBeEmpty(schema, required) ? [[null, "No answer"]] : [])];
  return html`
    <div class="field" data-path=${path}>
      <span class="label" id=${idOf(path)}>${title}</span>
      <div class="segments" role="group" aria-labelledby=${idOf(path)}>
        ${choices.map(
          ([each, text]) => html`
            <button
              type="button"
              key=${text}
              data-kind="boolean"
              data-field=${name || "answer"}
              aria-pressed=${String(draft === each)}
              onClick=${() => onChange(each)}
            >
              ${text}
            </button>
          `,
        )}
      </div>
      <${Hint} text=${schema.description} />
      <${Said} path=${path} problem=${problem} />
    </div>
  `;
}

function ChoiceField({ own: schema, path, required, draft, onChange, title, problem }) {
  const options = optionsOf(schema);
  const empty = mayBeEmpty(schema, required);
  // What has but one value is not asked for.
  if (options.length === 1 && !empty && draft === 0) return null;
  return html`
    <div class="field" data-path=${path}>
      <label for=${idOf(path)}>${title}</label>
      <select
        id=${idOf(path)}
        class="input"
        data-kind="choice"
        aria-invalid=${problem ? "true" : null}
        aria-describedby=${problem ? `${idOf(path)}-problem` : null}
        value=${String(draft)}
        onChange=${(event) => onChange(Number(event.target.value))}
      >
        ${(empty || draft < 0) && html`<option value="-1">${empty ? "None" : "Choose…"}</option>`}
        ${options.map(
          (option, index) =>
            html`<option key=${index} value=${String(index)}>${option === null ? "None" : String(typeof option === "object" ? JSON.stringify(option) : option)}</option>`,
        )}
      </select>
      <${Hint} text=${schema.description} />
      <${Said} path=${path} problem=${problem} />
    </div>
  `;
}

const Nothing = ({ title, path }) => html`
  <div class="field" data-path=${path}><span class="label">${title}: <span class="faint">nothing to fill in</span></span></div>
`;

function TextField({ own: schema, kind, path, name, required, draft, onChange, title, problem, remove }) {
  const text = draft ?? "";
  const numeric = kind === "integer" || kind === "number";
  const field = numeric ? "text" : fieldFor(schema, text);
  const long =
    kind === "json" ||
    (kind === "string" &&
      !schema.format &&
      (/note|text|comment|reason|message|body/i.test(name) || text.includes("\n") || text.length > 120));
  const shared = {
    id: idOf(path),
    class: "input",
    value: text,
    "data-kind": kind,
    "data-format": schema.format ?? (schema.contentEncoding || null),
    "aria-invalid": problem ? "true" : null,
    "aria-describedby": problem ? `${idOf(path)}-problem` : null,
    onInput: (event) => onChange(event.target.value),
  };
  return html`
    <div class="field" data-path=${path}>
      <label for=${idOf(path)}>
        ${title}${mayBeEmpty(schema, required) ? html`${" "}<span class="faint">(optional)</span>` : ""}
      </label>
      ${
        long
          ? html`<textarea ...${shared} placeholder=${kind === "json" ? "JSON" : ""}></textarea>`
          : html`
              <input
                ...${shared}
                autocomplete="off"
                type=${field}
                inputmode=${kind === "integer" ? "numeric" : kind === "number" ? "decimal" : null}
                step=${field === "time" || field === "datetime-local" ? "1" : null}
              />
            `
      }
      <${Hint} text=${hintOf(schema, field)} />
      <${Said} path=${path} problem=${problem} />
      ${
        remove &&
        html`<div><button type="button" class="button small quiet" data-remove onClick=${remove}>Remove</button></div>`
      }
    </div>
  `;
}

const PARTS = {
  object: ObjectFields,
  map: ListFields,
  array: ListFields,
  tuple: ListFields,
  union: UnionFields,
  boolean: BooleanField,
  choice: ChoiceField,
  nothing: Nothing,
};
