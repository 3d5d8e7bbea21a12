// Settings: this browser's, the credentials of the server, and the key that signs links.
import { html, useState, useValue } from "../dom.js";
import { get, post, remove } from "../api.js";
import { useLive } from "../live.js";
import { everywhere, may, me, signOut } from "../session.js";
import { Namespaces } from "../app.js";
import { Badge, closeDialog, confirm, Copy, Empty, Loading, openDialog, Segments, toast, Trouble, When } from "../parts.js";
import { Icon } from "../icons.js";

const SCOPES = { read: "see everything, payloads included", submit: "start work", worker: "run work", signal: "deliver signals", operator: "cancel, replay, answer, pause", admin: "credentials, keys, audit" };

export default function Settings() {
  const who = useValue(me);
  const [theme, setTheme] = useState(localStorage.getItem("ff.theme") || "system");
  const choose = (value) => {
    if (value === "system") {
      localStorage.removeItem("ff.theme");
      dispatchEvent(new StorageEvent("storage"));
    } else globalThis.ffTheme(value);
    setTheme(value);
  };
  const admin = may("admin") && everywhere();
  return html`<div class="page"><div class="page-head"><h1>Settings</h1></div>
    <section class="card"><header><h2>You</h2></header><div class="body stack"><dl class="facts">
      <div><dt>Credential</dt><dd>${who.open ? "none is asked for" : who.name}</dd></div><div><dt>May</dt><dd>${who.scopes.join(", ")}</dd></div><div><dt>Namespaces</dt><dd>${who.namespaces === null ? "all" : who.namespaces.join(", ")}</dd></div><div><dt>Server</dt><dd>${who.version} on ${who.store}</dd></div></dl>
      <div class="line wraps"><span class="soft">Colours</span><${Segments} label="Colours" options=${[["light", "Light"], ["dark", "Dark"], ["system", "As the system"]]} value=${theme} onChange=${choose} /></div>
      <div class="line wraps only-small"><${Namespaces} id="namespace-here" />${!who.open && html`<button type="button" class="button" onClick=${signOut}><${Icon} name="out" />Sign out</button>`}</div></div></section>
    ${admin ? html`<${Credentials} /><${Keys} />` : html`<p class="note-box">Credentials and keys are for administrators of all namespaces.</p>`}</div>`;
}

function Credentials() {
  const { data, problem, refresh } = useLive(async () => {
    let found = [], after;
    do {
      const page = await get("v1/admin/credentials", { after, limit: 500 });
      found = found.concat(page.credentials);
      after = page.next_cursor;
    } while (after && found.length < 5_000);
    return found;
  }, [], 8_000);
  const revoke = (each) => confirm({
    title: `Revoke ${each.name}?`, danger: true, label: "Revoke it", consequence: "Whoever uses it is refused at once; other servers on the same store follow within seconds. It cannot be taken back.",
    act: async () => { await remove(`v1/admin/credentials/${encodeURIComponent(each.credential_id)}`); toast("It is revoked."); refresh(); },
  });
  return html`<section class="card"><header><h2>Credentials</h2><div class="actions"><button type="button" class="button small primary" onClick=${() => openDialog({ body: html`<${Create} refresh=${refresh} />` })}><${Icon} name="plus" />New credential…</button></div></header>
    <div class="body flush table-wrap"><${Trouble} problem=${problem} />${!data ? html`<${Loading} />` : !data.length ? html`<${Empty} icon="settings">None is stored.<span class="small faint">With the first one, this server asks everybody for a credential.</span></${Empty}>` : html`<table class="table stacked">
      <thead><tr><th scope="col">Name</th><th scope="col">May</th><th scope="col">Namespaces</th><th scope="col">Made</th><th scope="col">Expires</th><th scope="col"><span class="visually-hidden">Actions</span></th></tr></thead>
      <tbody>${data.map((each) => html`<tr key=${each.credential_id}><td><strong>${each.name}</strong><div class="tiny faint mono">${each.credential_id}</div></td><td data-label="May"><div class="people">${each.scopes.map((scope) => html`<span class="badge plain" key=${scope}>${scope}</span>`)}</div></td><td data-label="Namespaces">${each.namespaces === null ? "all" : each.namespaces.join(", ")}</td><td class="soft" data-label="Made"><${When} ms=${each.created_at_ms} /></td><td class="soft" data-label="Expires">${each.expires_at_ms ? html`<${When} ms=${each.expires_at_ms} />` : "never"}</td>
        <td class="actions">${each.revoked_at_ms ? html`<${Badge} tone="cancelled">revoked</${Badge}>` : html`<button type="button" class="button small danger" onClick=${() => revoke(each)}>Revoke…</button>`}</td></tr>`)}</tbody></table>`}</div></section>`;
}

