// Settings: this browser's, the credentials of the server, and the key that signs links.
import { html, useEffect, useState, useValue } from "../dom.js";
import { may, me, signOut } from "../session.js";
import { Namespaces } from "../app.js";
import { Segments } from "../parts.js";
import { Icon } from "../icons.js";
import { Credentials } from "../settings/credentials.js";
import { Keys } from "../settings/keys.js";

const chosenTheme = () => localStorage.getItem("ff.theme") || "system";

export default function Settings() {
  const who = useValue(me);
  const [theme, setTheme] = useState(chosenTheme);
  useEffect(() => {
    const changed = () => setTheme(chosenTheme());
    addEventListener("ff-theme", changed);
    return () => removeEventListener("ff-theme", changed);
  }, []);
  const choose = (value) => {
    if (value === "system") {
      localStorage.removeItem("ff.theme");
      dispatchEvent(new StorageEvent("storage"));
    } else globalThis.ffTheme(value);
  };
  const [credentials, keys] = [may("list_credentials"), may("list_waitpoint_keys")];
  return html`
    <div class="page">
      <div class="page-head"><h1>Settings</h1></div>
      <section class="card">
        <header><h2>You</h2></header>
        <div class="body stack">
          <dl class="facts">
            <div>
              <dt>Credential</dt>
              <dd>${who.open ? "none required" : who.name}</dd>
            </div>
            <div>
              <dt>Scopes</dt>
              <dd>${who.scopes.join(", ")}</dd>
            </div>
            <div>
              <dt>Namespaces</dt>
              <dd>${who.namespaces === null ? "all" : who.namespaces.join(", ")}</dd>
            </div>
            <div>
              <dt>Server</dt>
              <dd>${who.version} on ${who.store}</dd>
            </div>
          </dl>
          <div class="line wraps">
            <span class="soft">Colours</span>
            <${Segments}
              label="Colours"
              options=${[
                ["light", "Light"],
                ["dark", "Dark"],
                ["system", "System"],
              ]}
              value=${theme}
              onChange=${choose}
            />
          </div>
          <div class="line wraps only-small">
            <${Namespaces} id="namespace-here" />
            ${
              !who.open &&
              html`
                <button type="button" class="button" onClick=${signOut}>
                  <${Icon} name="out" />
                  Sign out
                </button>
              `
            }
          </div>
        </div>
      </section>
      ${credentials && html`<${Credentials} />`}
      ${keys && html`<${Keys} />`}
      ${
        !credentials &&
        !keys &&
        html`<p class="note-box">Credentials and keys are for administrators of all namespaces.</p>`
      }
    </div>
  `;
}
