// The page of somebody who was sent a link: the question, what it is about, and the form. The link stays behind the #,
// which browsers never send; it is taken out of the address at once, and travels in bodies only.
import { html, render, signal, useState, useValue } from "./dom.js";
import { useBusy } from "./acts.js";
import { get, post, Problem } from "./api.js";
import { useOnce } from "./live.js";
import { setNow } from "./session.js";
import { moment, relative } from "./format.js";
import { Json } from "./values.js";
import { Loading } from "./parts.js";
import { Icon, Mark } from "./icons.js";
import { AnswerForm } from "./answerform.js";

const KEPT = "ff.link";
/** The link that was given, or "" if there is none. */
function taken() {
  const given = location.hash.slice(1);
  if (given) {
    // So that loading the page again finds it, and the history does not.
    sessionStorage.setItem(KEPT, given);
    history.replaceState(null, "", location.pathname);
  }
  return given || sessionStorage.getItem(KEPT) || "";
}
const opened = signal(taken());
// Another link that is opened in the same tab.
addEventListener("hashchange", () => {
  opened.value = taken();
});

const Box = ({ children }) => html`
  <main class="alone wide">
    <div class="card">
      <div class="inside">
        <span class="brand">
          <${Mark} />
          <span>FlowFabric</span>
        </span>
        ${children}
      </div>
    </div>
  </main>
`;

/** When it was asked, until when it is open, and how far it has come. */
function when(asked) {
  const until = asked.until ? `, open until ${moment(asked.until)}` : "";
  const yeses = asked.need > 1 ? ` ${asked.yeses} of ${asked.need} approvals so far.` : "";
  return `${relative(asked.asked_at)}${until}.${yeses}`;
}

const NO_LINK = new Problem("This address contains no link. Open the link you were sent, and check that it is complete.", 404);

function Answer({ link }) {
  const [done, setDone] = useState(null);
  const [name, setName] = useState("");
  const { busy, problem, run } = useBusy();
  useOnce(async () => {
    const { now } = await get("v1/me");
    if (now) setNow(now);
    return true;
  }, []);
  const { data: asked, problem: unread } = useOnce(async () => {
    if (!link) throw NO_LINK;
    return post("v1/answers/look", { link }, { key: undefined, reads: true });
  }, [link]);
  const give = (value) =>
    run(async () => {
      const { said } = await post("v1/answers", { link, value, identity: name.trim() }, { key: undefined });
      if (sessionStorage.getItem(KEPT) === link) sessionStorage.removeItem(KEPT);
      setDone(said);
    });
  if (done)
    return html`
      <${Box}>
        <h1>Thank you</h1>
        <p class="sentence" role="status" data-tone=${done === "approve" ? "good" : "warn"}>
          <${Icon} name="check" />
          <span>Answer recorded: ${done === "approve" ? "Yes" : "No"}. You can close this page.</span>
        </p>
      </${Box}>
    `;
  if (!asked)
    return html`
      <${Box}>
        ${
          unread
            ? html`
                <h1>${unread.status >= 400 && unread.status < 500 ? "No open question" : "The server cannot be reached"}</h1>
                <p class="problem" role="alert">${unread.message}</p>
              `
            : html`<${Loading} />`
        }
      </${Box}>
    `;
  return html`
    <${Box}>
      <div>
        <h1 class="wrap-anywhere">${asked.question}</h1>
        <p class="soft small">
          ${
            asked.approver === "anyone"
              ? "Asked"
              : html`
                  For${" "}
                  <strong>${asked.approver}</strong>, asked
                `
          } ${when(asked)}
        </p>
      </div>
      ${
        asked.show !== null &&
        html`
          <div class="stack tight">
            <h2>Details</h2>
            <${Json} value=${asked.show} label="Details" />
          </div>
        `
      }
      ${
        asked.answered
          ? html`<p class="note-box">You have already answered. The first answer counts.</p>`
          : html`
              <div class="field">
                <label for="name">
                  Your name${" "}
                  <span class="faint">(optional, stored with the answer)</span>
                </label>
                <input
                  id="name"
                  class="input"
                  maxlength="256"
                  autocomplete="name"
                  value=${name}
                  onInput=${(event) => setName(event.target.value)}
                />
              </div>
              <${AnswerForm}
                schema=${asked.schema}
                approves=${asked.approves}
                busy=${busy}
                problem=${problem}
                onAnswer=${give}
              />
            `
      }
    </${Box}>
  `;
}

function Page() {
  const link = useValue(opened);
  return html`<${Answer} key=${link} link=${link} />`;
}

render(
  html`<${Page} />`,
  document.getElementById("root"),
);
