// Short messages about what was done, or was not.
import { html, signal, useValue } from "./dom.js";
import { Icon } from "./icons.js";

const toasts = signal([]);

let number = 0;

export function toast(text, tone = "good") {
  const id = (number += 1);
  toasts.value = [...toasts.value.slice(-4), { id, text, tone }];
  setTimeout(
    () => {
      toasts.value = toasts.value.filter((each) => each.id !== id);
    },
    tone === "bad" ? 12_000 : 6_000,
  );
}

export const Toasts = () => html`
  <div class="toasts" role="status" aria-live="polite">
    ${useValue(toasts).map(
      ({ id, text, tone }) => html`
        <div class="toast" key=${id} data-tone=${tone}>
          <span class="grow">${text}</span>
          <button
            type="button"
            class="button quiet icon small"
            aria-label="Dismiss"
            onClick=${() => {
              toasts.value = toasts.value.filter((each) => each.id !== id);
            }}
          >
            <${Icon} name="close" />
          </button>
        </div>
      `,
    )}
  </div>
`;
