// Executions: found, followed while they change, cancelled and replayed many at once; or one of them, closely.
import { html, useCallback, useEffect, useMemo, useRef, useState, useValue } from "../dom.js";
import { useWatch } from "../live.js";
import { Live } from "../app.js";
import { may, namespace, now } from "../session.js";
import { Listing } from "../listing.js";
import { exact, fromLocal, plural, STATES, toLocal, words } from "../format.js";
import { executionHref, Menu, Trouble } from "../parts.js";
import { Icon } from "../icons.js";
import Execution from "./execution.js";
import { rowHeight, Rows } from "../executions/rows.js";
import { some, bulk } from "../executions/many.js";
import { useMoving } from "../executions/moving.js";

const WINDOWS = [
  ["", "Any time"],
  ["900000", "15 min"],
  ["3600000", "1 h"],
  ["86400000", "24 h"],
];

const WORDS = {
  kind: "kind",
  lane: "lane_id",
  ns: "namespace",
  namespace: "namespace",
  tag: "tag",
  flow: "flow_id",
  state: "state",
};

/** "kind:resize lane:gpu tag:team=red charge" -> a filter; a bare word is a kind, a bare id opens it. */
export function parseSearch(text) {
  const filter = {};
  for (const part of text.match(/\S+/g) || []) {
    const colon = part.indexOf(":");
    const name = colon > 0 ? WORDS[part.slice(0, colon)] : undefined;
    if (name) filter[name] = part.slice(colon + 1);
    else filter.kind = part;
  }
  return filter;
}

export default function Executions({ id, query }) {
  return id
    ? html`<${Execution} key=${id} id=${id} query=${query} />`
    : html`<${List} query=${query} />`;
}

