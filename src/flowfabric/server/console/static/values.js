// Values as people read them: JSON as a tree, texts as texts, bytes as bytes.
import { html, useState } from "./dom.js";
import { decoded, plural, size } from "./format.js";
import { Copy } from "./parts.js";

const MANY = 100;

function Leaf({ value }) {
  if (typeof value === "string")
    return html`<span class="string">${JSON.stringify(value)}</span>`;
  return html`<span class="literal">${String(value)}</span>`;
}

function Node({ name, value, depth }) {
  const [shown, setShown] = useState(MANY);
  const key =
    name === undefined
      ? null
      : html`
          <span class="key">${name}</span>
          :${" "}
        `;
  if (value === null || typeof value !== "object")
    return html`
      <li>
        ${key}
        <${Leaf} value=${value} />
      </li>
    `;
  const entries = Array.isArray(value) ? value.map((each, index) => [String(index), each]) : Object.entries(value);
  if (!entries.length)
    return html`
      <li>
        ${key}
        <span class="literal">${Array.isArray(value) ? "[]" : "{}"}</span>
      </li>
    `;
  const head = Array.isArray(value) ? plural(entries.length, "item") : plural(entries.length, "field");
  return html`
    <li>
      <details open=${depth < 2}>
        <summary>
          ${key}
          <span class="faint">
            ${Array.isArray(value) ? "[" : "{"} ${head} ${Array.isArray(value) ? "]" : "}"}
          </span>
        </summary>
        <ul>
          ${entries.slice(0, shown).map(
            ([each, inner]) => html`<${Node} key=${each} name=${each} value=${inner} depth=${depth + 1} />`,
          )}
          ${
            entries.length > shown &&
            html`
              <li>
                <button type="button" class="button quiet small" onClick=${() => setShown(shown + MANY)}>
                  ${entries.length - shown} more
                </button>
              </li>
            `
          }
        </ul>
      </details>
    </li>
  `;
}

/** A box with a value in it, and a button that copies it. */
const Box = ({ label, text, children }) => html`
  <div class="copied">
    <div class="value-box" tabindex="0" role="region" aria-label=${label}>${children}</div>
    <${Copy} text=${text} label=${`Copy: ${label}`} />
  </div>
`;

/** A JSON value as a tree; long texts as texts. */
export function Json({ value, label = "Value" }) {
  if (typeof value === "string")
    return html`<${Box} label=${label} text=${value}>${value}</${Box}>`;
  return html`
    <${Box} label=${label} text=${JSON.stringify(value, null, 2)}>
      <ul class="tree">
        <${Node} value=${value} depth=${0} />
      </ul>
    </${Box}>
  `;
}

const hex = (given) => {
  const lines = [];
  for (let at = 0; at < Math.min(given.length, 512); at += 16) {
    const part = [...given.subarray(at, at + 16)];
    const text = part.map((byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : "·")).join("");
    lines.push(
      `${at.toString(16).padStart(6, "0")}  ${part
        .map((byte) => byte.toString(16).padStart(2, "0"))
        .join(" ")
        .padEnd(47)}  ${text}`,
    );
  }
  return lines.join("\n") + (given.length > 512 ? "\n…" : "");
};

/** Bytes by what they turn out to be. */
export function Bytes({ data, label, nothing = "Nothing." }) {
  const found = decoded(data);
  if (found.kind === "nothing")
    return html`<p class="soft small">${nothing}</p>`;
  return html`
    <div class="stack tight">
      ${
        found.kind === "binary"
          ? html`<${Box} label=${label} text=${hex(found.value)}>${hex(found.value)}</${Box}>`
          : html`<${Json} value=${found.value} label=${label} />`
      }
      <span class="tiny faint">
        ${{ json: "JSON", text: "Text", binary: "Bytes" }[found.kind]}, ${size(found.size)}
      </span>
    </div>
  `;
}
