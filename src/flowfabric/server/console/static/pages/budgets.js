// Budgets and quotas: how much is spent, how much is allowed, and changing that.
import { html, useRef, useState } from "../dom.js";
import { get } from "../api.js";
import { useLive } from "../live.js";
import { changed, narrowed, rewrite, useNamespace } from "../narrowing.js";
import { Live } from "../app.js";
import { may } from "../session.js";
import { amount, count, duration, plural, shortId, units, words, written } from "../format.js";
import { confirm, openDialog, useAct } from "../dialogs.js";
import { Copy, Empty, Loading, Meter, NoMatches, Total, Trouble, When } from "../parts.js";
import { Owner, budgetPage, budgetPath, ownedKey, whose } from "../owners.js";
import { toast } from "../toasts.js";

const UUID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i;
/** As many are shown at once. */
const SHOWN = 200;
const NOTHING = { budgets: [], quotas: [] };

async function all(path, key, own) {
  let found = [];
  let after;
  do {
    const page = await get(path, { after, limit: 500, namespace: own });
    found = found.concat(page[key]);
    after = page.next_cursor;
  } while (after !== null && found.length < 5_000);
  return found;
}

/** One budget if an id is given: that of the namespace in the address, or the operator's. Else all that may be seen. */
async function load(id, owner, own) {
  if (id) return UUID.test(id) ? { ...NOTHING, budgets: [await get(budgetPath(id, owner))] } : NOTHING;
  const [budgets, quotas] = await Promise.all([
    all("v1/budgets", "budgets", own),
    all("v1/quotas", "policies", own),
  ]);
  return { budgets, quotas };
}

export default function Budgets({ id, query }) {
  const own = useNamespace("budgets", query);
  const owner = query.get("namespace");
  const { data, problem, refresh } = useLive(() => load(id, owner, own), [id, owner, own], 5_000);
  const text = query.get("q") || "";
  const shown = (data?.budgets || []).filter((budget) =>
    `${budget.scope_id} ${budget.scope_type} ${budget.budget_id} ${budget.namespace ?? ""}`
      .toLowerCase()
      .includes(text.trim().toLowerCase()),
  );
  return html`
    <div class="page">
      <div class="page-head">
        <h1>Budgets and quotas</h1>
        <${Live} />
        ${data && !id && html`<${Total} text=${plural(shown.length, "budget")} />`}
        ${id && html`<a class="button small" href="#/budgets">All budgets</a>`}
        ${
          !id &&
          html`
            <div class="actions">
              <label class="visually-hidden" for="budget-q">Find a budget</label>
              <input
                id="budget-q"
                data-search
                class="input"
                placeholder="Find a budget"
                value=${text}
                onInput=${(event) => rewrite(changed({ q: event.target.value }))}
                autocomplete="off"
              />
            </div>
          `
        }
      </div>
      <${Trouble} problem=${problem} />
      ${
        !data
          ? !problem && html`<${Loading} />`
          : html`
              ${
                shown.length
                  ? html`
                      <div class="grid">
                        ${shown.slice(0, SHOWN).map(
                          (budget) => html`
                            <${Budget}
                              key=${ownedKey(budget.budget_id, budget.namespace)}
                              budget=${budget}
                              refresh=${refresh}
                            />
                          `,
                        )}
                      </div>
                      ${shown.length > SHOWN && html`<p class="loading">The first ${SHOWN}. Search to find others.</p>`}
                    `
                  : html`
                      <section class="card">
                        <${Empty} icon="budgets">${text ? html`<${NoMatches} all=${narrowed("budgets", { ns: own })} />` : "No budgets."}</${Empty}>
                      </section>
                    `
              }
              ${!id && html`<${Quotas} quotas=${data.quotas} />`}
            `
      }
    </div>
  `;
}

const Quotas = ({ quotas }) => html`
  <section class="card">
    <header>
      <h2>Quotas</h2>
      <span class="count">${quotas.length}</span>
    </header>
    <div class="body flush table-wrap">
      ${
        quotas.length
          ? html`
              <table class="table stacked">
                <thead>
                  <tr>
                    <th scope="col">Quota</th>
                    <th scope="col">Owner</th>
                    <th scope="col" class="number">Per window</th>
                    <th scope="col" class="number">Window</th>
                    <th scope="col" class="number">Concurrency</th>
                    <th scope="col" class="number">Running</th>
                    <th scope="col">Created</th>
                  </tr>
                </thead>
                <tbody>
                  ${quotas.map(
                    (quota) => html`
                      <tr key=${ownedKey(quota.quota_policy_id, quota.namespace)} data-quota=${quota.quota_policy_id}>
                        <td class="mono">
                          ${shortId(quota.quota_policy_id)}${" "}
                          <${Copy} text=${quota.quota_policy_id} label="Copy the id" />
                        </td>
                        <td data-label="Owner"><${Owner} namespace=${quota.namespace} /></td>
                        <td class="number" data-label="Per window">
                          ${quota.limits.max_requests_per_window ? count(quota.limits.max_requests_per_window) : "unlimited"}
                        </td>
                        <td class="number" data-label="Window">
                          ${duration(quota.limits.requests_per_window_seconds * 1_000)}
                        </td>
                        <td class="number" data-label="Concurrency">${quota.limits.active_concurrency_cap || "unlimited"}</td>
                        <td class="number" data-label="Running">${count(quota.active_concurrency)}</td>
                        <td class="soft" data-label="Created"><${When} ms=${quota.created_at_ms} /></td>
                      </tr>
                    `,
                  )}
                </tbody>
              </table>
            `
          : html`<${Empty}>No quotas.</${Empty}>`
      }
    </div>
  </section>
`;

