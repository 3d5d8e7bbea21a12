// The rows of the list that are in view; the others are only room to scroll.
import { html, useEffect, useRef, useState } from "../dom.js";
import { now } from "../session.js";
import { duration, shortId } from "../format.js";
import { Badge, Empty, executionHref, When } from "../parts.js";

const OVERSCAN = 8;

export const rowHeight = () => (matchMedia("(max-width: 760px)").matches ? 60 : 37);

export function Rows({ narrowed, listing, chosen, flip, cursor, setCursor, open, box, view }) {
  const [scroll, setScroll] = useState({ top: 0, height: 600 });
  const waiting = useRef(false);
  const height = rowHeight();
  useEffect(() => {
    const element = box.current;
    const measure = () => {
      if (waiting.current) return;
      waiting.current = true;
      requestAnimationFrame(() => {
        waiting.current = false;
        setScroll({ top: element.scrollTop, height: element.clientHeight });
      });
    };
    measure();
    element.addEventListener("scroll", measure, { passive: true });
    const observer = new ResizeObserver(measure);
    observer.observe(element);
    return () => {
      element.removeEventListener("scroll", measure);
      observer.disconnect();
    };
  }, []);
  const total = listing.rows.length;
  const first = Math.max(0, Math.floor(scroll.top / height) - OVERSCAN);
  const last = Math.min(total, Math.ceil((scroll.top + scroll.height) / height) + OVERSCAN);
  view.current = { first, last };
  useEffect(() => {
    if (listing.begun && !listing.complete && last > total - 60) listing.more();
  });
  const shown = listing.rows.slice(first, last);
  return html`
    <div class="list" ref=${box} tabindex="0" role="region" aria-label="Executions" style=${{ "--row": `${height}px` }}>
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
      <div class="list-body" role="list" style=${{ height: `${total * height}px` }}>
        ${shown.map(
          (row, offset) => html`
            <${Row}
              key=${row.execution_id}
              ...${{ row, place: first + offset, height, total, open, flip }}
              chosen=${chosen.has(row.execution_id)}
              fresh=${listing.fresh.has(row.execution_id)}
              atCursor=${cursor === first + offset}
              setCursor=${setCursor}
            />
          `,
        )}
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
      ${listing.loading && html`<p class="loading">Loading…</p>`}
    </div>
  `;
}

function Row({ row, place, height, total, chosen, fresh, atCursor, setCursor, open, flip }) {
  const end = row.completed_at ?? (row.started_at ? now() : null);
  return html`
    <div
      class=${`list-row ${chosen ? "chosen" : ""} ${atCursor ? "cursor" : ""} ${fresh ? "fresh" : ""}`}
      role="listitem"
      aria-posinset=${place + 1}
      aria-setsize=${total}
      style=${{ top: `${place * height}px` }}
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
