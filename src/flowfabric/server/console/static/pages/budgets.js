// Budgets and quotas: how much is spent, how much is allowed, and changing that.
import { html, useState } from "../dom.js";
import { get, post, put } from "../api.js";
import { useLive } from "../live.js";
import { Live } from "../app.js";
import { everywhere, may } from "../session.js";
import { amount, count, duration, plural, shortId, units, words, written } from "../format.js";
import { closeDialog, confirm, openDialog } from "../dialogs.js";
import { Copy, Empty, Loading, Meter, Trouble, When } from "../parts.js";
import { toast } from "../toasts.js";

async function all(path, key) {
  let found = [];
  let after;
  do {
    const page = await get(path, { after, limit: 500 });
    found = found.concat(page[key]);
    after = page.next_cursor;
  } while (after !== null && found.length < 5_000);
  return found;
}

export default function Budgets({ id }) {
  const { data, problem, refresh } = useLive(
    async () => {
      if (!everywhere())
        return id
          ? { budgets: [await get(`v1/budgets/${encodeURIComponent(id)}`)], quotas: [] }
          : { budgets: [], quotas: [] };
      const [budgets, quotas] = await Promise.all([all("v1/budgets", "budgets"), all("v1/quotas", "policies")]);
      return { budgets, quotas };
    },
    [id],
    5_000,
  );
  const [text, setText] = useState("");
  const shown = (data?.budgets || []).filter(
    (budget) =>
      (!id || budget.budget_id === id) &&
      (!text || `${budget.scope_id} ${budget.scope_type} ${budget.budget_id}`.includes(text)),
  );
  return html`
    <div class="page">
      <div class="page-head">
        <h1>Budgets and quotas</h1>
        <${Live} />
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
                onInput=${(event) => setText(event.target.value)}
                autocomplete="off"
              />
            </div>
          `
        }
      </div>
      <${Trouble} problem=${problem} />
      ${
        !everywhere() &&
        html`
          <p class="note-box">
            This credential is limited to namespaces. Lists of budgets are about all of them; a budget of yours can be
            seen by its id.
          </p>
        `
      }
      ${
        !data
          ? html`<${Loading} />`
          : html`
              ${
                shown.length
                  ? html`
                      <div class="grid">
                        ${shown.slice(0, 200).map(
                          (budget) => html`<${Budget} key=${budget.budget_id} budget=${budget} refresh=${refresh} />`,
                        )}
                      </div>
                    `
                  : html`
                      <section class="card">
                        <${Empty} icon="budgets">No budget${text ? " fits" : ""}.</${Empty}>
                      </section>
                    `
              }
              ${
                !id &&
                html`
                  <section class="card">
                    <header>
                      <h2>Quotas</h2>
                      <span class="count">${data.quotas.length}</span>
                    </header>
                    <div class="body flush table-wrap">
                      ${
                        data.quotas.length
                          ? html`
                              <table class="table stacked">
                                <thead>
                                  <tr>
                                    <th scope="col">Quota</th>
                                    <th scope="col" class="number">In a window</th>
                                    <th scope="col" class="number">Window</th>
                                    <th scope="col" class="number">At once</th>
                                    <th scope="col" class="number">Running</th>
                                    <th scope="col">Since</th>
                                  </tr>
                                </thead>
                                <tbody>
                                  ${data.quotas.map(
                                    (quota) => html`
                                      <tr key=${quota.quota_policy_id}>
                                        <td class="mono">
                                          ${shortId(quota.quota_policy_id)}${" "}
                                          <${Copy} text=${quota.quota_policy_id} label="Copy the id" />
                                        </td>
                                        <td class="number" data-label="In a window">
                                          ${quota.limits.max_requests_per_window ? count(quota.limits.max_requests_per_window) : "any"}
                                        </td>
                                        <td class="number" data-label="Window">
                                          ${duration(quota.limits.requests_per_window_seconds * 1_000)}
                                        </td>
                                        <td class="number" data-label="At once">
                                          ${quota.limits.active_concurrency_cap || "any"}
                                        </td>
                                        <td class="number" data-label="Running">${count(quota.active_concurrency)}</td>
                                        <td class="soft" data-label="Since"><${When} ms=${quota.created_at_ms} /></td>
                                      </tr>
                                    `,
                                  )}
                                </tbody>
                              </table>
                            `
                          : html`<${Empty}>No quota.</${Empty}>`
                      }
                    </div>
                  </section>
                `
              }
            `
      }
    </div>
  `;
}

const BEYOND = {
  fail: "Beyond its limit, spending is refused.",
  cancel_pending: "Beyond its limit, what waits for it is cancelled.",
  ask: "Beyond its limit, a person is asked.",
  warn: "Beyond its limit, it only warns.",
};

function Budget({ budget, refresh }) {
  const names = [...new Set([...Object.keys(budget.hard_limits), ...Object.keys(budget.usage)])].sort();
  const reset = () =>
    confirm({
      title: `Reset ${budget.scope_id || "this budget"}?`,
      danger: true,
      label: "Reset it",
      consequence: "Its counters begin at 0 again, and what waits for room goes on. What was spent is forgotten.",
      act: async () => {
        await post(`v1/budgets/${budget.budget_id}/reset`);
        toast("The budget begins anew.");
        refresh();
      },
    });
  return html`
    <section class="card half" data-budget=${budget.budget_id}>
      <header>
        <h2 class="clip">${budget.scope_id || shortId(budget.budget_id)}</h2>
        ${budget.scope_type !== "named" && html`<span class="soft small">${words(budget.scope_type)}</span>`}
        ${
          may("operator") &&
          html`
            <div class="actions">
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
              <button type="button" class="button small danger" onClick=${reset}>Reset…</button>
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
                  ${amount(name, used)}${held ? ` + ${amount(name, held)} held` : ""}${limit ? ` of ${amount(name, limit)}` : ", no limit"}
                </span>
              </div>
              ${
                limit > 0 &&
                html`
                  <${Meter} level=${(used + held) / limit} label=${`${name} of ${budget.scope_id || "the budget"}`} />
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
                  ${" "}Begins anew${" "}
                  <${When} ms=${Number(budget.next_reset_at)} />
                  .
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
  const [hard, setHard] = useState(() =>
    Object.fromEntries(names.map((name) => [name, written(name, budget.hard_limits[name])])),
  );
  const [problem, setProblem] = useState(null);
  const submit = async (event) => {
    event.preventDefault();
    try {
      await put(`v1/budgets/${budget.budget_id}/limits`, {
        hard_limits: Object.fromEntries(names.map((name) => [name, units(name, hard[name])])),
      });
      toast("The limits are changed.");
      closeDialog();
      refresh();
    } catch (error) {
      setProblem(error);
    }
  };
  return html`
    <form onSubmit=${submit}>
      <h2 id="dialog-title">Limits of ${budget.scope_id || "this budget"}</h2>
      <p class="soft">They hold from now on; what waits for room looks again at once. 0 means no limit.</p>
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
              value=${hard[name]}
              onInput=${(event) => setHard({ ...hard, [name]: event.target.value })}
            />
          </div>
        `,
      )}
      <${Trouble} problem=${problem} />
      <div class="foot">
        <button type="button" class="button" onClick=${closeDialog}>Leave it</button>
        <button type="submit" class="button primary">Change them</button>
      </div>
    </form>
  `;
}
