// A workflow as a tree: its steps and children in the order they came, their children below them.
import { html, useState } from "../dom.js";
import { duration, exact, moment, time } from "../format.js";
import { Badge, ended, executionHref } from "../parts.js";
import { childName, isInternal, kindName, stepKey, stepName } from "../execution/names.js";

/** As many of one parent's steps and children are shown at first. */
const FIRST = 200;

/** Who belongs to whom: the children of each execution, and those whose parent is not among them. */
export function grown(members) {
  const known = new Set(members.map((member) => member.execution_id));
  const below = new Map();
  const tops = [];
  for (const member of members) {
    if (member.parent && known.has(member.parent)) {
      if (!below.has(member.parent)) below.set(member.parent, []);
      below.get(member.parent).push(member);
    } else tops.push(member);
  }
  return { below, tops };
}

/** How long a member ran, or has been running. */
function lasted(member) {
  if (!member.started_at) return ended(member.public_state) ? "–" : "not started";
  return duration((member.completed_at ?? Date.now()) - member.started_at);
}

/** What stands below an execution: its children, and the root's steps that were none. */
function entriesOf(member, below, steps) {
  const children = below.get(member.execution_id) || [];
  const names = new Set(children.map((child) => stepKey(child.step || "")));
  const own = steps.filter((step) => !isInternal(step.name) && !names.has(stepKey(step.name)));
  return [
    ...children.map((child) => ({ at: child.created_at, child })),
    ...own.map((step) => ({ at: step.recorded_at, step })),
  ].sort((a, b) => a.at - b.at);
}

function Row({ member, top }) {
  const name = top ? kindName(member.execution_kind, member.execution_id) : childName(member);
  const kind = kindName(member.execution_kind);
  return html`
    <span class="kin-row">
      <${Badge} state=${member.public_state} />
      <a class="wrap-anywhere" href=${executionHref(member.execution_id)}>${name}</a>
      ${!name.startsWith(kind) && html`<span class="faint small">${kind}</span>`}
      <span class="soft small number" data-took>${lasted(member)}</span>
      <time class="faint small number hide-small" title=${moment(member.created_at)}>${time(member.created_at)}</time>
    </span>
  `;
}

const Step = ({ step }) => html`
  <span class="kin-row">
    <${Badge} tone=${step.outcome === "ok" ? "good" : "bad"}>${step.outcome === "ok" ? "ok" : "failed"}</${Badge}>
    <span class="wrap-anywhere" title=${stepKey(step.name)}>${stepName(step.name)}</span>
    <span class="faint small">step</span>
    <span class="grow"></span>
    <time class="faint small number hide-small" title=${moment(step.recorded_at)}>${time(step.recorded_at)}</time>
  </span>
`;

function Node({ member, below, steps, top }) {
  const [shown, setShown] = useState(FIRST);
  const entries = entriesOf(member, below, top ? steps : []);
  if (!entries.length)
    return html`<li><${Row} member=${member} top=${top} /></li>`;
  return html`
    <li>
      <${Row} member=${member} top=${top} />
      <ul>
        ${entries.slice(0, shown).map(({ child, step }) =>
          child
            ? html`<${Node} key=${child.execution_id} member=${child} below=${below} steps=${steps} />`
            : html`<li key=${`step ${step.sequence}`}><${Step} step=${step} /></li>`,
        )}
        ${
          entries.length > shown &&
          html`
            <li>
              <button type="button" class="button small" onClick=${() => setShown(shown + 5 * FIRST)}>
                ${exact(entries.length - shown)} more
              </button>
            </li>
          `
        }
      </ul>
    </li>
  `;
}

export function Tree({ members, steps, root }) {
  const { below, tops } = grown(members);
  return html`
    <ul class="kin" data-tree>
      ${tops.map(
        (member) => html`
          <${Node}
            key=${member.execution_id}
            member=${member}
            below=${below}
            steps=${member.execution_id === root ? steps : []}
            top
          />
        `,
      )}
    </ul>
  `;
}
