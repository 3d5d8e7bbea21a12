// What an execution has started, and what that has started: a tree below its row, read as it is opened.
import { html, useState } from "../dom.js";
import { get } from "../api.js";
import { useOnce } from "../live.js";
import { shortId } from "../format.js";
import { Badge, executionHref, Trouble } from "../parts.js";
import { hrefOf } from "./address.js";

const MOST = 50;
const name = (row) => (row.execution_kind === "$ask" ? "question" : row.execution_kind || "(no kind)");

/** Opens and closes what is below an execution. */
export const Twist = ({ row, open, flip }) => html`
  <button
    type="button"
    class="twist"
    aria-expanded=${String(open)}
    aria-label=${`Children of ${name(row)} ${shortId(row.execution_id)}`}
    onClick=${flip}
  >
    ${open ? "▾" : "▸"}
  </button>
`;

export function Children({ id }) {
  const { data: found, problem } = useOnce(() => get("v1/search/executions", { parent: id, limit: MOST }), [id]);
  const [opened, setOpened] = useState(() => new Set());
  if (problem && !found) return html`<${Trouble} problem=${problem} />`;
  if (!found) return html`<p class="faint small">Loading…</p>`;
  if (!found.executions.length) return html`<p class="faint small">No children</p>`;
  const flip = (identity) =>
    setOpened((old) => {
      const next = new Set(old);
      if (!next.delete(identity)) next.add(identity);
      return next;
    });
  // The oldest first: in the order in which they were started.
  return html`
    <ul class="family-list">
      ${[...found.executions].reverse().map(
        (row) => html`
          <li key=${row.execution_id}>
            <span class="line">
              <${Twist} row=${row} open=${opened.has(row.execution_id)} flip=${() => flip(row.execution_id)} />
              <a class="name clip" href=${executionHref(row.execution_id)}>${name(row)}</a>
              <span class="mono faint small">${shortId(row.execution_id)}</span>
              <${Badge} state=${row.public_state} />
            </span>
            ${opened.has(row.execution_id) && html`<${Children} id=${row.execution_id} />`}
          </li>
        `,
      )}
    </ul>
    ${found.next_cursor !== null && html`<a class="small" href=${hrefOf({ q: `parent:${id}` })}>All children</a>`}
  `;
}
