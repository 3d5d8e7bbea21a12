// What the keys do.
import { html } from "./dom.js";
import { useDialog } from "./dialogs.js";

export function Help({ pages }) {
  const { close } = useDialog();
  return html`
    <div class="inside">
      <h2 id="dialog-title">Keyboard shortcuts</h2>
      <div class="keys-table">
        ${pages.map(
          (page) => html`
            <span>
              <kbd>g</kbd>
              ${" "}
              <kbd>${page.key}</kbd>
            </span>
            <span>${page.title}</span>
          `,
        )}
        <span><kbd>/</kbd></span>
        <span>Search</span>
        <span>
          <kbd>j</kbd>
          ${" "}
          <kbd>k</kbd>
        </span>
        <span>Move down and up in a list; arrow keys work too</span>
        <span>
          <kbd>Home</kbd>
          ${" "}
          <kbd>End</kbd>
        </span>
        <span>Go to the newest or the oldest</span>
        <span><kbd>Enter</kbd></span>
        <span>Open the current row</span>
        <span><kbd>x</kbd></span>
        <span>Select or deselect the current row</span>
        <span><kbd>d</kbd></span>
        <span>Switch between light and dark</span>
        <span><kbd>?</kbd></span>
        <span>Show this help</span>
      </div>
      <div class="foot"><button type="button" class="button" onClick=${close}>Close</button></div>
    </div>
  `;
}