function List({ query }) {
  const [text, setText] = useState(query.get("q") || "");
  const [asked, setAsked] = useState(query.get("q") || "");
  const [states, setStates] = useState(() => new Set((query.get("state") || "").split(",").filter(Boolean)));
  const [within, setWithin] = useState(query.get("within") || "");
  // A moment in UTC in the address, in the clock of whoever looks everywhere else.
  const [until, setUntil] = useState(() => Math.max(0, Date.parse(query.get("until")) || 0));
  const own = useValue(namespace);
  const [, draw] = useState(0);
  const [chosen, setChosen] = useState(() => new Set());
  const [unseen, setUnseen] = useState(0);
  const scroller = useRef(null);

  useEffect(() => {
    const timer = setTimeout(() => setAsked(text), 250);
    return () => clearTimeout(timer);
  }, [text]);

  const parsed = useMemo(() => {
    const found = parseSearch(asked);
    const filter = { namespace: own || undefined, ...found };
    if (states.size) filter.state = [...states].join(",");
    return filter;
  }, [asked, states, own]);
  const since = within ? Number(within) : 0;
  const times = useMemo(
    () => ({
      created_from: since ? Math.max(0, Math.floor((until || now()) - since)) : undefined,
      created_before: until || undefined,
    }),
    [since, until, parsed],
  );
  const listing = useMemo(() => new Listing({ ...parsed, ...times }, () => draw((n) => n + 1)), [parsed, times]);
  const { cursor, stands, setCursor, move, halt } = useMoving(listing, scroller);

  useEffect(() => {
    const found = new URLSearchParams();
    if (asked) found.set("q", asked);
    if (states.size) found.set("state", [...states].join(","));
    if (within) found.set("within", within);
    if (until) found.set("until", new Date(until).toISOString().replace(/:00\.000Z$/, "Z"));
    const hash = `#/executions${found.size ? `?${found}` : ""}`;
    if (location.hash !== hash) history.replaceState(null, "", hash);
    setChosen(new Set());
    setCursor(-1);
    setUnseen(0);
    scroller.current?.to(0);
    return halt;
  }, [listing]);

  const refresh = useWatch(async () => {
    const top = scroller.current?.top || 0;
    const looked = listing.at(Math.floor(top / rowHeight()));
    const chose = listing.at(stands.current);
    const added = await listing.refresh();
    if (chose) setCursor(listing.placeOf(chose));
    if (top <= 80 || !looked || !scroller.current) return;
    // What one looks at stays where it is.
    scroller.current.extend(listing.total * rowHeight());
    const moved = listing.placeOf(looked) - Math.floor(top / rowHeight());
    if (moved) scroller.current.to(scroller.current.top + moved * rowHeight());
    if (added) setUnseen((n) => n + added);
  }, [listing]);

  const open = useCallback((row) => {
    location.hash = executionHref(row.execution_id);
  }, []);
  const flip = useCallback(
    (identity) =>
      setChosen((old) => {
        const next = new Set(old);
        if (!next.delete(identity)) next.add(identity);
        return next;
      }),
    [],
  );

  useEffect(() => {
    const key = (event) => {
      const row = listing.at(stands.current);
      if (move(event.detail)) event.preventDefault();
      else if (event.detail === "x" && row) flip(row.execution_id);
      else if (event.detail === "Enter" && row) open(row);
      else if (event.detail === "Escape") {
        halt();
        setChosen(new Set());
      }
    };
    addEventListener("ff-key", key);
    return () => removeEventListener("ff-key", key);
  }, [listing]);

  const flipState = (state) =>
    setStates((old) => {
      const next = new Set(old);
      if (!next.delete(state)) next.add(state);
      return next;
    });
  const submit = (event) => {
    event.preventDefault();
    const found = text.trim();
    if (/^\{fp:\d+\}:[0-9a-f-]{36}$/i.test(found)) location.hash = executionHref(found);
    else setAsked(text);
  };

  return html`
    <div class="page full">
      <div class="page-head">
        <h1>Executions</h1>
        <${Live} />
        ${
          listing.total > 0 &&
          html`
            <span class="faint small" data-found>
              ${listing.complete ? `${exact(listing.total)} found` : `the newest ${exact(listing.total)}`}
            </span>
          `
        }
        <div class="actions">
          <${Menu}
            label="All that fit"
            items=${[
              may("operator") && {
                label: "Cancel all that fit…",
                icon: "stop",
                danger: true,
                act: () => bulk("cancel", parsed, { since, until }, refresh),
              },
              may("operator") && {
                label: "Replay all that fit…",
                icon: "replay",
                act: () => bulk("replay", parsed, { since, until }, refresh),
              },
            ]}
          />
        </div>
      </div>
      <div class="filters">
        <form class="line wraps" onSubmit=${submit} role="search">
          <div class="search">
            <${Icon} name="search" />
            <label class="visually-hidden" for="q">Search executions</label>
            <input
              id="q"
              data-search
              class="input"
              autocomplete="off"
              spellcheck="false"
              placeholder="A kind, an id, or lane:gpu tag:team=red flow:… ns:…"
              value=${text}
              onInput=${(event) => setText(event.target.value)}
            />
            <kbd aria-hidden="true">/</kbd>
          </div>
          <label class="visually-hidden" for="within">Created</label>
          <select
            id="within"
            class="input"
            style=${{ width: "auto" }}
            value=${within}
            onChange=${(event) => setWithin(event.target.value)}
          >
            ${WINDOWS.map(
              ([key, name]) => html`<option key=${key} value=${key}>${name}</option>`,
            )}
          </select>
          <div class="line">
            <label class="small soft no-wrap" for="until">Up to</label>
            <input
              id="until"
              class=${`input ${until ? "" : "faint"}`}
              type="datetime-local"
              style=${{ width: "auto" }}
              value=${toLocal(until)}
              onChange=${(event) => setUntil(fromLocal(event.target.value))}
            />
          </div>
        </form>
        <div class="chips" role="group" aria-label="States">
          ${STATES.map(
            (state) => html`
              <button
                type="button"
                class="chip"
                key=${state}
                data-tone=${state}
                aria-pressed=${String(states.has(state))}
                onClick=${() => flipState(state)}
              >
                <span class="dot"></span>
                ${words(state)}
              </button>
            `,
          )}
        </div>
        ${
          chosen.size > 0 &&
          html`
            <div class="bulk" role="status">
              <span>${plural(chosen.size, "execution")} chosen</span>
              ${
                may("operator") &&
                html`
                  <button
                    type="button"
                    class="button small danger"
                    onClick=${() =>
                      some("cancel", [...chosen], () => {
                        setChosen(new Set());
                        refresh();
                      })}
                  >
                    Cancel…
                  </button>
                  <button
                    type="button"
                    class="button small"
                    onClick=${() =>
                      some("replay", [...chosen], () => {
                        setChosen(new Set());
                        refresh();
                      })}
                  >
                    Replay…
                  </button>
                `
              }
              <button type="button" class="button small quiet" onClick=${() => setChosen(new Set())}>None</button>
            </div>
          `
        }
        ${
          unseen > 0 &&
          html`
            <button
              type="button"
              class="chip"
              aria-pressed="true"
              onClick=${() => {
                scroller.current.to(0);
                setUnseen(0);
              }}
            >
              ${plural(unseen, "new one", "new ones")} above
            </button>
          `
        }
        ${
          listing.hurry &&
          html`
            <div class="bulk" role="status">
              <span>On the way to the oldest: ${exact(listing.total)} so far</span>
              <button type="button" class="button small quiet" onClick=${halt}>Stop</button>
            </div>
          `
        }
        <${Trouble} problem=${listing.problem} />
      </div>
      <${Rows}
        narrowed=${Boolean(since || until || Object.values(parsed).some(Boolean))}
        ...${{ listing, chosen, flip, cursor, setCursor, open, scroller, halt }}
      />
    </div>
  `;
}
