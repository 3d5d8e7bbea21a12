// Approvals: the inbox of questions, what each was asked about, who has answered, and the form to answer for somebody.
import { useBusy } from "../acts.js";
import { html, useMemo, useRef, useState } from "../dom.js";
import { get, post } from "../api.js";
import { useLive, usePages } from "../live.js";
import { changed, narrowed, rewrite, useNamespace } from "../narrowing.js";
import { Live } from "../app.js";
import { may } from "../session.js";
import { moment, plural, relative } from "../format.js";
import { Badge, Copy, Empty, ExecutionLink, Loading, NoMatches, Total, Trouble, When } from "../parts.js";
import { Json } from "../values.js";
import { openDialog, useDialog, whileHere } from "../dialogs.js";
import { toast } from "../toasts.js";
import { AnswerForm } from "../answerform.js";
import { Icon } from "../icons.js";
import { useStill } from "../still.js";

/** Pages of questions that are read at once, so that the most urgent ones are among those shown. */
const FIRST_PAGES = 4;

/** The most urgent first: by deadline, then those without one, the oldest first. */
const byDeadline = (first, second) =>
  (first.until ?? Infinity) - (second.until ?? Infinity) || first.asked_at - second.asked_at;

/** Whether every word that was typed is somewhere in a question. */
function fits(ask, text) {
  const whole = [ask.question, ask.namespace, ask.run_id, ...ask.of].join(" ").toLowerCase();
  return text
    .toLowerCase()
    .split(" ")
    .every((word) => whole.includes(word));
}

const pathOf = (id) => `approvals${id ? `/${encodeURIComponent(id)}` : ""}`;
const hrefOf = (id, text, ns) => narrowed(pathOf(id), { q: text, ns });

export default function Approvals({ id, query }) {
  const own = useNamespace(pathOf(id), query);
  const text = query.get("q") || "";
  const { data, problem, refresh, more } = usePages(
    async (cursor) => {
      const { asks, next_cursor: next } = await get("v1/asks", { namespace: own, limit: 50, cursor });
      return { rows: asks, next };
    },
    [own],
    { first: FIRST_PAGES },
  );
  const all = useMemo(() => [...(data?.rows || [])].sort(byDeadline), [data]);
  const asks = all.filter((ask) => fits(ask, text));
  const { shown, still } = useStill(asks, (ask) => ask.execution_id, text);
  // The question that is open stays open, whatever arrives: only people choose another.
  const first = useMemo(() => ({ id: null }), [own, id]);
  if (!id) first.id ??= asks[0]?.execution_id ?? null;
  const chosen = id || first.id;
  const search = (event) => rewrite(changed({ q: event.target.value }));
  return html`
    <div class="page">
      <div class="page-head">
        <h1>Approvals</h1>
        <${Live} />
        ${
          all.length > 0 &&
          html`<${Total} text=${plural(all.length, "question")} more=${data.more} />`
        }
      </div>
      <${Trouble} problem=${problem} />
      ${
        !data
          ? html`<${Loading} />`
          : !all.length && !chosen
            ? html`
                <section class="card">
                  <${Empty} icon="approvals">
                    No open questions.
                    <span class="small faint">Questions that workflows ask with Ask appear here.</span>
                  </${Empty}>
                </section>
              `
            : html`
                <div class="inbox" data-open=${id ? "" : null}>
                  <section class="card inbox-list" aria-label="Questions" ...${still}>
                    <div class="inbox-search">
                      <input
                        class="input"
                        type="search"
                        data-search
                        aria-label="Search questions"
                        placeholder="Search questions"
                        value=${text}
                        onInput=${search}
                      />
                    </div>
                    ${shown.map((ask) => html`<${Item} key=${ask.execution_id} ...${{ ask, chosen, text, own }} />`)}
                    ${
                      data.more &&
                      html`
                        <button type="button" class="inbox-item" onClick=${more}>More</button>
                      `
                    }
                    ${
                      !asks.length &&
                      html`
                        <p class="inbox-item soft">
                          ${
                            text && all.length
                              ? html`<${NoMatches} all=${hrefOf(id, "", own)} among=${data.more && plural(all.length, "question")} />`
                              : "No other open questions."
                          }
                        </p>
                      `
                    }
                  </section>
                  <div class="inbox-open stack tight">
                    <a class="inbox-back small" href=${hrefOf("", text, own)}>All questions</a>
                    ${
                      chosen &&
                      html`
                        <${Open}
                          key=${chosen}
                          id=${chosen}
                          listed=${all.find((ask) => ask.execution_id === chosen)}
                          refresh=${refresh}
                        />
                      `
                    }
                  </div>
                </div>
              `
      }
    </div>
  `;
}

