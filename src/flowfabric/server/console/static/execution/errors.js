// What failed attempts failed with: type and message, the traceback folded, own frames before those of libraries.
import { html, useRef } from "../dom.js";
import { at, get } from "../api.js";
import { useOnce } from "../live.js";
import { moment, time } from "../format.js";
import { Copy } from "../parts.js";

/** The line behind which the frames of libraries follow; see model/reads/overview.py. */
const OTHERS = "\nAll frames, with those of libraries:\n";

/** The errors of an execution's attempts, read again when another attempt has failed; until then the known ones stay. */
export function useErrors(id, history) {
  const failed = history?.attempts.filter((each) => ["failed", "failure", "retry"].includes(each.outcome)).length ?? 0;
  const last = useRef([]);
  const { data } = useOnce(async () => (failed ? (await get(at(id, "errors"))).errors : []), [id, failed]);
  last.current = data ?? last.current;
  return last.current;
}

function Trace({ title, text, open }) {
  return html`
    <details class="trace" open=${open}>
      <summary>${title}</summary>
      <div class="copied">
        <pre class="value-box" tabindex="0" role="region" aria-label=${title}>${text.trimEnd()}</pre>
        <${Copy} text=${text.trimEnd()} label="Copy the traceback" />
      </div>
    </details>
  `;
}

function One({ error, single, reason }) {
  const [own, whole] = error.traceback.split(OTHERS);
  // The one that the page tells of already is not told twice.
  const told = single && reason === `${error.type}: ${error.message}`;
  return html`
    <div class="stack tight" data-error=${error.attempt_index}>
      ${
        !told &&
        html`
          <div>
            ${single ? null : html`<span class="soft small" title=${moment(error.at)}>Attempt ${error.attempt_index + 1}, ${time(error.at)}: </span>`}
            <strong class="mono small wrap-anywhere">${error.type}</strong>
            ${error.message ? html`<span class="mono small wrap-anywhere">: ${error.message}</span>` : null}
          </div>
        `
      }
      ${own && html`<${Trace} title="Traceback" text=${own} />`}
      ${whole && html`<${Trace} title="All frames" text=${whole} />`}
    </div>
  `;
}

/** Newest first. */
export function Errors({ errors, attempts, reason }) {
  if (!errors.length) return null;
  return html`
    <section class="card" data-errors>
      <header>
        <h2>${errors.length === 1 ? "Traceback" : "Errors"}</h2>
        ${errors.length > 1 && html`<span class="count">${errors.length}</span>`}
      </header>
      <div class="body stack">
        ${[...errors].reverse().map(
          (error) => html`<${One} key=${error.attempt_index} error=${error} single=${attempts === 1} reason=${reason} />`,
        )}
      </div>
    </section>
  `;
}
