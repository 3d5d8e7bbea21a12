// Credentials: who may do what.
import { html, useState } from "../dom.js";
import { get, post } from "../api.js";
import { useLive } from "../live.js";
import { Badge, Copy, Empty, Loading, Trouble, When } from "../parts.js";
import { confirm, openDialog, useAct } from "../dialogs.js";
import { toast } from "../toasts.js";
import { Icon } from "../icons.js";

const SCOPES = {
  read: "read everything, including payloads",
  submit: "start executions",
  worker: "run executions",
  signal: "deliver signals",
  operator: "cancel, replay, answer, pause",
  admin: "credentials, keys, audit",
};

export function Credentials() {
  const { data, problem, refresh } = useLive(
    async () => {
      let found = [];
      let after;
      do {
        const page = await get("v1/admin/credentials", { after, limit: 500 });
        found = found.concat(page.credentials);
        after = page.next_cursor;
      } while (after && found.length < 5_000);
      return found;
    },
    [],
    8_000,
  );
  const revoke = (each) =>
    confirm({
      title: `Revoke ${each.name}?`,
      danger: true,
      label: "Revoke",
      consequence:
        "It stops working at once and its open requests end; other servers on the same store follow within a second. You cannot undo this.",
      act: async (_, own) => {
        await own.remove(`v1/admin/credentials/${encodeURIComponent(each.credential_id)}`);
        toast("Credential revoked.");
        refresh();
      },
    });
  return html`
    <section class="card">
      <header>
        <h2>Credentials</h2>
        <div class="actions">
          <button
            type="button"
            class="button small primary"
            onClick=${() =>
              openDialog({
                body: html`<${Create} refresh=${refresh} />`,
              })}
          >
            <${Icon} name="plus" />
            New credential…
          </button>
        </div>
      </header>
      <div class="body flush table-wrap">
        <${Trouble} problem=${problem} />
        ${
          !data
            ? html`<${Loading} />`
            : !data.length
              ? html`
                  <${Empty} icon="settings">
                    No credentials.
                    <span class="small faint">Once you create one, every request to this server needs a credential.</span>
                  </${Empty}>
                `
              : html`
                  <table class="table stacked">
                    <thead>
                      <tr>
                        <th scope="col">Name</th>
                        <th scope="col">Scopes</th>
                        <th scope="col">Namespaces</th>
                        <th scope="col">Created</th>
                        <th scope="col">Expires</th>
                        <th scope="col"><span class="visually-hidden">Actions</span></th>
                      </tr>
                    </thead>
                    <tbody>
                      ${data.map(
                        (each) => html`
                          <tr key=${each.credential_id}>
                            <td>
                              <strong>${each.name}</strong>
                              <div class="line">
                                <span class="tiny faint mono">${each.credential_id}</span>
                                <${Copy} text=${each.credential_id} label="Copy the credential id" />
                              </div>
                            </td>
                            <td data-label="Scopes">
                              <div class="people">
                                ${each.scopes.map(
                                  (scope) => html`<span class="badge plain" key=${scope}>${scope}</span>`,
                                )}
                              </div>
                            </td>
                            <td data-label="Namespaces">
                              ${each.namespaces === null ? "all" : each.namespaces.join(", ")}
                            </td>
                            <td class="soft" data-label="Created"><${When} ms=${each.created_at_ms} /></td>
                            <td class="soft" data-label="Expires">
                              ${each.expires_at_ms ? html`<${When} ms=${each.expires_at_ms} />` : "never"}
                            </td>
                            <td class="actions">
                              ${
                                each.revoked_at_ms
                                  ? html`<${Badge} tone="cancelled">revoked</${Badge}>`
                                  : html`
                                      <button type="button" class="button small danger" onClick=${() => revoke(each)}>
                                        Revoke…
                                      </button>
                                    `
                              }
                            </td>
                          </tr>
                        `,
                      )}
                    </tbody>
                  </table>
                `
        }
      </div>
    </section>
  `;
}

function Create({ refresh }) {
  const [name, setName] = useState("");
  const [scopes, setScopes] = useState(new Set(["read"]));
  const [names, setNames] = useState("");
  const [days, setDays] = useState("");
  const [made, setMade] = useState(null);
  const { busy, problem, run, own } = useAct();
  const flip = (scope) => {
    const next = new Set(scopes);
    if (!next.delete(scope)) next.add(scope);
    setScopes(next);
  };
  const submit = (event) => {
    event.preventDefault();
    const namespaces = names
      .split(",")
      .map((each) => each.trim())
      .filter(Boolean);
    run(async () => {
      // Its token comes with the answer and never again: the dialog stays until then.
      own.held = true;
      try {
        setMade(
          await post(
            "v1/admin/credentials",
            {
              name: name.trim(),
              scopes: [...scopes],
              namespaces: namespaces.length ? namespaces : null,
              expires_at: days ? Math.floor(Date.now() + Number(days) * 86_400_000) : null,
            },
            { key: undefined },
          ),
        );
      } finally {
        own.held = false;
      }
      refresh();
      return false;
    });
  };
  if (made)
    return html`
      <div class="inside">
        <h2 id="dialog-title">${name} created</h2>
        <p class="soft">This is its token. It is shown only once and is not stored.</p>
        <div class="line">
          <input
            class="input mono"
            readonly
            aria-label="Token"
            value=${made.token}
            onFocus=${(event) => event.target.select()}
          />
          <${Copy} text=${made.token} label="Copy the token" />
        </div>
        <div class="foot"><button type="button" class="button primary" onClick=${own.close}>Done</button></div>
      </div>
    `;
  return html`
    <form onSubmit=${submit}>
      <h2 id="dialog-title">New credential</h2>
      <div class="field">
        <label for="c-name">Name</label>
        <input
          id="c-name"
          class="input"
          required
          value=${name}
          onInput=${(event) => setName(event.target.value)}
          placeholder="who or what uses it"
          autocomplete="off"
        />
      </div>
      <div class="field">
        <span class="label">Scopes</span>
        <div class="stack tight">
          ${Object.entries(SCOPES).map(
            ([scope, text]) => html`
              <label class="check" key=${scope}>
                <input type="checkbox" checked=${scopes.has(scope)} onChange=${() => flip(scope)} />
                <span>
                  <strong>${scope}</strong>
                  ${" "}
                  <span class="soft small">${text}</span>
                </span>
              </label>
            `,
          )}
        </div>
      </div>
      <div class="field">
        <label for="c-names">Namespaces</label>
        <input
          id="c-names"
          class="input"
          value=${names}
          onInput=${(event) => setNames(event.target.value)}
          placeholder="all"
          autocomplete="off"
        />
        <span class="hint">Separate with commas; empty means all.</span>
      </div>
      <div class="field">
        <label for="c-days">Valid for days</label>
        <input
          id="c-days"
          class="input"
          type="number"
          min="1"
          value=${days}
          onInput=${(event) => setDays(event.target.value)}
          placeholder="no expiry"
        />
      </div>
      <${Trouble} problem=${problem} />
      <div class="foot">
        <button type="button" class="button" onClick=${own.close} disabled=${busy}>Cancel</button>
        <button type="submit" class="button primary" disabled=${busy || !scopes.size}>${busy ? "Working…" : "Create"}</button>
      </div>
    </form>
  `;
}
