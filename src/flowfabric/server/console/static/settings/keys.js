// The key that signs links and tokens.
import { html } from "../dom.js";
import { get } from "../api.js";
import { useLive } from "../live.js";
import { confirm } from "../dialogs.js";
import { Loading, Trouble, When } from "../parts.js";
import { toast } from "../toasts.js";

export function Keys() {
  const { data, problem, refresh } = useLive(() => get("v1/admin/waitpoint-keys"), [], 15_000);
  const rotate = () =>
    confirm({
      title: "Sign with a new key?",
      label: "Rotate",
      consequence:
        "New links and tokens are signed with a new key, made in this browser and sent to the server once. Older ones stay valid until the old key's grace period ends.",
      fields: [{ name: "kid", label: "Name of the new key", required: true, value: next(data) }],
      act: async ({ kid }, own) => {
        const secret = [...crypto.getRandomValues(new Uint8Array(32))]
          .map((byte) => byte.toString(16).padStart(2, "0"))
          .join("");
        await own.post("v1/admin/rotate-waitpoint-secret", { new_kid: kid, new_secret_hex: secret }, { key: undefined });
        toast(`Signing with key ${kid} now.`);
        refresh();
      },
    });
  return html`
    <section class="card">
      <header>
        <h2>Signing keys</h2>
        <div class="actions">
          <button type="button" class="button small" onClick=${rotate} disabled=${!data}>Rotate key…</button>
        </div>
      </header>
      <div class="body stack">
        <${Trouble} problem=${problem} />
        ${
          !data
            ? html`<${Loading} />`
            : html`
                <dl class="facts">
                  <div>
                    <dt>Signing</dt>
                    <dd class="mono">${data.current_kid || "none"}</dd>
                  </div>
                  <div>
                    <dt>Still valid</dt>
                    <dd>
                      ${
                        data.verifying.length
                          ? data.verifying.map(
                              (each) => html`
                                <div key=${each.kid}>
                                  <span class="mono">${each.kid}</span>
                                  ${" "}
                                  <span class="faint small">
                                    ${
                                      each.expires_at_ms
                                        ? html`
                                            until${" "}
                                            <${When} ms=${each.expires_at_ms} />
                                          `
                                        : "no expiry"
                                    }
                                  </span>
                                </div>
                              `,
                            )
                          : "none"
                      }
                    </dd>
                  </div>
                </dl>
              `
        }
      </div>
    </section>
  `;
}

export const next = (data) => {
  const number = /^k(\d+)$/.exec(data?.current_kid || "");
  return number ? `k${Number(number[1]) + 1}` : "";
};
