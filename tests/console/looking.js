// For tests: goes through many pages of the console from inside, quickly, and tells which texts it did not find where.
globalThis.looking = (() => {
  const plain = (text) => String(text ?? "").replaceAll("_", " ").replace(/\s+/g, " ").trim();
  const find = (selector, root = document) => [...root.querySelectorAll(selector)];
  const one = (selector, root = document) => root.querySelector(selector);
  const text = (selector, root) => plain(one(selector, root)?.textContent);
  const texts = (selector, root) => find(selector, root).map((each) => plain(each.textContent));
  const near = (wanted) => wanted.trim().replace(/\s+/g, "/");
  const lane = (wanted) => wanted.replace("\t", "/").slice(0, 64);
  const capability = (wanted) => near(wanted.replaceAll(",", "/"));

  // What follows from a drawing begins at once instead of with the next picture: nobody looks at these.
  const { port1, port2 } = new MessageChannel();
  const waiting = new Map();
  let number = 0;
  port1.onmessage = () => {
    for (const [id, callback] of [...waiting]) if (waiting.delete(id)) callback(performance.now());
  };
  globalThis.requestAnimationFrame = (callback) => {
    waiting.set((number += 1), callback);
    port2.postMessage(null);
    return number;
  };
  globalThis.cancelAnimationFrame = (id) => waiting.delete(id);
  /** Until what was begun by now is drawn, and what follows from that has begun. */
  const drawn = () => new Promise((done) => { requestAnimationFrame(() => setTimeout(() => setTimeout(done))); });

  /** Elements and attributes that the console itself never makes. */
  const foreign = (root = document) => find(
    "iframe, object, embed, base, marquee, video, source, img, math, animate, template, body script, body style," +
    "body link, meta[http-equiv], a[href^='javascript' i], a[href^='data:' i], a[href^='vbscript' i]," +
    "link[href^='javascript']," +
    "[onerror], [onload], [onfocus], [ontoggle], [onbegin], [onstart], [srcdoc], [formaction], form[action]," +
    "[autofocus]",
    root,
  ).map((each) => each.outerHTML.slice(0, 200));

  /** Waits for the page to change into this; how long that takes is not looked at. */
  function until(test, what) {
    if (test()) return Promise.resolve();
    return new Promise((done, fail) => {
      const end = (how) => {
        watcher.disconnect();
        clearTimeout(timer);
        how();
      };
      const watcher = new MutationObserver(() => { if (test()) end(done); });
      const late = () => fail(new Error(`never came: ${what}: ${text("main").slice(0, 500)}`));
      const timer = setTimeout(() => end(late), 60_000);
      watcher.observe(document, { subtree: true, childList: true, attributes: true, characterData: true });
    });
  }

  /** Out of the way: what is looked at elsewhere need not be laid out again with every dialog. */
  const away = (element) => element?.style.setProperty("display", "none", "important");
  const back = (element) => element.style.removeProperty("display");

  /** Another page, as if its address was opened; addresses themselves take the browser a while. */
  async function turn(page, id) {
    const { route } = await import(new URL("console/app.js", document.baseURI));
    route.value = { page, id, query: new URLSearchParams() };
  }

  const fetched = globalThis.fetch;
  /** From now on nothing is looked at again: what was loaded stays, only what is done is asked for. */
  function still() {
    globalThis.fetch = (url, how) => ((how?.method ?? "GET") === "GET" ? new Promise(() => {}) : fetched(url, how));
  }
  function moving() {
    globalThis.fetch = fetched;
    find(".shell").forEach(back);
  }

  /** What one types and sees again, or stands in an address: many at a time. */
  const many = (given, size, between = " ") => Array.from({ length: Math.ceil(given.length / size) }, (_, at) => {
    const joined = given.slice(at * size, (at + 1) * size).join(between);
    return [joined, joined];
  });

  async function each(pairs, look, ...hidden) {
    [".side", ...hidden].forEach((selector) => find(selector).forEach(away));
    const lacking = [];
    for (const [id, wanted] of pairs) {
      const expect = (where, found, part = wanted) => {
        if (!plain(found).includes(plain(part))) lacking.push(`${where} lacks ${part}: ${plain(found).slice(0, 300)}`);
      };
      await look(id, wanted, expect);
      for (const strange of foreign()) lacking.push(`${wanted} became ${strange}`);
      if (lacking.length > 5) break;
    }
    return lacking;
  }

  const button = (label, root = document) => find("button", root).find((each) => each.textContent.includes(label));
  const typed = (box, value) => {
    box.value = value;
    box.dispatchEvent(new Event("input", { bubbles: true }));
  };
  async function tab(name) {
    one(`#tab-${name}`).click();
    await until(() => one(`[role=tabpanel][aria-labelledby=tab-${name}]`), name);
    for (const fold of find("[role=tabpanel] details")) fold.open = true;
    return one("[role=tabpanel]");
  }
  async function chosen(root, menu, item) {
    const offered = () => find("[role=menuitem]", root).find((each) => each.textContent.includes(item));
    button(menu, root).click();
    await until(offered, item);
    offered().click();
  }
  /** The dialog that this opens. */
  async function dialog(open) {
    await open();
    await until(() => one("dialog[open] h2"), "a dialog");
    return one("dialog");
  }
  async function left() {
    (one("dialog .foot button[type=button]") || button("Close", one("dialog"))).click();
    await until(() => !one("dialog"), "no dialog");
  }
  /** What a dialog says that is shown by this and left again. */
  async function asked(open) {
    await dialog(open);
    await until(() => !one("dialog").textContent.includes("Checking what this does"), "what it does");
    const found = plain(one("dialog").textContent);
    await left();
    return found;
  }
  /** Says yes to a dialog; the toast that follows. */
  async function agreed(values = {}) {
    for (const [name, value] of Object.entries(values)) typed(one(`dialog #field-${name}`), value);
    await drawn();
    for (const old of find(".toast [aria-label=Dismiss]")) old.click();
    await until(() => !one(".toast"), "no toast");
    one("dialog form").requestSubmit();
    await until(() => one(".toast") && !one("dialog"), "a toast");
    const strange = foreign(one(".toasts"));
    return strange.length ? strange.join() : text(".toast .grow");
  }

  const executions = (pairs) => each(pairs, async (id, wanted, expect) => {
    await turn("executions", id);
    await until(() => text("[data-id]") === plain(id), id);
    expect("heading", text("h1"));
    expect("namespace", text(".page-head .tiny"));
    expect("sentence", text("[data-why] strong"), `Cancelled: ${wanted}`);
    expect("failure", text("[data-failure]"), `${wanted} failed`);
    expect("lane", text(".facts dd"), lane(wanted));
    expect("what it was forked from", one(".facts a[title]").title);
    const titles = (selector) => find(selector).map((each) => each.title).join(" ");
    expect("holders on the timeline", titles(".timeline .bar"), `${wanted}: revoked: ${wanted}`);
    expect("suspensions on the timeline", titles(".timeline .bar"), `Suspended: ${wanted}`);
    expect("signal on the timeline", titles(".timeline .tick"), `Signal ${wanted} from ${wanted}`);
    expect("step on the timeline", titles(".timeline .tick"), `${wanted}: ok`);
    await tab("data");
    await until(() => one("[aria-label=Input]"), "input");
    expect("input", text("[aria-label=Input]"));
    expect("result", text("[aria-label=Failure]"), `${wanted} failed`);
    const steps = await tab("steps");
    expect("step", text(".clip", steps));
    expect("label of a step's value", one("[role=region]", steps).ariaLabel, `Value of ${wanted}`);
    expect("value of a step", text("[role=region]", steps));
    const forking = await asked(() => button("Fork from here", steps).click());
    expect("forking", forking, `It keeps 0 steps.From step1. ${wanted}`);
    const leases = await tab("leases");
    expect("leases", text("td", leases), wanted);
    expect("how leases ended", leases.textContent, `suspended: ${wanted}`);
    expect("why they were revoked", leases.textContent, `revoked: ${wanted}`);
    const waits = await tab("waits");
    expect("waitpoints", text("tbody td", waits));
    expect("signals", waits.textContent, `${wanted} for ${wanted}${wanted}`);
    expect("sources without a name", text("details summary", waits), `${wanted} first for ${wanted}${wanted}`);
    expect("payload", text("[aria-label=Payload]", waits), `${wanted}: ${JSON.stringify(wanted)}`);
    expect("usage", text("td:nth-child(2)", await tab("usage")));
    const events = (await tab("events")).textContent;
    for (const part of [
      `Created by ${wanted} in lane ${lane(wanted)}`, `on worker ${wanted}`, `Step ${wanted} completed`,
      `The lease of ${wanted} ended: revoked: ${wanted}`, `ended: suspended: ${wanted}`, `Cancelled: ${wanted}`,
      `Waitpoint ${wanted} was created`, `Signal ${wanted} for ${wanted} from ${wanted}`,
    ]) expect("events", events, part);
    const details = await tab("details");
    expect("tags", texts("a.badge", details).join(), `${wanted}=${wanted}`);
    expect("policy", text("[aria-label=Policy]", details), JSON.stringify(capability(wanted)));
    expect("capabilities", text("span.badge", details), capability(wanted));
  });

  /** The list of executions from its top to its end. */
  async function rows(given) {
    const list = one(".list");
    const seen = { name: new Set(), "cell-space": new Set(), "cell-lane": new Set() };
    const inView = (row) => Math.abs(parseFloat(row.style.top) - list.scrollTop) <= list.clientHeight;
    const missing = () => Object.entries(seen).flatMap(([name, found]) => given
      .filter((each) => !found.has(plain(name === "cell-lane" ? lane(each) : each)))
      .map((each) => `${name} lacks ${each}`));
    for (let lacking = missing(); lacking.length; lacking = missing()) {
      list.dispatchEvent(new Event("scroll"));
      await until(() => find(".list-row").some(inView), "rows");
      for (const [name, found] of Object.entries(seen)) texts(`.list-row .${name}`).forEach((each) => found.add(each));
      const end = list.scrollHeight;
      await drawn();
      const atEnd = list.scrollTop + list.clientHeight >= end;
      if (atEnd) await until(() => list.scrollHeight > end, `more rows: ${lacking[0]}`);
      list.scrollTop += list.clientHeight;
    }
    return foreign();
  }

  const values = (selector) => find(selector).map((each) => plain(each.value));
  const labels = (selector) => find(selector).map((each) => plain(each.ariaLabel));

  /** What dumps of bytes show beside the numbers; the first byte is none of a text. */
  const dumps = () => find(".step [role=region]").filter((each) => /^0{6} {2}ff /.test(each.textContent))
    .map((each) => plain(each.textContent.split("\n").map((line) => line.slice(57)).join("").slice(1)));

  /** Executions that show whom they have started, or who else was started beside them. */
  const families = (pairs) => each(pairs, async ([id, title], members, expect) => {
    const row = `[data-relatives='${title}'] tbody td`;
    await turn("executions", id);
    await until(() => text("[data-id]") === plain(id) && find(`${row} a`).length, id);
    const titles = (selector) => find(selector).map((each) => plain(each.title));
    const timeless = titles(".timeline .bar").map((each) => each.replace(/, [^,]*$/, ""));
    const where = {
      "names in the table": [texts(`${row} a`), (member) => member],
      "lanes in the table": [texts(`${row}:nth-child(3)`), lane],
    };
    if (title === "Children") {
      where["names on the timeline"] = [texts(".timeline .name"), (member) => member];
      where["titles of names"] = [titles(".timeline .name"), (member) => member];
      where["titles of bars"] = [timeless, (member) => `${member}: waiting`];
      for (const member of members) expect("what the timeline is called", one(".timeline").ariaLabel, member);
    }
    for (const [name, [found, named]] of Object.entries(where)) {
      for (const wanted of members.map(named)) expect(name, found.includes(plain(wanted)) ? wanted : "", wanted);
    }
  });

  async function flows(pairs) {
    // Where a single member stands is not worth a worker each.
    globalThis.Worker = class {
      postMessage() {}
      terminate() {}
    };
    return each(pairs, async (id, wanted, expect) => {
      await turn("flows", id);
      await until(() => texts(".page-head .mono").includes(id), id);
      expect("heading", text("h1"));
      expect("namespace", text(".page-head .tiny"));
      expect("reason", text(".sentence"), `Cancelled: ${wanted}`);
      expect("member", text("tbody a"));
    });
  }

  /** The pointer over every member of a graph, each brought to its middle by the table below. */
  async function tips() {
    const canvas = one(".graph canvas");
    const found = [];
    for (const row of find("tbody tr")) {
      button("Show", row).click();
      await drawn();
      const box = canvas.getBoundingClientRect();
      const [clientX, clientY] = [box.left + canvas.clientWidth / 2, box.top + canvas.clientHeight / 2];
      canvas.dispatchEvent(new PointerEvent("pointermove", { clientX, clientY, bubbles: true }));
      await until(() => text(".tip strong") === text("td a", row), text("td a", row));
      found.push(text(".tip strong"), ...foreign());
    }
    return found;
  }

  /** The form of an answer: fields of all kinds, and what is said if one is missing. */
  async function form(root, wanted, expect) {
    for (const add of find("[data-add]", root)) add.click();
    await until(() => one("[data-append]", root), "a list");
    one("[data-append]", root).click();
    await until(() => texts("label", root).some((each) => each.startsWith(plain(`List ${wanted} 1`))), "an item");
    const given = find("input, textarea", root).map((each) => plain(each.value));
    for (const value of [wanted, JSON.stringify({ [wanted]: wanted }, null, 2)]) {
      expect("values", given.includes(plain(value)) ? value : given.join(), value);
    }
    expect("an item", one("fieldset .line .input", root).value);
    expect("flag", texts(".label", root).join(), wanted);
    for (const legend of texts("legend", root)) expect("legend", legend);
    for (const hint of texts(".hint", root)) expect("hint", hint);
    // A property without a title is called by its name, which begins like a sentence.
    expect("labels", texts("label", root).join("\n"), `${wanted[0].toUpperCase()}${wanted.slice(1)} (optional)`);
    expect("names", texts("label", root).join("\n"), `Number ${wanted}`);
    expect("choices", texts("option", root).join("\n"));
    one(".button.primary", root).click();
    await until(() => one("[data-unsent]", root), "what is missing");
    expect("what is missing", text(".field-problem", root), "Enter a number.");
    expect("where it is missing", text(".field:has(> .field-problem) label", root), `Number ${wanted}`);
  }

  const questions = (pairs) => each(pairs, async (id, wanted, expect) => {
    const item = one(`[data-ask="${CSS.escape(id)}"]`);
    still();
    item.click();
    await until(() => item.getAttribute("aria-current") === "true" && text("[data-question] h2") === plain(wanted), id);
    const question = one("[data-question]");
    expect("namespace", texts("dd", question).at(-1));
    expect("run", one("dd a", question).title);
    expect("what is shown", text("[aria-label='Details']", question), `${wanted}: ${JSON.stringify(wanted)}`);
    expect("who was asked", text("tbody strong", question));
    expect("for whom", texts("h3", question).at(-1), `Answer for ${wanted}`);
    const link = await asked(() => button("Link", question).click());
    expect("link", link, `Link for ${wanted}`);
    expect("in whose place", link, `can answer for ${wanted} without`);
    await form(one("form", question), wanted, expect);
  }, ".inbox-list");

  const people = (pairs) => each(pairs, async (secret, wanted, expect) => {
    one("[aria-label='Sign out']").click();
    await until(() => one("#token"), "sign in");
    typed(one("#token"), secret);
    await drawn();
    one("#token").form.requestSubmit();
    await until(() => one(".facts") && one(".who .clip")?.title.startsWith(`${wanted} (`), wanted);
    expect("who", text(".who .clip"));
    expect("credential", text(".facts"), `Credential${wanted}`);
    expect("namespaces", text(".facts"), `Namespaces${wanted}`);
  });

  /** The page of outside approvers, begun anew for each link without loading everything again. */
  async function begun(link) {
    sessionStorage.setItem("ff.link", link);
    await import(new URL(`console/answer.js?${encodeURIComponent(link)}`, document.baseURI));
  }
  const answers = (pairs) => each(pairs, async (link, wanted, expect) => {
    await begun(link);
    await until(() => text("h1") === plain(wanted), wanted);
    expect("approver", text("main p strong"));
    expect("what is shown", text("[aria-label='Details']"), `${wanted}: ${JSON.stringify(wanted)}`);
    await form(one("form"), wanted, expect);
  });
  /** Links that are nothing of the kind. */
  const badLinks = (given) => each(many(given, 20), async (link) => {
    const found = () => one("[role=alert]");
    const before = found();
    await begun(link);
    await until(() => text("h1") === "No open question" && found() && found() !== before, link);
  });

  return {
    answers, badLinks, dumps, executions, families, flows, foreign, labels, moving, people, questions, rows, texts,
    tips, values,
    // for acting.js
    agreed, asked, away, button, chosen, dialog, drawn, each, find, lane, left, near, one, plain, still, many,
    text, typed, until,
  };
})();
