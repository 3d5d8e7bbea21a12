// The shell: who is signed in, where they are, what the keys do.
import { html, render, signal, useEffect, useState, useValue } from "./dom.js";
import { get } from "./api.js";
import { connection, useLive } from "./live.js";
import { choose, keepToken, may, me, namespace, setNow, signOut, token } from "./session.js";
import { Dialogs, openDialog } from "./dialogs.js";
import { Help } from "./help.js";
import { Toasts } from "./toasts.js";
import { Icon, Mark } from "./icons.js";

// The one place where an address becomes code; see the policy the server sends.
export const trusted = globalThis.trustedTypes?.createPolicy("flowfabric", {
  createScriptURL: (name) => {
    const url = new URL(name, import.meta.url);
    if (url.origin !== location.origin) throw new TypeError("foreign script");
    return url.href;
  },
}) || { createScriptURL: (name) => new URL(name, import.meta.url).href };
globalThis.ffTrusted = trusted;

const PAGES = [
  { path: "overview", title: "Overview", key: "o", needs: "attention" },
  { path: "executions", title: "Executions", key: "e", needs: "search_executions" },
  { path: "flows", title: "Flows", key: "f", needs: "search_flows" },
  { path: "approvals", title: "Approvals", key: "a", needs: "list_asks" },
  null,
  { path: "budgets", title: "Budgets", key: "b", needs: "list_budgets" },
  { path: "schedules", title: "Schedules", key: "s", needs: "search_schedules" },
  { path: "workers", title: "Workers", key: "w", needs: "search_workers" },
  { path: "kinds", title: "Kinds", key: "k", needs: "read_kinds" },
  null,
  { path: "audit", title: "Audit", key: "u", needs: "list_audit" },
  { path: "settings", title: "Settings", key: "t" },
];
const seen = () => PAGES.filter((page) => !page?.needs || may(page.needs));

const plainText = (text) => {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
};

function parse() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const [page = "", ...rest] = path.split("/");
  return {
    page: page || "overview",
    id: rest.length ? plainText(rest.join("/")) : null,
    query: new URLSearchParams(query || ""),
  };
}
export const route = signal(parse());
addEventListener("hashchange", () => {
  route.value = parse();
});

const loaded = {};
/** The page's module; asked for again under another name if it could not be had, and then `onFailure` is told. */
async function load(name, onFailure, tries = 0) {
  try {
    loaded[name] = (await import(`./pages/${name}.js${tries ? `?${tries}` : ""}`)).default;
  } catch {
    onFailure();
    await new Promise((resolve) => {
      setTimeout(resolve, Math.min(300 * 2 ** tries, 5_000));
    });
    await load(name, onFailure, tries + 1);
  }
}

function usePage(name) {
  const [failed, setFailed] = useState(null);
  const [, again] = useState(0);
  const page = name ? loaded[name] : null;
  useEffect(() => {
    // Also if it has come since: what is drawn does not show it yet.
    if (name && !page) load(name, () => setFailed(name)).then(() => again((n) => n + 1));
  }, [name]);
  return [page, failed === name];
}

/** Instead of everything, or of a page whose code has not been loaded yet, while the server is gone. */
const Unreachable = () => html`
  <div class="page" role="alert">
    <h1>The server cannot be reached</h1>
    <p class="soft">This page loads as soon as the server is back. Nothing was changed; retrying…</p>
  </div>
`;

const NotLoaded = () => html`
  <div class="page" role="alert">
    <h1>This page could not be loaded</h1>
    <p class="soft">Its code could not be fetched. Nothing was changed; retrying…</p>
  </div>
`;

const Lost = () => html`
  <div class="page">
    <h1>Page not found</h1>
    <p><a href="#/overview">Go to the overview</a></p>
  </div>
`;

