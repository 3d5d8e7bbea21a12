// Executions: found, followed while they change, cancelled and replayed many at once; or one of them, closely.
import { html, useCallback, useEffect, useMemo, useRef, useState, useValue } from "../dom.js";
import { at, post } from "../api.js";
import { useWatch } from "../live.js";
import { Live } from "../app.js";
import { may, namespace, now } from "../session.js";
import { Listing } from "../listing.js";
import { duration, exact, plural, shortId, STATES, words } from "../format.js";
import { Badge, closeDialog, confirm, Empty, executionHref, Menu, openDialog, toast, Trouble, When } from "../parts.js";
import { Icon } from "../icons.js";
import Execution from "./execution.js";

const WINDOWS = [["", "Any time"], ["900000", "15 min"], ["3600000", "1 h"], ["86400000", "24 h"]];
const WORDS = { kind: "kind", lane: "lane_id", ns: "namespace", namespace: "namespace", tag: "tag", flow: "flow_id", state: "state" };
const OVERSCAN = 8;

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
  return id ? html`<${Execution} key=${id} id=${id} query=${query} />` : html`<${List} query=${query} />`;
}

function List({ query }) {
  const [text, setText] = useState(query.get("q") || "");
  const [asked, setAsked] = useState(query.get("q") || "");
  const [states, setStates] = useState(() => new Set((query.get("state") || "").split(",").filter(Boolean)));
  const [within, setWithin] = useState(query.get("within") || "");
  const own = useValue(namespace);
  const [, draw] = useState(0);
  const [chosen, setChosen] = useState(() => new Set());
  const [cursor, drawCursor] = useState(-1);
  // Keys may come faster than the page is drawn.
  const stands = useRef(-1);
  const setCursor = (place) => {
    stands.current = place;
    drawCursor(place);
  };
  const [unseen, setUnseen] = useState(0);
  const box = useRef(null);
  const view = useRef({ first: 0, last: 0 });

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
  const listing = useMemo(
    () => new Listing({ ...parsed, created_from: since ? Math.floor(now() - since) : undefined }, () => draw((n) => n + 1)),
    [parsed, since],
  );

  useEffect(() => {
    const found = new URLSearchParams();
    if (asked) found.set("q", asked);
    if (states.size) found.set("state", [...states].join(","));
    if (within) found.set("within", within);
    const hash = `#/executions${found.size ? `?${found}` : ""}`;
    if (location.hash !== hash) history.replaceState(null, "", hash);
    setChosen(new Set());
    setCursor(-1);
    setUnseen(0);
    if (box.current) box.current.scrollTop = 0;
  }, [asked, states, within]);

  const refresh = useWatch(async () => {
    const added = await listing.refresh(view.current.first, view.current.last);
    const top = box.current?.scrollTop || 0;
    if (added && top > 80) {
      // What one looks at stays where it is.
      box.current.scrollTop = top + added * rowHeight();
      setUnseen((n) => n + added);
    }
  }, [listing]);

  const open = useCallback((row) => { location.hash = executionHref(row.execution_id); }, []);
  const flip = useCallback((identity) => setChosen((old) => {
    const next = new Set(old);
    if (!next.delete(identity)) next.add(identity);
    return next;
  }), []);

  useEffect(() => {
    const key = ({ detail }) => {
      if (detail === "j" || detail === "k") {
        const next = Math.max(0, Math.min(listing.rows.length - 1, stands.current + (detail === "j" ? 1 : -1)));
        setCursor(next);
        const top = next * rowHeight(), height = box.current.clientHeight - 36;
        if (top < box.current.scrollTop) box.current.scrollTop = top;
        else if (top + rowHeight() > box.current.scrollTop + height) box.current.scrollTop = top + rowHeight() - height;
      } else if (detail === "x" && listing.rows[stands.current]) flip(listing.rows[stands.current].execution_id);
      else if (detail === "Enter" && listing.rows[stands.current]) open(listing.rows[stands.current]);
      else if (detail === "Escape") setChosen(new Set());
    };
    addEventListener("ff-key", key);
    return () => removeEventListener("ff-key", key);
  }, [listing]);

  const flipState = (state) => setStates((old) => {
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

  return html`<div class="page full">
    <div class="page-head"><h1>Executions</h1><${Live} />
      <div class="actions">
        <${Menu} label="All that fit" items=${[
          may("operator") && { label: "Cancel all that fit…", icon: "stop", danger: true, act: () => bulk("cancel", parsed, since, refresh) },
          may("operator") && { label: "Replay all that fit…", icon: "replay", act: () => bulk("replay", parsed, since, refresh) },
        ]} />
      </div>
    </div>
    <div class="filters">
      <form class="line wraps" onSubmit=${submit} role="search">
        <div class="search"><${Icon} name="search" /><label class="visually-hidden" for="q">Search executions</label>
          <input id="q" data-search class="input" autocomplete="off" spellcheck="false" placeholder="A kind, an id, or lane:gpu tag:team=red flow:… ns:…" value=${text} onInput=${(event) => setText(event.target.value)} />
          <kbd aria-hidden="true">/</kbd></div>
        <label class="visually-hidden" for="within">Created</label>
        <select id="within" class="input" style=${{ width: "auto" }} value=${within} onChange=${(event) => setWithin(event.target.value)}>
          ${WINDOWS.map(([key, name]) => html`<option key=${key} value=${key}>${name}</option>`)}
        </select>
      </form>
      <div class="chips" role="group" aria-label="States">
        ${STATES.map((state) => html`<button type="button" class="chip" key=${state} data-tone=${state} aria-pressed=${String(states.has(state))} onClick=${() => flipState(state)}><span class="dot"></span>${words(state)}</button>`)}
      </div>
      ${chosen.size > 0 && html`<div class="bulk" role="status"><span>${plural(chosen.size, "execution")} chosen</span>
        ${may("operator") && html`<button type="button" class="button small danger" onClick=${() => some("cancel", [...chosen], () => { setChosen(new Set()); refresh(); })}>Cancel…</button>
        <button type="button" class="button small" onClick=${() => some("replay", [...chosen], () => { setChosen(new Set()); refresh(); })}>Replay…</button>`}
        <button type="button" class="button small quiet" onClick=${() => setChosen(new Set())}>None</button></div>`}
      ${unseen > 0 && html`<button type="button" class="chip" aria-pressed="true" onClick=${() => { box.current.scrollTop = 0; setUnseen(0); }}>${plural(unseen, "new one", "new ones")} above</button>`}
      <${Trouble} problem=${listing.problem} />
    </div>
    <${Rows} narrowed=${Boolean(since || Object.values(parsed).some(Boolean))} ...${{ listing, chosen, flip, cursor, setCursor, open, box, view }} />
  </div>`;
}

const rowHeight = () => (matchMedia("(max-width: 760px)").matches ? 60 : 37);

function Rows({ narrowed, listing, chosen, flip, cursor, setCursor, open, box, view }) {
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
  return html`<div class="list" ref=${box} tabindex="0" role="region" aria-label="Executions" style=${{ "--row": `${height}px` }}>
    <div class="list-head" aria-hidden="true"><span></span><span>State</span><span>Execution</span><span>Namespace</span><span>Lane</span><span>Created</span><span>Took</span><span class="right">Tries</span></div>
    <div class="list-body" role="list" style=${{ height: `${total * height}px` }}>
      ${shown.map((row, offset) => html`<${Row} key=${row.execution_id} ...${{ row, place: first + offset, height, total, open, flip }}
        chosen=${chosen.has(row.execution_id)} fresh=${listing.fresh.has(row.execution_id)} atCursor=${cursor === first + offset} setCursor=${setCursor} />`)}
    </div>
    ${listing.begun && !total && !listing.problem && html`<${Empty}>${narrowed ? html`Nothing fits.<span class="small faint">Choose fewer states, a longer time, or another namespace.</span>` : html`Nothing was started yet.<span class="small faint">Start something with flowfabric run, or from your own code; it appears here by itself.</span>`}</${Empty}>`}
    ${listing.loading && html`<p class="loading">Loading…</p>`}
  </div>`;
}

function Row({ row, place, height, total, chosen, fresh, atCursor, setCursor, open, flip }) {
  const end = row.completed_at ?? (row.started_at ? now() : null);
  return html`<div class=${`list-row ${chosen ? "chosen" : ""} ${atCursor ? "cursor" : ""} ${fresh ? "fresh" : ""}`} role="listitem" aria-posinset=${place + 1} aria-setsize=${total}
      style=${{ top: `${place * height}px` }} onClick=${(event) => { if (!event.target.closest("a, input")) { setCursor(place); open(row); } }}>
    <label class="pick"><span class="visually-hidden">Choose ${shortId(row.execution_id)}</span><input type="checkbox" checked=${chosen} onChange=${() => flip(row.execution_id)} /></label>
    <span class="cell-state"><${Badge} state=${row.public_state} /></span>
    <span class="cell-name clip"><a class="name" href=${executionHref(row.execution_id)}>${row.execution_kind === "$ask" ? "question" : row.execution_kind || "(no kind)"}</a> <span class="mono faint">${shortId(row.execution_id)}</span></span>
    <span class="cell-space clip soft">${row.namespace}</span>
    <span class="cell-lane clip soft">${row.lane_id}</span>
    <span class="cell-time soft small"><${When} ms=${row.created_at} /></span>
    <span class="cell-took soft small number">${row.started_at ? duration(end - row.started_at) : "–"}</span>
    <span class="cell-tries right soft number">${row.current_attempt_index + (row.started_at ? 1 : 0) || "–"}</span>
  </div>`;
}

// -- many at once ----------------------------------------------------------------------------------------------------

function some(verb, ids, done) {
  confirm({
    title: `${verb === "cancel" ? "Cancel" : "Replay"} ${plural(ids.length, "execution")}?`,
    consequence: verb === "cancel" ? "Each is stopped where it is; its worker is told. What has ended stays as it is." : "Each that has ended runs again from its beginning, with the same input.",
    label: verb === "cancel" ? "Cancel them" : "Replay them",
    danger: verb === "cancel",
    fields: verb === "cancel" ? [{ name: "reason", label: "Reason", placeholder: "for the record" }] : [],
    act: async ({ reason }) => {
      let failed = 0;
      const work = [...ids];
      await Promise.all(Array.from({ length: 5 }, async () => {
        for (let identity = work.pop(); identity; identity = work.pop()) {
          try {
            await post(at(identity, verb), verb === "cancel" ? { reason: reason || "" } : undefined);
          } catch (problem) {
            if (problem.status === 0) throw problem;
            failed += 1;
          }
        }
      }));
      toast(`${plural(ids.length - failed, "execution")} ${verb === "cancel" ? "cancelled" : "replayed"}${failed ? `, ${failed} refused` : ""}.`, failed ? "warn" : "good");
      done();
    },
  });
}

function bulk(verb, parsed, since, refresh) {
  const filter = {
    namespace: parsed.namespace, lane_id: parsed.lane_id, kind: parsed.kind, flow_id: parsed.flow_id,
    states: parsed.state ? parsed.state.split(",") : undefined,
    tag: parsed.tag ? [parsed.tag.slice(0, parsed.tag.indexOf("=")), parsed.tag.slice(parsed.tag.indexOf("=") + 1)] : undefined,
    created_from: since ? Math.floor(now() - since) : undefined,
    // What is created after the preview is not meant.
    created_before: Math.floor(now()) + 1,
  };
  openDialog({ body: html`<${Bulk} ...${{ verb, filter, refresh }} />` });
}

const PREVIEW_PAGES = 20, BATCH = 500;

function Bulk({ verb, filter, refresh }) {
  const [preview, setPreview] = useState({ count: 0, whole: false, problem: null });
  const [reason, setReason] = useState("");
  const [progress, setProgress] = useState(null);
  const stopped = useRef(false);
  useEffect(() => {
    (async () => {
      let cursor, count = 0;
      try {
        for (let page = 0; page < PREVIEW_PAGES && !stopped.current; page += 1) {
          const found = await post(`v1/bulk/${verb}`, { filter, dry_run: true, limit: 1_000, cursor }, { key: undefined });
          count += found.matched;
          cursor = found.next_cursor;
          setPreview({ count, whole: cursor === null, problem: null });
          if (cursor === null) return;
        }
      } catch (problem) {
        setPreview({ count, whole: true, problem });
      }
    })();
    return () => { stopped.current = true; };
  }, []);
  const run = async (event) => {
    event.preventDefault();
    let cursor, done = 0, failed = 0;
    try {
      do {
        setProgress({ done, failed });
        const found = await post(`v1/bulk/${verb}`, { filter, reason, limit: BATCH, cursor });
        done += found.done.length;
        failed += found.failed.length;
        cursor = found.next_cursor;
      } while (cursor !== null && !stopped.current);
      toast(`${plural(done, "execution")} ${verb === "cancel" ? "cancelled" : "replayed"}${failed ? `, ${failed} refused` : ""}.`, failed ? "warn" : "good");
      closeDialog();
      refresh();
    } catch (problem) {
      setProgress(null);
      setPreview((old) => ({ ...old, problem }));
    }
  };
  const some = preview.count > 0;
  const told = Object.entries(filter).filter(([name, value]) => value !== undefined && name !== "created_before");
  return html`<form onSubmit=${run}>
    <h2 id="dialog-title">${verb === "cancel" ? "Cancel" : "Replay"} all that fit</h2>
    <p class="sentence" data-tone=${some ? "warn" : "waiting"}><${Icon} name="warn" /><span><strong data-preview>${preview.whole ? "" : "At least "}${exact(preview.count)}</strong> ${preview.count === 1 ? "execution fits" : "executions fit"}.
      ${verb === "cancel" ? " Those that have not ended are stopped; their workers are told." : " Those that failed or expired run again from their beginning, unless states were chosen."}</span></p>
    <div class="note-box">${told.length ? told.map(([name, value]) => html`<div key=${name}><span class="faint">${words(name)}</span> <span class="mono wrap-anywhere">${Array.isArray(value) ? value.join(name === "tag" ? "=" : ", ") : String(value)}</span></div>`) : "Nothing narrows it: this is about everything that can be seen."}</div>
    ${verb === "cancel" && html`<div class="field"><label for="bulk-reason">Reason</label><input id="bulk-reason" class="input" value=${reason} onInput=${(event) => setReason(event.target.value)} autocomplete="off" /></div>`}
    <${Trouble} problem=${preview.problem} />
    <div class="foot"><button type="button" class="button" onClick=${closeDialog}>Leave it</button>
      <button type="submit" class=${`button primary ${verb === "cancel" ? "danger" : ""}`} disabled=${!some || progress !== null}>
        ${progress ? `${exact(progress.done)} done…` : `${verb === "cancel" ? "Cancel" : "Replay"} ${preview.whole ? exact(preview.count) : "all"}`}</button></div>
  </form>`;
}
