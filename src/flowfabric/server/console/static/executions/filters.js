// What narrows the list: words, times, states; and how many are in each state.
import { html, useEffect, useLayoutEffect, useRef, useState } from "../dom.js";
import { count, exact, fromLocal, plural, STATES, toLocal, words, zone } from "../format.js";
import { executionHref } from "../parts.js";
import { Icon } from "../icons.js";
import { go, here } from "./address.js";

const WINDOWS = [
  ["0", "Any time"],
  ["300000", "Last 5 min"],
  ["900000", "Last 15 min"],
  ["3600000", "Last 1 h"],
  ["21600000", "Last 6 h"],
  ["86400000", "Last 24 h"],
  ["604800000", "Last 7 d"],
];
const WHOLE = /^(?:\{fp:(\d+)\}|(\d{1,5})):([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})$/i;
/** After "lane:" more is about to be typed. */
const UNFINISHED = /(?:^|\s)[a-z_]+:"?$/i;

/** The words of the search box; the address follows after a moment. */
function useWords(said) {
  const [text, setText] = useState(said.q);
  const sent = useRef(said.q);
  const typed = useRef(said.q);
  typed.current = text;
  // Before it is painted: who types at once types into what is shown.
  useLayoutEffect(() => {
    // The address was changed by somebody else.
    if (said.q !== sent.current) setText(said.q);
    sent.current = said.q;
  }, [said.q]);
  const send = (words) => {
    sent.current = words;
    go({ q: words }, { replace: true });
  };
  // Another tab has a box of its own, which shows what the address says by then.
  useLayoutEffect(
    () => () => {
      if (typed.current !== sent.current) queueMicrotask(() => send(typed.current));
    },
    [],
  );
  useEffect(() => {
    if (text === sent.current || UNFINISHED.test(text)) return undefined;
    const timer = setTimeout(() => send(text), 250);
    return () => clearTimeout(timer);
  }, [text]);
  return [text, setText, send];
}

export function Filters({ said, counts }) {
  const [text, setText, send] = useWords(said);
  const submit = (event) => {
    event.preventDefault();
    const whole = WHOLE.exec(text.trim());
    if (whole) location.hash = executionHref(`{fp:${whole[1] ?? whole[2]}}:${whole[3].toLowerCase()}`);
    else send(text);
  };
  const flip = (state) => {
    const { states } = here();
    go({
      states: states.includes(state)
        ? states.filter((each) => each !== state)
        : STATES.filter((each) => each === state || states.includes(each)),
    });
  };
  const within = String(said.within);
  const windows = WINDOWS.some(([key]) => key === within) ? WINDOWS : [...WINDOWS, [within, "Custom"]];
  const field = (name, label) => html`
    <div class="line">
      <label class="small soft no-wrap" for=${name}>${label}</label>
      <input
        id=${name}
        class=${`input ${said[name] ? "" : "faint"}`}
        type="datetime-local"
        title=${`In ${zone()}`}
        value=${toLocal(said[name])}
        onChange=${(event) => go({ [name]: fromLocal(event.target.value) })}
      />
    </div>
  `;
  return html`
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
          placeholder="Kind or id, tag:team=red, error:timeout"
          title="Search terms: kind: id: state: lane: tag: error: worker: flow: parent: ns: since: until:"
          value=${text}
          onInput=${(event) => setText(event.target.value)}
        />
        <kbd aria-hidden="true">/</kbd>
      </div>
      ${
        said.tab === "" &&
        html`
          <label class="visually-hidden" for="by">Filter by</label>
          <select
            id="by"
            class="input narrow"
            value=${said.by}
            onChange=${(event) => go({ by: event.target.value })}
          >
            <option value="created">Created</option>
            <option value="ended">Ended</option>
          </select>
        `
      }
      <label class="visually-hidden" for="within">Window</label>
      <select
        id="within"
        class="input narrow"
        value=${within}
        onChange=${(event) => go({ within: Number(event.target.value) })}
      >
        ${windows.map(
          ([key, name]) => html`<option key=${key} value=${key}>${name}</option>`,
        )}
      </select>
      ${field("from", "From")} ${field("until", "Until")}
    </form>
    ${
      said.tab === "" &&
      html`
        <div class="chips" role="group" aria-label="States">
          ${STATES.map((state) => {
            const here = counts?.counts[state] || 0;
            return html`
              <button
                type="button"
                class="chip"
                key=${state}
                data-tone=${state}
                data-state=${state}
                aria-pressed=${String(said.states.includes(state))}
                aria-description=${counts ? plural(here, "execution") : null}
                title=${counts ? exact(here) : ""}
                onClick=${() => flip(state)}
              >
                <span class="dot"></span>
                ${words(state)}
                ${here ? html`<span class="many" aria-hidden="true">${count(here)}</span>` : null}
              </button>
            `;
          })}
          <button
            type="button"
            class="chip"
            data-roots
            aria-pressed=${String(said.roots)}
            title="Hide executions that others started"
            onClick=${() => go({ roots: !said.roots })}
          >
            Roots only
          </button>
        </div>
      `
    }
  `;
}
