// Budgets and quotas have owners: an id means something only together with the namespace it belongs to.
import { html } from "./dom.js";
import { everywhere, me } from "./session.js";
import { shortId } from "./format.js";

const query = (namespace) => (namespace === null ? "" : `?namespace=${encodeURIComponent(namespace)}`);

/** What tells a budget or quota from all others, also from those of the same id. */
export const ownedKey = (id, namespace) => JSON.stringify([id, namespace]);
/** Behind a name: nothing for the operator's. */
export const whose = (namespace) => (namespace === null ? "" : ` of ${namespace}`);
/** The page of a budget. */
export const budgetPage = (id, namespace) => `#/budgets/${encodeURIComponent(id)}${query(namespace)}`;
/** Where the server has a budget. */
export const budgetPath = (id, namespace, ...rest) =>
  ["v1/budgets", encodeURIComponent(id), ...rest].join("/") + query(namespace);

/** The owner, for a heading or a cell. */
export const Owner = ({ namespace }) => html`
  <span class="badge plain" data-owner title=${namespace === null ? "Belongs to the operator" : "Namespace"}>
    ${namespace === null ? "operator" : namespace}
  </span>
`;

/** A budget by its name, or else its short id; a link for those who may see it. */
export function BudgetLink({ id, namespace, name }) {
  const text = html`${name || shortId(id)}${whose(namespace)}`;
  const look = name ? "" : "mono";
  return everywhere() || me.peek().namespaces.includes(namespace)
    ? html`<a class=${look} title=${id} href=${budgetPage(id, namespace)}>${text}</a>`
    : html`<span class=${look} title=${id}>${text}</span>`;
}
