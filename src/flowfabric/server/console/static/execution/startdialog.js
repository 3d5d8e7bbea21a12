// The dialogs that start executions: kinds that workers have announced with a form, any other kind with JSON.
import { html, useRef, useState } from "../dom.js";
import { at, get, variant } from "../api.js";
import { useOnce } from "../live.js";
import { me, may, namespace } from "../session.js";
import { openDialog, useAct, useDialog } from "../dialogs.js";
import { Badge, executionHref, Trouble } from "../parts.js";
import { toast } from "../toasts.js";
import { KindInput } from "./kindinput.js";
import { bytesOf } from "./starting.js";

/** Kinds that are shown at once, pages of them that are read, and kinds of a page. */
const SHOWN = 50;
const PAGES = 5;
const PAGE = 1_000;

const open = (own, id, told) => {
  toast(told);
  own.go(executionHref(id));
};

/** The names of all kinds of a namespace; without one, of all namespaces that this credential can see. */
async function knownKinds(space) {
  const found = [];
  let cursor = null;
  for (let page = 0; page < PAGES; page += 1) {
    const next = await get("v1/search/kinds", { namespace: space, cursor, limit: PAGE });
    found.push(...next.kinds);
    cursor = next.next_cursor;
    if (!cursor) break;
  }
  return found;
}

const readKind = (kind, space) => get(`v1/kinds/${encodeURIComponent(kind)}`, { namespace: space });

/** What workers have announced of a kind; null if they have announced nothing. */
export async function announced(kind, space) {
  const known = await knownKinds(space);
  return known.some((each) => each.kind === kind) ? (await readKind(kind, space)).definition : null;
}

const Foot = ({ busy, disabled }) => html`
  <div class="foot">
    <button type="button" class="button" onClick=${useDialog().close}>Cancel</button>
    <button type="submit" class="button primary" disabled=${busy || disabled}>${busy ? "Working…" : "Start"}</button>
  </div>
`;

/** Start an execution. `kind` and `space` are chosen already if they are given. */
export const openStart = (given) => openDialog({ wide: true, body: html`<${Start} ...${given} />` });

function Start({ kind: chosen = "", space: given = null }) {
  const { data: listed, problem: unlisted } = useOnce(
    async () => (may("list_kind_definitions") ? knownKinds(namespace.peek()) : []),
    [],
  );
  const [kind, setKind] = useState(chosen);
  const [typed, setTyped] = useState(given);
  const [lane, setLane] = useState(null);
  const [input, setInput] = useState("{}");
  const { busy, problem, run, own } = useAct();
  const reader = useRef(null);
  const name = kind.trim();
  const usual = namespace.peek() || me.peek()?.namespaces?.[0] || "default";
  const known = listed || [];
  const named = known.filter((each) => each.kind === name);
  // A kind that one namespace alone has is meant in that namespace.
  const only = named.length === 1 && !named.some((each) => each.namespace === usual) ? named[0].namespace : usual;
  const space = typed ?? only;
  const isKnown = named.some((each) => each.namespace === space.trim());
  const { data: read, problem: unread } = useOnce(
    async () => (isKnown ? readKind(name, space.trim()) : null),
    [name, space.trim(), isKnown],
  );
  const definition = read?.definition ?? null;
  const shownLane = lane ?? definition?.lane_id ?? "default";

  const submit = (event) => {
    event.preventDefault();
    if (!isKnown) run(startAny);
    else if (definition && !definition.by_code) reader.current((text) => run(() => startKnown(text)));
  };
  const startKnown = async (text) => {
    // The input goes as it was typed: numbers keep all their digits.
    const rest = JSON.stringify({ lane_id: shownLane.trim() });
    const made = await own.post(`v1/kinds/${encodeURIComponent(name)}/start`, undefined, {
      query: { namespace: space.trim() },
      text: `${rest.slice(0, -1)},"input":${text}}`,
    });
    const [what, { execution_id: id }] = variant(made);
    open(own, id, what === "Duplicate" ? "An execution with this id already exists; this is it." : "Started.");
  };
  const startAny = async () => {
    const made = await own.post("v1/executions", {
      namespace: space.trim(),
      lane_id: shownLane.trim(),
      execution_kind: name,
      input_payload: bytesOf(input, "The input") ?? "",
      payload_encoding: "json",
      priority: 0,
      creator_identity: me.peek()?.name || "console",
    });
    open(own, variant(made)[1].execution_id, "Started.");
  };

  return html`
    <form onSubmit=${submit} noValidate=${Boolean(definition)}>
      <h2 id="dialog-title">Start an execution</h2>
      <div class="field">
        <label for="field-kind">Kind</label>
        <input
          id="field-kind"
          class="input"
          required
          placeholder="name of a task or workflow, or part of it"
          autocomplete="off"
          value=${kind}
          onInput=${(event) => setKind(event.target.value)}
        />
        ${!isKnown && html`<${Choices} known=${known} part=${name} onChoose=${(each) => (setKind(each.kind), setTyped(each.namespace))} />`}
      </div>
      ${definition && html`<${About} kind=${name} definition=${definition} />`}
      ${definition && !definition.by_code && html`<${KindInput} key=${`${space} ${name}`} schema=${definition.input} reader=${reader} />`}
      ${
        listed &&
        !isKnown &&
        html`
          <div class="field">
            <label for="field-input">Input</label>
            <textarea
              id="field-input"
              class="input mono"
              rows="6"
              spellcheck=${false}
              value=${input}
              onInput=${(event) => setInput(event.target.value)}
            ></textarea>
            <span class="hint">
              JSON with the arguments by name, such as ${'{"order": 7}'}.${" "}
              ${name && "No worker has announced this kind, so its input is not checked until a worker reads it."}
            </span>
          </div>
        `
      }
      ${
        !definition?.by_code &&
        html`
          <div class="pairs">
            <${Line} name="lane" label="Lane" value=${shownLane} onInput=${setLane} />
            <${Line} name="namespace" label="Namespace" value=${space} onInput=${setTyped} />
          </div>
        `
      }
      <${Trouble} problem=${problem || unlisted || unread} />
      <${Foot} busy=${busy} disabled=${!listed || (isKnown && (!definition || Boolean(definition.by_code)))} />
    </form>
  `;
}