const BEYOND = {
  fail: "Hard limit.",
  cancel_pending: "Hard limit. Waiting executions are cancelled.",
  ask: "Hard limit. Asks for approval before it continues.",
  warn: "Soft limit. Only warns.",
};

function Budget({ budget, refresh }) {
  const { budget_id: id, namespace: owner } = budget;
  const names = [...new Set([...Object.keys(budget.hard_limits), ...Object.keys(budget.usage)])].sort();
  const reset = () =>
    confirm({
      title: `Reset ${budget.scope_id || "this budget"}${whose(owner)}?`,
      danger: true,
      label: "Reset",
      consequence: "Its counters go back to 0, and waiting executions continue. The amounts spent are lost.",
      act: async (_, own) => {
        await own.post(budgetPath(id, owner, "reset"));
        toast("Budget reset.");
        refresh();
      },
    });
  return html`
    <section class="card half" data-budget=${id} data-namespace=${owner}>
      <header>
        <h2 class="clip"><a href=${budgetPage(id, owner)}>${budget.scope_id || shortId(id)}</a></h2>
        <${Copy} text=${id} label="Copy the budget id" />
        <${Owner} namespace=${owner} />
        ${budget.scope_type !== "named" && html`<span class="soft small">${words(budget.scope_type)}</span>`}
        ${
          (may("set_budget_limits") || may("reset_budget")) &&
          html`
            <div class="actions">
              ${
                may("set_budget_limits") &&
                html`
                  <button
                    type="button"
                    class="button small"
                    onClick=${() =>
                      openDialog({
                        body: html`<${Limits} ...${{ budget, refresh }} />`,
                      })}
                  >
                    Limits…
                  </button>
                `
              }
              ${
                may("reset_budget") &&
                html`<button type="button" class="button small danger" onClick=${reset}>Reset…</button>`
              }
            </div>
          `
        }
      </header>
      <div class="body stack">
        ${names.map((name) => {
          const used = budget.usage[name] || 0;
          const held = budget.reserved?.[name] || 0;
          const limit = budget.hard_limits[name] || 0;
          return html`
            <div class="stack tight" key=${name}>
              <div class="line wide">
                <span>${name}</span>
                <span class="number soft small">
                  ${amount(name, used)}${held ? ` + ${amount(name, held)} reserved` : ""}${limit ? ` of ${amount(name, limit)}` : ", no limit"}
                </span>
              </div>
              ${
                limit > 0 &&
                html`
                  <${Meter} level=${(used + held) / limit} label=${`${name} of ${budget.scope_id || "the budget"}${whose(owner)}`} />
                `
              }
            </div>
          `;
        })}
        <p class="small faint">
          ${budget.enforcement_mode === "warn" ? BEYOND.warn : BEYOND[budget.on_hard_limit] || BEYOND.fail}${
            budget.breach_count
              ? html`
                  ${" "}${plural(budget.breach_count, "breach", "breaches")}${
                    budget.last_breach_at
                      ? html`
                          , the last${" "}
                          <${When} ms=${Number(budget.last_breach_at)} />
                        `
                      : ""
                  }.
                `
              : ""
          }${
            budget.next_reset_at
              ? html`
                  ${" "}Resets${" "}<${When} ms=${Number(budget.next_reset_at)} />.
                `
              : ""
          }
        </p>
      </div>
    </section>
  `;
}

function Limits({ budget, refresh }) {
  const names = Object.keys(budget.hard_limits).sort();
  // What was typed, by name.
  const [hard, setHard] = useState({});
  // What the limits were when they were last seen here: what others change meanwhile is not overwritten unseen.
  const base = useRef(budget.hard_limits);
  const { busy, problem, run, own } = useAct();
  const submit = (event) => {
    event.preventDefault();
    run(async () => {
      const typed = Object.fromEntries(Object.entries(hard).map(([name, text]) => [name, units(name, text)]));
      const changed = Object.keys(typed).filter((name) => typed[name] !== base.current[name]);
      const { hard_limits: now } = await get(budgetPath(budget.budget_id, budget.namespace));
      const moved = changed.filter((name) => now[name] !== base.current[name] && now[name] !== typed[name]);
      base.current = now;
      if (moved.length)
        throw new Error(
          `Changed in the meantime: ${moved.map((name) => `${name} is ${written(name, now[name])}`).join(", ")}. Press Change again to replace it.`,
        );
      if (changed.length)
        await own.put(budgetPath(budget.budget_id, budget.namespace, "limits"), {
          hard_limits: Object.fromEntries(changed.map((name) => [name, typed[name]])),
        });
      toast("Limits changed.");
      refresh();
    });
  };
  return html`
    <form onSubmit=${submit}>
      <h2 id="dialog-title">Limits of ${budget.scope_id || "this budget"}${whose(budget.namespace)}</h2>
      <p class="soft">They apply at once, to waiting executions too. 0 means no limit.</p>
      ${names.map(
        (name) => html`
          <div class="field" key=${name}>
            <label for=${`limit-${name}`}>${name}</label>
            <input
              id=${`limit-${name}`}
              class="input"
              type="number"
              min="0"
              step="any"
              required
              value=${hard[name] ?? written(name, budget.hard_limits[name])}
              onInput=${(event) => setHard({ ...hard, [name]: event.target.value })}
            />
          </div>
        `,
      )}
      <${Trouble} problem=${problem} />
      <div class="foot">
        <button type="button" class="button" onClick=${own.close}>Cancel</button>
        <button type="submit" class="button primary" disabled=${busy}>${busy ? "Working…" : "Change"}</button>
      </div>
    </form>
  `;
}
