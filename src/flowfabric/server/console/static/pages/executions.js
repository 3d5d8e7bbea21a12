// Executions: found, followed while they change, cancelled and replayed many at once; or one of them, closely.
import { html, useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "../dom.js";
import { get } from "../api.js";
import { useLive, useQuestion, useWatch } from "../live.js";
import { Live } from "../app.js";
import { useNamespace } from "../narrowing.js";
import { may } from "../session.js";
import { Listing } from "../listing.js";
import { exact, moment, plural } from "../format.js";
import { executionHref, Menu, Segments, Trouble } from "../parts.js";
import { Icon } from "../icons.js";
import Execution from "./execution.js";
import { filterOf, go, isNarrowed, read, times } from "../executions/address.js";
import { Failures } from "../executions/failures.js";
import { Filters } from "../executions/filters.js";
import { rowHeight, Rows } from "../executions/rows.js";
import { some, bulk } from "../executions/many.js";
import { startNew } from "../execution/starting.js";
import { useMoving } from "../executions/moving.js";
import { Columns, Views } from "../executions/views.js";

/** How far from its top the list may be and still show what is new. */
const NEAR = 80;
const TABS = [
  ["", "All"],
  ["failures", "Failures by error"],
];

export default function Executions({ id, query }) {
  return id
    ? html`<${Execution} key=${id} id=${id} query=${query} />`
    : html`<${List} query=${query} />`;
}

function List({ query }) {
  const said = useMemo(() => read(query), [String(query)]);
  const own = useNamespace("executions", query);
  const { data: counts } = useLive(
    async () => {
      if (!may("count_states")) return null;
      const { state, ...rest } = filterOf(said, own);
      return get("v1/search/states", rest).catch(() => null);
    },
    [JSON.stringify({ ...said, states: 0, columns: 0, tab: 0, ns: 0 }), own],
    10_000,
  );
  return html`
    <div class=${`page ${said.tab ? "" : "full"}`}>
      ${
        said.tab
          ? html`
              <${Head} said=${said} />
              <div class="filters"><${Filters} said=${said} /></div>
              <${Failures} said=${said} own=${own} />
            `
          : html`<${Found} said=${said} own=${own} counts=${counts} />`
      }
    </div>
  `;
}

const Head = ({ said, children, actions }) => html`
  <div class="page-head">
    <h1>Executions</h1>
    <${Live} />
    ${children}
    <div class="actions">
      ${
        may("group_failures") &&
        html`<${Segments} label="Show" options=${TABS} value=${said.tab} onChange=${(tab) => go({ tab })} />`
      }
      <${Views} said=${said} />
      ${actions}
    </div>
  </div>
`;

/** How many there are, as far as it is known. */
function Total({ listing, said, counts }) {
  if (listing.complete) return listing.total > 0 && `${exact(listing.total)} found`;
  if (!counts || !listing.opened) return listing.total > 0 && `the newest ${exact(listing.total)}`;
  const states = said.states.length ? said.states : Object.keys(counts.counts);
  const total = states.reduce((sum, state) => sum + (counts.counts[state] || 0), 0);
  return counts.oldest === null
    ? `${exact(total)} found`
    : html`<span title=${`Created since ${moment(counts.oldest)}`}>at least ${exact(Math.max(total, listing.total))} found</span>`;
}

function Found({ said, own, counts }) {
  const [, draw] = useState(0);
  const [chosen, setChosen] = useState(() => new Set());
  const [unseen, setUnseen] = useState(0);
  const scroller = useRef(null);

  // The namespace of the address is the one of the side bar.
  const narrowed = JSON.stringify({ ...said, columns: 0, ns: 0 });
  const listing = useMemo(
    () => new Listing(filterOf(said, own, times(said)), () => draw((n) => n + 1)),
    [narrowed, own],
  );
  const { cursor, standing, setCursor, move, halt } = useMoving(listing, scroller);
  const clear = useCallback(() => setChosen(new Set()), []);

  // Before any key is about what is drawn now.
  useLayoutEffect(() => {
    clear();
    setCursor(-1);
    setUnseen(0);
    scroller.current?.to(0);
    return halt;
  }, [listing]);

  const question = useQuestion([listing]);
  // At its top the list moves on by itself, but not under a pointer, nor away from what was chosen.
  const over = useRef(false);
  const picked = useRef(false);
  picked.current = chosen.size > 0;
  /** Where new rows have pushed it from its top: until somebody scrolls, it is still there. */
  const pushed = useRef(0);
  const isAtTop = (top) => top <= NEAR || top === pushed.current;
  const refresh = useWatch(async () => {
    // A search that was refused stays so.
    if (listing.problem?.status === 400) return true;
    const top = scroller.current?.top ?? 0;
    const looked = listing.at(Math.floor(top / rowHeight()));
    const added = await listing.refresh();
    // What was asked of another list is not about this one.
    if (!question.open) return true;
    const atTop = isAtTop(scroller.current.top);
    const stays = !atTop || over.current || picked.current;
    if (stays && looked && scroller.current.top === top) anchor(looked, top);
    else if (!stays && unseen) scroller.current.to(0);
    if (atTop) pushed.current = scroller.current.top;
    setUnseen((n) => (stays ? n + added : 0));
    return !listing.problem;
  }, [listing]);
  /** What one looks at stays where it is, unless it was left and forgotten meanwhile. */
  const anchor = (looked, top) => {
    scroller.current.extend(listing.total * rowHeight());
    const place = listing.placeOf(looked);
    const moved = place - Math.floor(top / rowHeight());
    if (moved && listing.at(place)?.execution_id === looked.execution_id)
      scroller.current.to(scroller.current.top + moved * rowHeight());
  };
  const acted = (ids) => {
    setChosen((old) => new Set([...old].filter((identity) => !ids.includes(identity))));
    refresh();
  };
  const actedOnAll = (stayed) => {
    // Who has left the dialog may have chosen others since.
    if (stayed) clear();
    refresh();
  };

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

  // With what is drawn: a key that comes before the next frame is about that.
  useLayoutEffect(() => {
    const key = (event) => {
      const row = standing();
      if (move(event.detail)) event.preventDefault();
      else if (event.detail === "x" && row) flip(row.execution_id);
      else if (event.detail === "Enter" && row) open(row);
      else if (event.detail === "Escape") {
        halt();
        clear();
      }
    };
    addEventListener("ff-key", key);
    return () => removeEventListener("ff-key", key);
  }, [listing]);

  const all = (verb, label, icon) => ({
    label,
    icon,
    danger: verb === "cancel",
    act: () => bulk(verb, said, own, actedOnAll),
  });
  const act = (verb, label, look) => html`
    <button type="button" class=${`button small ${look}`} onClick=${() => some(verb, [...chosen], acted)}>${label}</button>
  `;
  return html`
    <${Head}
      said=${said}
      actions=${html`
        <${Columns} said=${said} />
        ${
          may("create_execution") &&
          html`
            <button type="button" class="button" onClick=${() => startNew()}>
              <${Icon} name="play" />
              Start…
            </button>
          `
        }
        <${Menu}
          label="Bulk actions"
          items=${[
            may("cancel_executions") && all("cancel", "Cancel all matches…", "stop"),
            may("replay_executions") && all("replay", "Replay all matches…", "replay"),
          ]}
        />
      `}
    >
      <span class="faint small" data-found><${Total} ...${{ listing, said, counts }} /></span>
    </${Head}>
    <div class="filters">
      <${Filters} said=${said} counts=${counts} />
      ${
        chosen.size > 0 &&
        html`
          <div class="bulk" role="status">
            <span>${plural(chosen.size, "execution")} selected</span>
            ${may("request_cancel") && act("cancel", "Cancel…", "danger")}
            ${may("replay_execution") && act("replay", "Replay…", "")}
            <button type="button" class="button small quiet" onClick=${clear}>Deselect all</button>
          </div>
        `
      }
      ${
        unseen > 0 &&
        html`
          <button
            type="button"
            class="chip news"
            aria-pressed="true"
            onClick=${() => {
              scroller.current.to(0);
              setUnseen(0);
            }}
          >
            ${plural(unseen, "new execution")} above
          </button>
        `
      }
      ${
        listing.hurry &&
        html`
          <div class="bulk" role="status">
            <span>Loading older executions: ${exact(listing.total)} so far</span>
            <button type="button" class="button small quiet" onClick=${halt}>Stop</button>
          </div>
        `
      }
      <${Trouble} problem=${listing.problem} />
    </div>
    <${Rows}
      narrowed=${isNarrowed(said)}
      columns=${said.columns}
      roots=${said.roots}
      clear=${() => go({ ...read(new URLSearchParams()), columns: said.columns, ns: own })}
      ...${{ listing, chosen, flip, cursor, setCursor, open, scroller, halt, over }}
    />
  `;
}
