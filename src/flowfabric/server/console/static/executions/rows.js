// The rows of the list that are in view; the others are only room to scroll.
import { html, useEffect, useLayoutEffect, useRef, useState } from "../dom.js";
import { now } from "../session.js";
import { duration, shortId, words } from "../format.js";
import { Badge, Empty, executionHref, When } from "../parts.js";
import { COLUMNS } from "./address.js";
import { Children, Twist } from "./family.js";
import { Scroller } from "./scroller.js";

const OVERSCAN = 8;

export const rowHeight = () => (matchMedia("(max-width: 760px)").matches ? 60 : 37);

/** `scroller` is where the page finds the list's Scroller. */
export function Rows({ narrowed, columns, roots, clear, listing, chosen, flip, cursor, setCursor, open, scroller, halt, over }) {
  const [, draw] = useState(0);
  const box = useRef(null);
  const body = useRef(null);
  const height = rowHeight();
  const { total } = listing;
  const shownColumns = COLUMNS.filter(([key]) => columns.includes(key));
  useLayoutEffect(() => {
    const own = (scroller.current = new Scroller(box.current, body.current, () => draw((n) => n + 1)));
    own.onMove();
    return () => {
      own.stop();
      scroller.current = null;
    };
  }, []);
  useLayoutEffect(() => scroller.current.extend(total * height), [total, height]);
  const { top, shift } = scroller.current || { top: 0, shift: 0 };
  const first = Math.max(0, Math.floor(top / height) - OVERSCAN);
  const last = Math.min(total, Math.ceil((top + (box.current?.clientHeight || 600)) / height) + OVERSCAN);
  useEffect(() => listing.look(first, last));
  const shown = listing.between(first, last);
  return html`
    <div
      class="list"
      ref=${box}
      tabindex="0"
      role="region"
      aria-label="Executions"
      style=${{ "--row": `${height}px`, "--columns": shownColumns.map(([, , width]) => width).join(" ") }}
      onWheel=${halt}
      onPointerDown=${halt}
      onPointerEnter=${() => {
        over.current = true;
      }}
      onPointerLeave=${() => {
        over.current = false;
      }}
    >
      <div class="list-head" aria-hidden="true">
        <span></span>
        <span>State</span>
        <span>Execution</span>
        ${shownColumns.map(
          ([key, title]) => html`<span key=${key} class=${key === "tries" ? "right" : ""}>${title}</span>`,
        )}
      </div>
      <div class="list-body" role="list" ref=${body}>
        ${shown.map((row, offset) => {
          const place = first + offset;
          const top = place * height - shift;
          return row
            ? html`
                <${Row}
                  key=${row.execution_id}
                  ...${{ row, place, top, total, columns, roots, open, flip, setCursor }}
                  chosen=${chosen.has(row.execution_id)}
                  fresh=${listing.fresh.has(row.execution_id)}
                  atCursor=${cursor === place}
                />
              `
            : html`<${Blank} key=${place} ...${{ place, top, total }} />`;
        })}
      </div>
      ${
        listing.opened &&
        !total &&
        !listing.problem &&
        html`
          <${Empty}>
            ${
              narrowed
                ? html`
                    No matches.
                    <button type="button" class="button small" data-clear onClick=${clear}>Clear filters</button>
                  `
                : html`
                    No executions yet.
                    <span class="small faint">
                      Start one with flowfabric run or from your own code; it appears here at once.
                    </span>
                  `
            }
          </${Empty}>
        `
      }
      ${
        !listing.opened &&
        !listing.problem &&
        html`<p class="loading" role="status">Loading…</p>`
      }
    </div>
  `;
}

/** Where a row will be as soon as it is fetched. */
const Blank = ({ place, top, total }) => html`
  <div
    class="list-row blank"
    role="listitem"
    aria-posinset=${place + 1}
    aria-setsize=${total}
    style=${{ top: `${top}px` }}
  >
    <span></span>
    <span class="faint small">…</span>
  </div>
`;

const shownTags = (row) =>
  Object.entries(row.tags || {})
    .filter(([key]) => !key.startsWith("ff."))
    .map(([key, value]) => `${key.replace(/^user\./, "")}=${value}`);

