// Failures by error: what fails most, since when, and which runs.
import { html } from "../dom.js";
import { get } from "../api.js";
import { useLive } from "../live.js";
import { exact, moment, plural } from "../format.js";
import { Badge, Empty, ExecutionLink, Loading, Trouble, When } from "../parts.js";
import { filterOf, hrefOf, term, times } from "./address.js";

/** The runs of a group. */
export function runsOf(group, said = {}) {
  const words = [said.q, group.execution_kind && term("kind", group.execution_kind), group.common && term("error", group.common)];
  return hrefOf({ ...said, tab: "", q: words.filter(Boolean).join(" "), states: ["failed", "expired"] });
}

export function Failures({ said, own }) {
  const { namespace, q, created_from, created_before } = filterOf(said, own, times({ ...said, by: "created" }));
  const { data, problem } = useLive(
    () => get("v1/search/failures", { namespace, q, created_from, created_before }),
    [namespace, q, said.within, said.from, said.until],
    10_000,
  );
  if (!data) return problem ? html`<${Trouble} problem=${problem} />` : html`<${Loading} />`;
  return html`
    <${Trouble} problem=${problem} />
    <section class="card">
      <header>
        <h2>Failures by error</h2>
        <span class="soft small">
          ${plural(data.failures, "failure")}${data.oldest ? `, created since ${moment(data.oldest)}` : ""}
        </span>
      </header>
      <div class="body flush"><${Groups} groups=${data.groups} said=${said} /></div>
    </section>
  `;
}

export const Groups = ({ groups, said }) =>
  groups.length
    ? html`
        <div class="table-wrap">
          <table class="table failures">
            <thead>
              <tr>
                <th scope="col" class="number">Count</th>
                <th scope="col">Error</th>
                <th scope="col" class="wide-only">First seen</th>
                <th scope="col">Last seen</th>
                <th scope="col" class="wide-only">Newest</th>
              </tr>
            </thead>
            <tbody>
              ${groups.map(
                (group) => html`
                  <tr key=${group.newest} data-failure=${group.execution_kind}>
                    <td class="number"><${Badge} tone="failed">${exact(group.count)}</${Badge}></td>
                    <td>
                      <a href=${runsOf(group, said)}>${group.execution_kind || "(no kind)"}</a>
                      <div class="small soft wrap-anywhere">${group.error.split("\n")[0] || "No message"}</div>
                    </td>
                    <td class="small soft no-wrap wide-only"><${When} ms=${group.first_at} /></td>
                    <td class="small soft no-wrap"><${When} ms=${group.last_at} /></td>
                    <td class="wide-only"><${ExecutionLink} id=${group.newest} /></td>
                  </tr>
                `,
              )}
            </tbody>
          </table>
        </div>
      `
    : html`<${Empty} icon="check">No failures.</${Empty}>`;