const Item = ({ ask, chosen, text, own }) => html`
  <a
    class="inbox-item"
    href=${hrefOf(ask.execution_id, text, own)}
    aria-current=${String(ask.execution_id === chosen)}
    data-ask=${ask.execution_id}
  >
    <span class="line wide">
      <strong class="clip">${ask.question}</strong>
      <span class="faint tiny no-wrap" title=${ask.until ? `Until ${moment(ask.until)}` : `Asked ${moment(ask.asked_at)}`}>
        ${ask.until ? `due ${relative(ask.until)}` : `asked ${relative(ask.asked_at)}`}
      </span>
    </span>
    <span class="line wide small soft">
      <span class="clip">${ask.of.length ? ask.of.join(", ") : "anyone with the link"}</span>
      <span>${ask.given.filter((given) => given.said === "approve").length} of ${ask.need}</span>
    </span>
  </a>
`;

/** The question that is open: first as the inbox has it, then as it is, also when it is no longer in the inbox. */
function Open({ id, listed, refresh }) {
  const own = useLive(() => get(`v1/asks/${encodeURIComponent(id)}`), [id]);
  // It may leave the inbox before it was read itself.
  const last = useRef(null);
  const ask = (last.current = own.data || listed || last.current);
  if (!ask)
    return html`
      <section class="card">
        <div class="body">
          ${own.problem ? html`<${Trouble} problem=${own.problem} />` : html`<${Loading} />`}
        </div>
      </section>
    `;
  return html`<${Question} ask=${ask} refresh=${() => Promise.all([own.refresh(), refresh()])} />`;
}

function Question({ ask, refresh }) {
  const answered = new Set(ask.given.map((given) => given.by));
  const free = ask.of.filter((name) => !answered.has(name));
  const several = ask.of.length > 1;
  // Of several, people choose; who has answered meanwhile is chosen no more, and nobody else instead.
  const [wanted, setWanted] = useState("");
  const by = several ? (free.includes(wanted) ? wanted : "") : (ask.of[0] ?? "");
  const { busy, problem, run } = useBusy(refresh, ask.question);
  const give = (value) =>
    run(async () => {
      const { said } = await post(`v1/asks/${encodeURIComponent(ask.execution_id)}/answer`, { value, by: by || null });
      toast(`Answer recorded: ${said === "approve" ? "Yes" : "No"}`);
    });
  return html`
    <section class="card" data-question>
      <header>
        <h2 class="grow wrap-anywhere">${ask.question}</h2>
        <${Badge} tone=${ask.open ? "suspended" : "cancelled"}>${ask.open ? "open" : "closed"}</${Badge}>
      </header>
      <div class="body stack">
        <dl class="facts">
          <div>
            <dt>Asked</dt>
            <dd><${When} ms=${ask.asked_at} /></dd>
          </div>
          <div>
            <dt>Until</dt>
            <dd>
              ${ask.until ? html`<${When} ms=${ask.until} />` : "No deadline"}
            </dd>
          </div>
          <div>
            <dt>Needs</dt>
            <dd>${ask.need === 1 ? "one approval" : `${ask.need} approvals`}; one rejection is final</dd>
          </div>
          <div>
            <dt>Run</dt>
            <dd><${ExecutionLink} id=${ask.run_id} /></dd>
          </div>
          <div>
            <dt>Namespace</dt>
            <dd>${ask.namespace}</dd>
          </div>
        </dl>
        ${
          ask.show !== null &&
          html`
            <div class="stack tight">
              <h3>Details</h3>
              <${Json} value=${ask.show} label="Details" />
            </div>
          `
        }
        <div class="stack tight">
          <h3>Answers</h3>
          ${
            ask.of.length === 0 &&
            !ask.given.length &&
            html`<p class="soft small">None yet. Anyone with the link can answer.</p>`
          }
          <div class="table-wrap">
            <table class="table stacked">
              <tbody>
                ${ask.of.map((name) => {
                  const given = ask.given.find((each) => each.by === name);
                  return html`<${Approver} key=${name} name=${name} given=${given} ask=${ask} />`;
                })}
                ${ask.given
                  .filter((given) => !ask.of.includes(given.by))
                  .map(
                    (given) => html`
                      <${Approver} key=${given.by} name=${given.identity || given.by} given=${given} ask=${ask} />
                    `,
                  )}
              </tbody>
            </table>
          </div>
          ${
            !ask.of.length &&
            ask.open &&
            may("make_link") &&
            html`<div><${LinkButton} ask=${ask} by=${null} /></div>`
          }
        </div>
        ${
          ask.open &&
          may("give_answer") &&
          (free.length > 0 || !ask.of.length) &&
          html`
            <div class="stack tight">
              <h3>Answer for ${several ? "" : ask.of[0] || "the approver"}</h3>
              ${
                several &&
                html`
                  <div class="field">
                    <label class="visually-hidden" for="by">Approver</label>
                    <select id="by" class="input" value=${by} onChange=${(event) => setWanted(event.target.value)}>
                      <option value="">Choose the approver…</option>
                      ${free.map(
                        (name) => html`<option key=${name} value=${name}>${name}</option>`,
                      )}
                    </select>
                  </div>
                `
              }
              <p class="small faint">It counts as their answer; the audit log records that you gave it.</p>
              <${AnswerForm}
                schema=${ask.schema}
                approves=${ask.approves}
                busy=${busy || (several && !by)}
                problem=${problem}
                onAnswer=${give}
              />
            </div>
          `
        }
      </div>
    </section>
  `;
}