function SignIn() {
  const [text, setText] = useState("");
  const [problem, setProblem] = useState("");
  const submit = async (event) => {
    event.preventDefault();
    const given = text.trim();
    keepToken(given);
    try {
      const found = await get("v1/me");
      // Another one may have been entered meanwhile.
      if (token() !== given) return undefined;
      if (found.signed_in) return enter(found);
      signOut();
      setProblem("Unknown token. Check that you copied all of it, or ask for a new one.");
    } catch (error) {
      setProblem(error.message);
    }
    return undefined;
  };
  return html`
    <main class="alone">
      <div class="card">
        <form class="inside" onSubmit=${submit}>
          <div class="line">
            <span class="brand">
              <${Mark} />
              <span>FlowFabric</span>
            </span>
          </div>
          <div>
            <h1>Sign in</h1>
            <p class="soft small">
              Use a token for this server. It stays in this tab and is removed when you close it.
            </p>
          </div>
          <div class="field">
            <label for="token">Token</label>
            <input
              id="token"
              class="input mono"
              type="password"
              required
              autocomplete="off"
              spellcheck="false"
              placeholder="ff_…"
              value=${text}
              onInput=${(event) => setText(event.target.value)}
              aria-invalid=${String(Boolean(problem))}
            />
          </div>
          ${problem && html`<p class="problem" role="alert">${problem}</p>`}
          <button class="button primary" type="submit">Sign in</button>
          <p class="tiny faint">
            Administrators create credentials under Settings, or with${" "}
            <code>flowfabric token create</code>
            .
          </p>
        </form>
      </div>
    </main>
  `;
}

const help = () =>
  openDialog({
    body: html`<${Help} pages=${seen().filter(Boolean)} />`,
  });
const flip = () => globalThis.ffTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");

let pending = null;
addEventListener("keydown", (event) => {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest?.("input, textarea, select, [contenteditable]")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (!me.peek()?.signed_in || document.querySelector("dialog[open]")) return;
  if (pending) {
    clearTimeout(pending);
    pending = null;
    const page = seen().find((each) => each?.key === event.key);
    if (page) location.hash = `#/${page.path}`;
    return;
  }
  if (event.key === "g")
    pending = setTimeout(() => {
      pending = null;
    }, 1_200);
  else if (event.key === "?") help();
  else if (event.key === "d") flip();
  else if (event.key === "/") {
    event.preventDefault();
    const box = document.querySelector("[data-search]");
    if (box) box.focus();
    else location.hash = "#/executions";
  } else if (["Enter", " "].includes(event.key) && event.target.closest?.("a, button, summary")) {
    // It is about what has the focus.
  } else if (!dispatchEvent(new CustomEvent("ff-key", { detail: event.key, cancelable: true }))) event.preventDefault();
});

export function Namespaces({ id = "namespace" }) {
  const chosen = useValue(namespace);
  const who = useValue(me);
  const { data } = useLive(() => (may("list_namespaces") ? get("v1/namespaces") : { namespaces: [] }), [who], 30_000);
  const names = data?.namespaces || [];
  if (names.length < 2 && !chosen) return null;
  const all = chosen && !names.includes(chosen) ? [chosen, ...names] : names;
  return html`
    <div class="field">
      <label class="visually-hidden" for=${id}>Namespace</label>
      <select id=${id} class="input small" value=${chosen} onChange=${(event) => choose(event.target.value)}>
        <option value="">All namespaces</option>
        ${all.map(
          (name) => html`<option key=${name} value=${name}>${name}</option>`,
        )}
      </select>
    </div>
  `;
}