const Line = ({ name, label, value, onInput }) => html`
  <div class="field">
    <label for=${`field-${name}`}>${label}</label>
    <input
      id=${`field-${name}`}
      class="input"
      required
      autocomplete="off"
      value=${value}
      onInput=${(event) => onInput(event.target.value)}
    />
  </div>
`;

/** Known kinds whose names have a part in them. */
function Choices({ known, part, onChoose }) {
  const fitting = known.filter((each) => each.kind.toLowerCase().includes(part.toLowerCase()));
  if (!fitting.length) return null;
  const several = known.some((each) => each.namespace !== known[0].namespace);
  return html`
    <div class="kind-choices" role="group" aria-label="Known kinds">
      ${fitting.slice(0, SHOWN).map(
        (each) => html`
          <button type="button" key=${`${each.namespace} ${each.kind}`} data-choice=${each.kind} onClick=${() => onChoose(each)}>
            <span class="wrap-anywhere">${each.kind}</span>
            ${several && html`<span class="faint small">${each.namespace}</span>`}
          </button>
        `,
      )}
    </div>
    ${fitting.length > SHOWN && html`<span class="hint">${fitting.length - SHOWN} more. Type part of the name.</span>`}
  `;
}

/** What a kind is for, or why it cannot be started here. */
const About = ({ kind, definition }) => html`
  <div class="stack tight" data-about>
    <p class="soft wrap-anywhere">
      <${Badge} tone="muted">${definition.noun}</${Badge}> ${definition.description}
    </p>
    ${
      definition.by_code &&
      html`
        <p class="note-box wrap-anywhere" data-by-code>
          This kind can be started only from code: ${definition.by_code}. You can also use${" "}
          <code>flowfabric submit APP ${kind}</code>.
        </p>
      `
    }
  </div>
`;

/** Start again what an execution was started for: its input as the form of its kind. */
export const openAgain = (given) => openDialog({ wide: true, body: html`<${Again} ...${given} />` });

function Again({ id, kind, steps, text, definition }) {
  const { busy, problem, run, own } = useAct();
  const reader = useRef(null);
  const start = async (entered) => {
    // Before the first step there is nothing to keep.
    const made = await own.post(at(id, "fork"), {
      ...(steps.length ? { at: steps[0].name } : {}),
      input_payload: bytesOf(entered, "The input") ?? "",
    });
    open(own, made.execution_id, "Started.");
  };
  const submit = (event) => {
    event.preventDefault();
    reader.current((entered) => run(() => start(entered)));
  };
  return html`
    <form onSubmit=${submit} noValidate>
      <h2 id="dialog-title">Start again with this input?</h2>
      <p class="soft">
        A new execution of ${kind} starts from the beginning, with the same lane, policy and tags. This execution does not change.
      </p>
      <${KindInput} schema=${definition.input} text=${text} reader=${reader} />
      <${Trouble} problem=${problem} />
      <${Foot} busy=${busy} />
    </form>
  `;
}