function Approver({ name, given, ask }) {
  return html`
    <tr>
      <td>
        <strong>${name}</strong>
        ${
          given?.identity && given.identity !== name
            ? html`<div class="tiny faint">given by ${given.identity}</div>`
            : null
        }
      </td>
      <td>
        ${
          given
            ? html`
                <${Badge} tone=${given.said === "approve" ? "good" : "bad"}>
                  ${given.said === "approve" ? "yes" : "no"}
                </${Badge}>
              `
            : html`<span class="soft">no answer yet</span>`
        }
      </td>
      <td class="soft small">
        ${given ? html`<${When} ms=${given.at} />` : null}
      </td>
      <td class="small">
        ${
          given && typeof given.value === "object" && given.value
            ? Object.entries(given.value)
                .filter(([, value]) => value !== "" && typeof value !== "boolean")
                .map(
                  ([key, value]) => html`
                    <div key=${key}>
                      <span class="faint">${key}</span>
                      ${" "}${String(typeof value === "object" ? JSON.stringify(value) : value)}
                    </div>
                  `,
                )
            : null
        }
      </td>
      <td class="actions">
        ${
          !given &&
          ask.open &&
          may("make_link") &&
          html`<${LinkButton} ask=${ask} by=${name} />`
        }
      </td>
    </tr>
  `;
}

function LinkButton({ ask, by }) {
  const { busy, run } = useBusy();
  const make = async () => {
    const here = whileHere();
    try {
      const { link } = await post(`v1/asks/${encodeURIComponent(ask.execution_id)}/link`, { by }, { key: undefined });
      if (!here()) return;
      openDialog({
        body: html`<${Linked} name=${by} url=${new URL(`answer#${link}`, document.baseURI).href} />`,
      });
    } catch (problem) {
      toast(problem.message, "bad");
    }
  };
  return html`
    <button type="button" class="button small" disabled=${busy} onClick=${() => run(make)}>
      <${Icon} name="link" />
      Link
    </button>
  `;
}

const Linked = ({ name, url }) => html`
  <div class="inside">
    <h2 id="dialog-title">Link ${name ? `for ${name}` : "to answer"}</h2>
    <p class="soft">
      Anyone with this link can answer${name ? ` for ${name}` : ""} without an account. It is valid only for this question,
      while it is open. Do not share it with anyone else.
    </p>
    <div class="line">
      <input class="input mono" readonly aria-label="Link" value=${url} onFocus=${(event) => event.target.select()} />
      <${Copy} text=${url} label="Copy the link" />
    </div>
    <div class="foot"><button type="button" class="button" onClick=${useDialog().close}>Close</button></div>
  </div>
`;
