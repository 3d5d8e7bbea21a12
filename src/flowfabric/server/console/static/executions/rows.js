// The rows of the list that are in view; the others are only room to scroll.
import { html, useEffect, useLayoutEffect, useRef, useState } from "../dom.js";
import { now } from "../session.js";
import { duration, shortId } from "../format.js";
import { Badge, Empty, executionHref, When } from "../parts.js";
import { Scroller } from "./scroller.js";

const OVERSCAN = 8;

export const rowHeight = () => (matchMedia("(max-width: 760px)").matches ? 60 : 37);

/** `scroller` is where whoever shows the list finds its Scroller. */
export function Rows({ narrowed, listing, chosen, flip, cursor, setCursor, open, scroller, halt }) {
  const [, draw] = useState(0);
  const box = useRef(null);
  const body = useRef(null);
  const height = rowHeight();
  const { total } = listing;
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
      style=${{ "--row": `${height}px` }}
      onWheel=${halt}
      onPointerDown=${halt}
    >
      <div class="list-head" aria-hidden="true">
        <span></span>
        <span>State</span>
        <span>Execution</span>
        <span>Namespace</span>
        <span>Lane</span>
        <span>Created</span>
        <span>Took</span>
        <span class="right">Tries</span>
      </div>
      <div class="list-body" role="list" ref=${body}>
        ${shown.map((row, offset) => {
          const place = first + offset;
          const top = place * height - shift;
          return row
            ? html`
                <${Row}
                  key=${row.execution_id}
                  ...${{ row, place, top, total, open, flip, setCursor }}
                  chosen=${chosen.has(row.execution_id)}
                  fresh=${listing.fresh.has(row.execution_id)}
                  atCursor=${cursor === place}
                />
              `
            : html`<${Blank} key=${place} ...${{ place, top, total }} />`;
        })}
      </div>
      ${
        listing.begun &&
        !total &&
        !listing.problem &&
        html`
          <${Empty}>
            ${
              narrowed
                ? html`
                    Nothing fits.
                    <span class="small faint">Choose fewer states, a longer time, or another namespace.</span>
                  `
                : html`
                    Nothing was started yet.
                    <span class="small faint">
                      Start something with flowfabric run, or from your own code; it appears here by itself.
                    </span>
                  `
            }
          </${Empty}>
        `
      }
      ${
        !listing.begun &&
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

function Row({ row, place, top, total, chosen, fresh, atCursor, setCursor, open, flip }) {
  const end = row.completed_at ?? (row.started_at ? now() : null);
  return html`
    <div
      class=${`list-row ${chosen ? "chosen" : ""} ${atCursor ? "cursor" : ""} ${fresh ? "fresh" : ""}`}
      role="listitem"
      aria-posinset=${place + 1}
      aria-setsize=${total}
      style=${{ top: `${top}px` }}
      onClick=${(event) => {
        if (!event.target.closest("a, input")) {
          setCursor(place);
          open(row);
        }
      }}
    >
      <label class="pick">
        <span class="visually-hidden">Choose ${shortId(row.execution_id)}</span>
        <input type="checkbox" checked=${chosen} onChange=${() => flip(row.execution_id)} />
      </label>
      <span class="cell-state"><${Badge} state=${row.public_state} /></span>
      <span class="cell-name clip">
        <a class="name" href=${executionHref(row.execution_id)}>
          ${row.execution_kind === "$ask" ? "question" : row.execution_kind || "(no kind)"}
        </a>
        ${" "}
        <span class="mono faint">${shortId(row.execution_id)}</span>
      </span>
      <span class="cell-space clip soft">${row.namespace}</span>
      <span class="cell-lane clip soft">${row.lane_id}</span>
      <span class="cell-time soft small"><${When} ms=${row.created_at} /></span>
      <span class="cell-took soft small number">${row.started_at ? duration(end - row.started_at) : "–"}</span>
      <span class="cell-tries right soft number">${row.current_attempt_index + (row.started_at ? 1 : 0) || "–"}</span>
    </div>
  `;
}