/** Why it is as it is: the error, what it waits for, or why it was cancelled. */
export function detailOf(row) {
  const error = (row.error || "").split("\n")[0];
  if (row.public_state === "completed" || row.public_state === "active") return "";
  if (row.public_state === "cancelled") return row.cancellation_reason || "";
  // The engine's own reasons are single words.
  if (row.completed_at) return /^[a-z_]+$/.test(error) ? words(error) : error;
  const waits = row.blocking_reason && row.blocking_reason !== "none" ? words(row.blocking_reason) : "";
  return [waits, error].filter(Boolean).join(": ");
}

/** What stands in the columns that can be chosen. */
const CELLS = {
  detail: (row) => {
    const text = detailOf(row);
    return html`<span class="clip small" title=${text} data-detail>${text}</span>`;
  },
  tags: (row) => {
    const tags = shownTags(row);
    return html`<span class="clip small soft" title=${tags.join("\n")}>${tags.join(", ")}</span>`;
  },
  space: (row) => row.namespace,
  lane: (row) => row.lane_id,
  time: (row) => html`<${When} ms=${row.created_at} />`,
  end: (row) => html`<${When} ms=${row.completed_at} />`,
  took: (row) =>
    row.started_at ? duration((row.completed_at ?? now()) - row.started_at) : "–",
  tries: (row) => row.current_attempt_index + (row.started_at ? 1 : 0) || "–",
};
const LOOKS = {
  detail: "clip",
  tags: "clip",
  space: "clip soft",
  lane: "clip soft",
  time: "soft small",
  end: "soft small",
  took: "soft small number",
  tries: "right soft number",
};

function Row({ row, place, top, total, columns, roots, chosen, fresh, atCursor, setCursor, open, flip }) {
  const [twisted, setTwisted] = useState(false);
  const root = useRef(null);
  useEffect(() => {
    if (!twisted) return undefined;
    const away = (event) => {
      if (event.key ? event.key === "Escape" : !root.current?.contains(event.target)) setTwisted(false);
    };
    document.addEventListener("pointerdown", away);
    document.addEventListener("keydown", away);
    return () => {
      document.removeEventListener("pointerdown", away);
      document.removeEventListener("keydown", away);
    };
  }, [twisted]);
  return html`
    <div
      ref=${root}
      class=${`list-row ${twisted && roots ? "open" : ""} ${detailOf(row) && columns.includes("detail") ? "detailed" : ""} ${chosen ? "chosen" : ""} ${atCursor ? "cursor" : ""} ${fresh ? "fresh" : ""}`}
      role="listitem"
      aria-posinset=${place + 1}
      aria-setsize=${total}
      style=${{ top: `${top}px` }}
      onClick=${(event) => {
        if (!event.target.closest("a, input, button, .family")) {
          setCursor(place);
          open(row);
        }
      }}
    >
      <label class="pick">
        <span class="visually-hidden">Select ${shortId(row.execution_id)}</span>
        <input type="checkbox" checked=${chosen} onChange=${() => flip(row.execution_id)} />
      </label>
      <span class="cell-state"><${Badge} state=${row.public_state} /></span>
      <span class="cell-name clip">
        ${roots && html`<${Twist} row=${row} open=${twisted} flip=${() => setTwisted(!twisted)} />`}
        <a class="name" href=${executionHref(row.execution_id)}>
          ${row.execution_kind === "$ask" ? "question" : row.execution_kind || "(no kind)"}
        </a>
        ${" "}
        <span class="mono faint">${shortId(row.execution_id)}</span>
        ${
          row.parent &&
          html`
            ${" "}
            <a class="small faint" href=${executionHref(row.parent)} title="Started by another execution">↳ parent</a>
          `
        }
      </span>
      ${COLUMNS.filter(([key]) => columns.includes(key)).map(
        ([key]) => html`<span key=${key} class=${`cell-${key} ${LOOKS[key]}`}>${CELLS[key](row)}</span>`,
      )}
      ${
        roots &&
        twisted &&
        html`<div class="family" role="group" aria-label="Children"><${Children} id=${row.execution_id} /></div>`
      }
    </div>
  `;
}