function Create({ refresh }) {
  const [name, setName] = useState("");
  const [scopes, setScopes] = useState(new Set(["read"]));
  const [names, setNames] = useState("");
  const [days, setDays] = useState("");
  const [made, setMade] = useState(null);
  const [problem, setProblem] = useState(null);
  const flip = (scope) => {
    const next = new Set(scopes);
    if (!next.delete(scope)) next.add(scope);
    setScopes(next);
  };
  const submit = async (event) => {
    event.preventDefault();
    const own = names.split(",").map((each) => each.trim()).filter(Boolean);
    try {
      setMade(await post("v1/admin/credentials", { name: name.trim(), scopes: [...scopes], namespaces: own.length ? own : null, expires_at: days ? Math.floor(Date.now() + Number(days) * 86_400_000) : null }, { key: undefined }));
      refresh();
    } catch (error) {
      setProblem(error);
    }
  };
  if (made) return html`<div class="inside"><h2 id="dialog-title">${name} is made</h2><p class="soft">This is its token. It is shown this once and stored nowhere.</p>
    <div class="line"><input class="input mono" readonly aria-label="Token" value=${made.token} onFocus=${(event) => event.target.select()} /><${Copy} text=${made.token} label="Copy the token" /></div>
    <div class="foot"><button type="button" class="button primary" onClick=${closeDialog}>I have it</button></div></div>`;
  return html`<form onSubmit=${submit}><h2 id="dialog-title">New credential</h2>
    <div class="field"><label for="c-name">Name</label><input id="c-name" class="input" required value=${name} onInput=${(event) => setName(event.target.value)} placeholder="who or what it is for" autocomplete="off" /></div>
    <div class="field"><span class="label">May</span><div class="stack tight">${Object.entries(SCOPES).map(([scope, text]) => html`<label class="check" key=${scope}><input type="checkbox" checked=${scopes.has(scope)} onChange=${() => flip(scope)} /><span><strong>${scope}</strong> <span class="soft small">${text}</span></span></label>`)}</div></div>
    <div class="field"><label for="c-names">Namespaces</label><input id="c-names" class="input" value=${names} onInput=${(event) => setNames(event.target.value)} placeholder="all" autocomplete="off" /><span class="hint">With commas between; empty means all.</span></div>
    <div class="field"><label for="c-days">Good for days</label><input id="c-days" class="input" type="number" min="1" value=${days} onInput=${(event) => setDays(event.target.value)} placeholder="for ever" /></div>
    <${Trouble} problem=${problem} />
    <div class="foot"><button type="button" class="button" onClick=${closeDialog}>Leave it</button><button type="submit" class="button primary" disabled=${!scopes.size}>Make it</button></div></form>`;
}

function Keys() {
  const { data, problem, refresh } = useLive(() => get("v1/admin/waitpoint-keys"), [], 15_000);
  const rotate = () => confirm({
    title: "Sign with a new key?", label: "Change keys", consequence: "From now on links and tokens are signed with a new key that is made in this browser and sent to the server once. Those that were signed before stay good until the old key's grace is over.",
    fields: [{ name: "kid", label: "Name of the new key", required: true, value: next(data) }],
    act: async ({ kid }) => {
      const secret = [...crypto.getRandomValues(new Uint8Array(32))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
      await post("v1/admin/rotate-waitpoint-secret", { new_kid: kid, new_secret_hex: secret }, { key: undefined });
      toast(`Key ${kid} signs from now on.`);
      refresh();
    },
  });
  return html`<section class="card"><header><h2>Key that signs links</h2><div class="actions"><button type="button" class="button small" onClick=${rotate} disabled=${!data}>Change keys…</button></div></header>
    <div class="body stack"><${Trouble} problem=${problem} />${!data ? html`<${Loading} />` : html`<dl class="facts"><div><dt>Signs</dt><dd class="mono">${data.current_kid || "none"}</dd></div><div><dt>Still good</dt><dd>${data.verifying.length ? data.verifying.map((each) => html`<div key=${each.kid}><span class="mono">${each.kid}</span> <span class="faint small">${each.expires_at_ms ? html`until <${When} ms=${each.expires_at_ms} />` : "for ever"}</span></div>`) : "none"}</dd></div></dl>`}</div></section>`;
}

const next = (data) => {
  const number = /^k(\d+)$/.exec(data?.current_kid || "");
  return number ? `k${Number(number[1]) + 1}` : "";
};