function Side({ current }) {
  const who = useValue(me);
  const own = useValue(namespace);
  const { data } = useLive(
    () => (may("attention") ? get("v1/attention", { namespace: own }) : null),
    [who, own],
    10_000,
  );
  // On a phone the row of pages is longer than the screen.
  useEffect(() => {
    document.querySelector(".nav-link[aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
  }, [current]);
  const asks = data?.matters.find((matter) => matter.kind === "asks")?.count;
  const matters = data?.matters.filter((matter) => matter.kind !== "asks").length;
  return html`
    <div class="side">
      <a class="brand" href="#/overview">
        <${Mark} />
        <span>FlowFabric</span>
      </a>
      <nav aria-label="Pages">
        ${seen().map((page, index) =>
          page === null
            ? html`<div class="nav-gap" key=${index}></div>`
            : html`
                <a
                  class="nav-link"
                  key=${page.path}
                  href=${`#/${page.path}`}
                  aria-current=${page.path === current ? "page" : null}
                >
                  <${Icon} name=${page.path} />
                  <span>${page.title}</span>
                  ${
                    page.path === "approvals" && asks
                      ? html`<span class="count hot" title="Open questions">${asks}</span>`
                      : null
                  }
                  ${
                    page.path === "overview" && matters
                      ? html`<span class="count" title="Items that need attention">${matters}</span>`
                      : null
                  }
                </a>
              `,
        )}
      </nav>
      <div class="side-foot">
        <${Namespaces} />
        <div class="who">
          <div class="clip" title=${who.name}>${who.open ? "Open server" : who.name}</div>
          <div class="faint tiny">${who.open ? "No credential required." : who.scopes.join(", ")}</div>
          <div class="faint tiny">${who.version}, ${who.store}</div>
        </div>
        <div class="line">
          <button
            type="button"
            class="button quiet icon"
            title="Switch between light and dark (d)"
            aria-label="Switch between light and dark"
            onClick=${flip}
          >
            <${Icon} name="moon" />
          </button>
          <button type="button" class="button quiet icon" title="Keyboard shortcuts (?)" aria-label="Keyboard shortcuts" onClick=${help}>
            <${Icon} name="help" />
          </button>
          ${
            !who.open &&
            html`
              <button type="button" class="button quiet icon" title="Sign out" aria-label="Sign out" onClick=${signOut}>
                <${Icon} name="out" />
              </button>
            `
          }
        </div>
      </div>
    </div>
  `;
}

function Main({ at }) {
  const known = seen().some((page) => page?.path === at.page);
  const [Page, failed] = usePage(known ? at.page : null);
  const gone = useValue(connection) === "offline";
  return html`
    <main class="main" id="main" tabindex="-1">
      ${
        gone &&
        html`
          <div class="banner" role="alert">
            The connection to the server is lost. This page may be out of date; retrying…
          </div>
        `
      }
      ${/* The inbox stays while one question after the other is opened in it. */ null}
      ${
        Page
          ? html`
              <${Page} key=${at.page === "approvals" ? at.page : (at.id ?? at.page)} id=${at.id} query=${at.query} />
            `
          : known
            ? gone
              ? html`<${Unreachable} />`
              : failed && html`<${NotLoaded} />`
            : html`<${Lost} />`
      }
    </main>
  `;
}

function App() {
  const who = useValue(me);
  const at = useValue(route);
  const gone = useValue(connection) === "offline";
  useEffect(() => {
    const page = PAGES.find((each) => each?.path === at.page);
    document.title = page ? `${page.title} · FlowFabric` : "FlowFabric";
  }, [at.page]);
  if (who === null) return gone ? html`<main class="main"><${Unreachable} /></main>` : null;
  if (!who.signed_in)
    return html`
      <${SignIn} />
      <${Toasts} />
    `;
  return html`
    <button type="button" class="button skip" onClick=${() => document.getElementById("main").focus()}>
      Skip to content
    </button>
    <div class="shell">
      <${Side} current=${at.page} />
      <${Main} at=${at} />
    </div>
    <${Dialogs} />
    <${Toasts} />
  `;
}

function enter(found) {
  setNow(found.now || Date.now());
  me.value = found;
  if (found.namespaces && namespace.peek() && !found.namespaces.includes(namespace.peek())) choose("");
}

export function Live() {
  const state = useValue(connection);
  const text = { live: "Live", polling: "Live", connecting: "Connecting", offline: "Offline" }[state];
  return html`<span class="live" data-live=${state === "polling" ? "live" : state}>${text}</span>`;
}

async function boot() {
  render(
    html`<${App} />`,
    document.getElementById("root"),
  );
  for (;;) {
    try {
      const found = await get("v1/me");
      if (!found.signed_in && token()) signOut();
      enter(found);
      return;
    } catch {
      connection.value = "offline";
      await new Promise((resolve) => {
        setTimeout(resolve, 2_000);
      });
    }
  }
}
boot();
