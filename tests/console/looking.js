// For tests: goes through many pages of the console from inside, quickly, and tells which texts it did not find where.
globalThis.looking = (() => {
  const pause = () => new Promise((done) => setTimeout(done, 4));
  const plain = (text) => String(text ?? "").replaceAll("_", " ").replace(/\s+/g, " ").trim();
  const find = (selector) => [...document.querySelectorAll(selector)];
  const text = (selector) => plain(document.querySelector(selector)?.textContent);
  /** Elements and attributes that the console itself never makes. */
  const foreign = () => find(
    "iframe, object, embed, base, marquee, video, math, meta[http-equiv], a[href^='javascript' i], link[href^='javascript']," +
    "[onerror], [onload], [onfocus], [ontoggle], [onbegin], [onstart], [srcdoc], [formaction], form[action]",
  ).map((each) => each.outerHTML.slice(0, 200));
  async function until(test, what) {
    for (const end = Date.now() + 60_000; Date.now() < end; await pause()) if (test()) return;
    throw new Error(`never came: ${what}`);
  }
  async function each(pairs, look) {
    const lacking = [];
    for (const [id, wanted] of pairs) {
      const expect = (where, found, part = wanted) => { if (!plain(found).includes(plain(part))) lacking.push(`${where} lacks ${part}: ${plain(found).slice(0, 300)}`); };
      await look(id, wanted, expect);
      for (const strange of foreign()) lacking.push(`${wanted} became ${strange}`);
      if (lacking.length > 5) break;
    }
    return lacking;
  }
  async function tab(name) {
    document.querySelector(`#tab-${name}`).click();
    await until(() => document.querySelector(`[role=tabpanel][aria-labelledby=tab-${name}]`), name);
    for (const fold of find("[role=tabpanel] details")) fold.open = true;
    return document.querySelector("[role=tabpanel]");
  }
  const executions = (pairs) => each(pairs, async (id, wanted, expect) => {
    location.hash = `#/executions/${encodeURIComponent(id)}`;
    await until(() => text("[data-id]") === plain(id), id);
    expect("heading", text("h1"));
    expect("namespace", text(".page-head .tiny"));
    expect("failure", text("[data-failure]"));
    expect("lane", text(".facts"), wanted.replace("\t", "/").slice(0, 64));
    expect("holders on the timeline", find(".timeline .bar").map((bar) => bar.title).join(" "), `${wanted}: revoked: ${wanted}`);
    expect("signal on the timeline", find(".timeline .tick").map((tick) => tick.title).join(" "), `Signal ${wanted} from ${wanted}`);
    await until(() => document.querySelector(".half .value-box, .half pre, .half [role=region]"), "input");
    const panel = await tab("data");
    expect("result", panel.textContent);
    expect("step", (await tab("steps")).querySelector(".clip").textContent);
    expect("leases", (await tab("leases")).textContent, `${wanted}1`);
    expect("how leases ended", (await tab("leases")).textContent, `suspended: ${wanted}`);
    expect("signals", (await tab("waits")).textContent, `${wanted} for ${wanted}${wanted}`);
    expect("usage", (await tab("usage")).textContent);
    const events = (await tab("events")).textContent;
    for (const part of [`Created by ${wanted}`, `at worker ${wanted}`, `revoked: ${wanted}`, `Waitpoint ${wanted} was made`, `Signal ${wanted} for ${wanted} from ${wanted}`, `Step ${wanted} was`, `Cancelled: ${wanted}`]) expect("events", events, part);
    const details = (await tab("details")).textContent;
    expect("tags", details, `${wanted}=${wanted}`);
    expect("capabilities", details, wanted.replaceAll(",", "/").split(/\s+/).join("/"));
    await tab("data");
  });
  const flows = (pairs) => each(pairs, async (id, wanted, expect) => {
    location.hash = `#/flows/${id}`;
    await until(() => find(".page-head .mono").some((one) => one.textContent === id), id);
    expect("heading", text("h1"));
    expect("namespace", text(".page-head .tiny"));
    expect("reason", text(".sentence"), `Cancelled: ${wanted}`);
    expect("member", text("tbody"));
  });
  const questions = (pairs) => each(pairs, async (id, wanted, expect) => {
    const item = document.querySelector(`[data-ask="${CSS.escape(id)}"]`);
    expect("inbox", item.textContent, `${wanted}, ${wanted} too`);
    item.click();
    await until(() => location.hash === `#/approvals/${encodeURIComponent(id)}` && item.getAttribute("aria-current") === "true", id);
    await until(() => text("[data-question] h2") === plain(wanted), wanted);
    const question = document.querySelector("[data-question]");
    const facts = [...question.querySelectorAll("dd")].map((one) => one.textContent);
    expect("namespace", facts.at(-1));
    expect("what is shown", question.querySelector("[aria-label='What was shown']").textContent, JSON.stringify(wanted));
    expect("who has answered", question.querySelector("tbody").textContent, `${wanted}given by ${wanted} himself`);
    expect("what was answered", question.querySelector("tbody").textContent, `${wanted} ${wanted}`);
    expect("who has not", question.querySelector("tbody").textContent, `${wanted} too`);
    expect("form", question.querySelector("form").textContent);
    expect("choices", [...question.querySelectorAll("form option")].map((one) => one.textContent).join(" "));
  });
  const people = (pairs) => each(pairs, async (secret, wanted, expect) => {
    document.querySelector("[aria-label='Sign out']").click();
    await until(() => document.querySelector("#token"), "sign in");
    const box = document.querySelector("#token");
    box.value = secret;
    box.dispatchEvent(new Event("input", { bubbles: true }));
    await pause();
    box.form.requestSubmit();
    await until(() => document.querySelector(".facts") && document.querySelector(".who .clip")?.title.startsWith(`${wanted} (`), wanted);
    expect("who", text(".who .clip"));
    expect("credential", text(".facts"), `Credential${wanted}`);
    expect("namespaces", text(".facts"), `Namespaces${wanted}`);
  });
  /** The page of outside approvers, begun anew for each link without loading everything again. */
  const answers = (pairs) => each(pairs, async (link, wanted, expect) => {
    sessionStorage.setItem("ff.link", link);
    await import(new URL(`console/answer.js?${encodeURIComponent(link)}`, document.baseURI));
    await until(() => text("h1") === plain(wanted), wanted);
    expect("approver", text("main p"), `Asked of ${wanted} too`);
    expect("what is shown", text("[aria-label='What it is about']"), JSON.stringify(wanted));
    expect("form", text("form"));
    expect("choices", find("form option").map((one) => one.textContent).join(" "));
  });
  /** Opens the dialogs of some of many rows, one after the other: what each is called. */
  async function dialogs(rows, each, open, choose) {
    const titles = [];
    for (const row of find(rows).filter((_, index) => index % each === 0)) {
      [...row.querySelectorAll("button")].find((button) => button.textContent.includes(open)).click();
      if (choose) {
        await until(() => row.querySelector("[role=menuitem]"), choose);
        [...row.querySelectorAll("[role=menuitem]")].find((button) => button.textContent.includes(choose)).click();
      }
      await until(() => document.querySelector("dialog[open] h2"), open);
      titles.push(plain(text("dialog h2")));
      [...find("dialog button")].find((button) => button.textContent.includes("Leave it")).click();
      await until(() => !document.querySelector("dialog"), "closed");
    }
    return { titles, strange: foreign() };
  }
  return { answers, executions, flows, questions, people, dialogs, foreign };
})();
