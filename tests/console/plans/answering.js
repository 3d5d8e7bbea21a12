// For tests: a page whose answers and whose clock are in the hands of a plan. Every answer waits until the plan lets it
// through, in any order; nothing else makes time pass. What is pressed is noted with what was shown there; what must
// never happen is written to `answering.wrong`.
globalThis.answering = (() => {
  const { seed, chance, below, oneOf, followed, painted, pass, now } = globalThis.stepped;
  const { log, asked, onTheWay, isAct, force, become, hint, cut } = globalThis.way;
  const wrong = [];
  const blame = (sentence) => {
    log.push(`WRONG ${sentence}`);
    if (!wrong.includes(sentence)) wrong.push(sentence);
  };

  // -- what is shown -------------------------------------------------------------------------------------------------

  let dialogs = 0;
  const known = new WeakMap();
  /** The number of the dialog that is open, or nothing. */
  function shownDialog() {
    const element = document.querySelector("dialog");
    if (!element) return null;
    if (!known.has(element)) known.set(element, (dialogs += 1));
    return known.get(element);
  }
  globalThis.way.dialog = shownDialog;
  const textOf = (selector, where = document) => where.querySelector(selector)?.textContent.replace(/\s+/g, " ").trim() ?? null;
  const idOf = (href) => decodeURIComponent((href || "").replace(/^.*#\/executions\//, ""));
  const rowId = (row) => idOf(row.querySelector(".name")?.getAttribute("href"));
  const question = () => document.querySelector("[data-question]");
  const chosenRows = () => [...document.querySelectorAll(".list-row:has(input:checked)")].map(rowId);
  const cursorRow = () => {
    const row = document.querySelector(".list-row.cursor:not(.blank)");
    return row ? rowId(row) : null;
  };
  const isDrawn = (id) => Boolean(document.querySelector(`.list-row .name[href$="${encodeURIComponent(id)}"]`));
  const place = () => location.hash.split("?")[0];
  const snapshot = () => ({
    place: place(),
    hash: location.hash,
    dialog: shownDialog(),
    question: question() && textOf("h2", question()),
    by: document.querySelector("select#by[class=input]")?.value ?? null,
    cursor: cursorRow(),
    chosen: chosenRows(),
    rows: document.querySelectorAll("tbody tr, [data-ask]").length,
  });

  /** Every text that told that something went wrong, when it appeared. */
  const told = [];
  const TELLS = "[role=alert], .toast, .problem";
  const note = (node) => {
    const element = node.nodeType === 1 ? node : node.parentElement;
    for (const each of element ? [element.closest(TELLS), ...element.querySelectorAll(TELLS)] : [])
      if (each?.textContent.trim()) told.push(each.textContent.trim());
  };
  const isTold = () => told.length;
  const watch = () =>
    new MutationObserver((all) => {
      for (const { addedNodes, target, type } of all) {
        if (type === "characterData") note(target);
        else for (const node of addedNodes) note(node);
      }
      if (keeping && !document.querySelector("tbody tr, [data-ask]")) blame("the rows were gone while further ones were read");
    }).observe(document.body, { childList: true, subtree: true, characterData: true });
  let keeping = false;

  // -- what was typed ------------------------------------------------------------------------------------------------

  const typed = new Map();
  const keep = (element) => element?.id && /^(INPUT|TEXTAREA)$/.test(element.tagName) && typed.set(element.id, { text: element.value, place: place(), dialog: shownDialog(), question: question() && textOf("h2", question()) });
  function looseNothing(after) {
    for (const [id, { text, place: where, dialog, question: about }] of typed) {
      const element = document.getElementById(id);
      const ended = dialog && asked.some((each) => each.done && !each.failed && each.dialog === dialog);
      const left = place() !== where || shownDialog() !== dialog || (ended && !element);
      // A question that was answered takes no further answer.
      const answered = about && (textOf("[data-question] .badge") === "closed" || (question() && textOf("h2", question()) !== about));
      if (left || answered || asked.some((each) => each.done && /\/answers?$/.test(each.name))) typed.delete(id);
      else if (element?.value !== text) blame(`after ${after} '${text}' that was typed into ${id} is '${element?.value}'`);
    }
  }

  // -- what was meant ------------------------------------------------------------------------------------------------

  /** Ids by what is shown of them. */
  const world = {};
  /** What presses allow, by the request: as often as it was pressed; in a dialog once for all of it. */
  const allowed = new Map();
  const allow = (name, dialog) => {
    const found = allowed.get(name) ?? { dialogs: new Set(), presses: 0 };
    if (dialog) found.dialogs.add(dialog);
    else found.presses += 1;
    allowed.set(name, found);
  };
  const VERBS = { Cancel: "request-cancel", Terminate: "cancel", Replay: "replay", Fork: "fork", Revoke: "revoke-lease", Send: "signal" };
  let marked = [];
  const markedIn = new Map();

  /** What the dialog asks for when it is confirmed. */
  function ofDialog() {
    const title = textOf("#dialog-title") ?? "";
    const about = textOf("[data-about]")?.split(" ").pop();
    const many = /^(Cancel|Replay) \d+ executions?\?$/.exec(title);
    const all = /^(Cancel|Replay) all matches$/.exec(title);
    const lane = /^(\w+) lane (.+)\?$/.exec(title);
    const own = /^(Reset|Limits of) (.+?)(?: of \S+)?\??$/.exec(title);
    const start = /^Start (.+) now\?$/.exec(title);
    const forget = /^Delete (.+)\?$/.exec(title);
    if (many) return (markedIn.get(shownDialog()) ?? []).map((id) => `POST /v1/executions/${id}/${VERBS[many[1]]}`);
    if (all) return [`POST /v1/bulk/${all[1].toLowerCase()}`];
    if (lane) return [`PUT /v1/lanes/${lane[2]}/state`];
    if (start) return [`POST /v1/schedules/${world.schedules[start[1]]}/trigger`];
    if (forget) return [`DELETE /v1/schedules/${world.schedules[forget[1]]}`];
    if (own) return [own[1] === "Reset" ? `POST /v1/budgets/${world.budgets[own[2]]}/reset` : `PUT /v1/budgets/${world.budgets[own[2]]}/limits`];
    if (title === "Cancel this flow?") return [`POST /v1/flows/${about}/cancel`];
    if (title === "Change the priority?") return [`PUT /v1/executions/${about}/priority`];
    if (title === "New credential") return ["POST /v1/admin/credentials"];
    if (title === "New schedule") return [`PUT /v1/schedules/${document.getElementById("schedule-name")?.value}`];
    const edited = /^(Edit|Backfill) (.+)$/.exec(title);
    if (edited) return [edited[1] === "Edit" ? `PUT /v1/schedules/${edited[2]}` : `POST /v1/schedules/${edited[2]}/backfill`];
    const verb = /^(Cancel|Terminate|Replay|Fork) this execution\?$/.exec(title)?.[1] ?? (title === "Revoke the lease?" ? "Revoke" : null);
    if (verb) return [`POST /v1/executions/${about}/${VERBS[verb]}`];
    const here = `POST /v1/executions/${idOf(place())}`;
    if (/^Start again/.test(title)) return [`${here}/fork`];
    if (title === "Send a signal?") return [`${here}/signal`];
    if (title === "Start an execution")
      return ["POST /v1/executions", `POST /v1/kinds/${document.getElementById("field-kind")?.value.trim()}/start`];
    return [];
  }

  /** What a press on an element asks for, as far as it is shown. */
  function meant(element) {
    const text = element.textContent.replace(/\s+/g, " ").trim();
    const schedule = element.closest("[data-schedule]")?.dataset.schedule ?? (/^#\/schedules\/(.+)$/.exec(place()) && decodeURIComponent(place().slice(12)));
    if (document.querySelector("main.alone") && (text === "Yes" || text === "No")) return ["POST /v1/answers"];
    const ask = question() && world.questions[textOf("h2", question())];
    if (element.closest("dialog")) return element.matches("[type=submit]") ? ofDialog() : [];
    if (schedule && (text === "Pause" || text === "Resume")) return [`POST /v1/schedules/${world.schedules[schedule]}/${text.toLowerCase()}`];
    if (ask && element.closest("[data-question]") && (text === "Yes" || text === "No")) {
      answers.push({ ask, by: document.querySelector("select#by[class=input]")?.value || textOf("[data-question] [data-by]") });
      return [`POST /v1/asks/${ask}/answer`];
    }
    if (ask && text === "Link") return [`POST /v1/asks/${ask}/link`];
    return [];
  }
  const answers = [];

  let pressed = null;
  /** Whether further rows were asked for than a page that is opened shows. */
  let widened = false;
  /** Note what somebody is about to press. */
  function press(x, y) {
    const element = document.elementFromPoint(x, y)?.closest("button, a, label, select, input, [role=tab]");
    if (!element || element.disabled) {
      log.push(`${now()} ms: press nothing at ${x} ${y}: ${element?.outerHTML ?? document.elementFromPoint(x, y)?.outerHTML.slice(0, 200)}`);
      return;
    }
    marked = chosenRows();
    pressed = element;
    log.push(`${now()} ms: press ${element.textContent.trim() || element.id}`);
    if (element.closest(".list")) ending = false;
    if (element.closest(".pick")) everChosen.add(rowId(element.closest(".list-row")));
    const dialog = shownDialog();
    const found = meant(element);
    for (const name of found) allow(name, /credentials$/.test(name) ? null : dialog);
    if (dialog && element.matches("[type=submit]")) uncounted(dialog);
    const more = /^(More|Older)$/.test(element.textContent.trim()) && !element.closest(".menu");
    widened ||= more;
    keeping = more && Boolean(document.querySelector("tbody tr, [data-ask]"));
  }
  /** What a dialog promises to do at most. */
  const promised = new Map();
  function uncounted(dialog) {
    const preview = textOf("strong[data-preview]");
    if (preview && !preview.startsWith("At least")) promised.set(dialog, Number(preview.replaceAll(",", "")));
  }

  /** Look at everything that was asked for. */
  function account() {
    const done = new Map();
    for (const each of asked.filter(isAct)) {
      const may = allowed.get(each.name);
      if (!may) blame(`nobody has pressed for ${each.name}`);
      if (!each.done) continue;
      // Who writes something else into a form means something else.
      const act = `${each.name} ${JSON.stringify(each.body)}`;
      const found = done.get(act) ?? { name: each.name, keys: new Set() };
      found.keys.add(each.key ?? each.number);
      done.set(act, found);
    }
    for (const [act, { name, keys }] of done) {
      const may = allowed.get(name);
      const most = may ? may.presses + may.dialogs.size : 0;
      if (may && keys.size > most) blame(`${act} was done ${keys.size} times, and pressed for ${most} times`);
    }
    for (const [dialog, most] of promised) {
      const batches = asked.filter((each) => each.dialog === dialog && each.count !== undefined);
      const sum = [...new Map(batches.map((each) => [each.key, each.count])).values()].reduce((all, each) => all + each, 0);
      if (sum > most) blame(`${sum} were acted on, and ${most} were shown`);
    }
    for (const each of asked.filter(({ name }) => /\/answer$/.test(name)))
      if (each.body.by && !answers.some(({ ask, by }) => each.name.includes(ask) && (!by || by === each.body.by)))
        blame(`${each.name} was given for ${each.body.by}, who was not chosen`);
    for (const each of asked) if (each.failed && !each.judged && each.toldBefore === isTold()) blame(`nobody was told that ${each.name} went wrong (${each.fate})`);
  }

  // -- moving on -----------------------------------------------------------------------------------------------------

  /** Compare what is shown before something arrived with what is shown after it. */
  function compare(before, arrived) {
    const after = snapshot();
    const what = arrived ? `the answer to ${arrived.name} (${arrived.fate})` : "a while";
    const acted = arrived && isAct(arrived);
    // Limits that nobody has changed are read, and not written.
    const inDialog = acted || (arrived?.method === "GET" && /\/budgets\/[^/]+$/.test(arrived.name));
    const ownDialog = inDialog && arrived.dialog !== null && arrived.dialog === before.dialog;
    // Of many, those that were refused are counted, and told when all are answered.
    const answered = arrived && (!arrived.failed || (arrived.status >= 400 && arrived.status < 500));
    if (before.dialog && after.dialog !== before.dialog && !(ownDialog && answered)) blame(`${what} closed a dialog that it is not about`);
    if (before.place !== after.place && !ownDialog) blame(`${what} led from ${before.place} to ${after.place}`);
    if (before.place === after.place && before.question && after.question !== before.question) blame(`${what} showed '${after.question}' instead of '${before.question}'`);
    if (before.by !== null && after.by && after.by !== before.by && before.question === after.question) blame(`${what} chose ${after.by} instead of '${before.by}'`);
    if (before.hash !== after.hash) ending = false;
    if (!ending && before.hash === after.hash && before.cursor && after.cursor && after.cursor !== before.cursor && isDrawn(before.cursor))
      blame(`${what} moved the cursor to another row`);
    if (before.hash === after.hash && !before.cursor && after.cursor) blame(`${what} set a cursor`);
    if (after.chosen.some((id) => !everChosen.has(id))) blame(`${what} chose rows`);
    const mayEnd = new Set(acted ? (markedIn.get(arrived.dialog) ?? []) : []);
    const lostRow = before.chosen.find((id) => !after.chosen.includes(id) && isDrawn(id) && !mayEnd.has(id));
    if (before.hash === after.hash && lostRow && !ownDialog) blame(`${what} took back what was chosen`);
    looseNothing(what);
    const token = arrived?.done && !arrived.failed && /credentials$/.test(arrived.name) && arrived.method === "POST";
    if (token && !document.querySelector("dialog input[aria-label=Token]")) blame("a token was never shown");
    // Who may press again must know what became of the first try.
    const submit = document.querySelector("dialog [type=submit]:not([disabled])");
    const open = submit && onTheWay().some((each) => isAct(each) && each.dialog === after.dialog);
    if (open) blame(`${what} offers to try again while the first try is on its way`);
  }
  const everChosen = new Set();

  /** One answer arrives. */
  async function arrive(one) {
    const before = snapshot();
    one.toldBefore = isTold();
    log.push(`${now()} ms: ${one.number} ${one.name} arrives (${one.fate})`);
    await one.deliver();
    compare(before, one);
    if (!/^(given|twice|slow)$/.test(one.fate)) goesToEnd(one);
  }
  /** What could not be read is told; the way to the end is over then, as soon as that is drawn. */
  const goesToEnd = ({ name }) => {
    if (/\/search\/executions$/.test(name) && ending) ending = "until it is drawn";
  };
  async function wait(ms) {
    const before = snapshot();
    const failed = asked.filter((each) => each.failed && !each.judged && !onTheWay().some(({ dialog }) => dialog && dialog === each.dialog));
    for (const each of asked) if (!each.over) each.toldBefore ??= isTold();
    const open = onTheWay();
    const stops = ending === "until it is drawn";
    log.push(`${now()} ms: ${ms} ms pass`);
    await pass(ms);
    for (const each of open) if (each.over && isAct(each)) each.toldBefore ??= isTold();
    // What came too late counts as an answer of its dialog.
    compare(before, open.find((each) => each.over && isAct(each)));
    for (const each of failed) {
      each.judged = true;
      if (each.toldBefore === isTold()) blame(`nobody was told that ${each.name} went wrong (${each.fate})`);
    }
    if (stops) ending = false;
    open.filter(({ over }) => over).forEach(goesToEnd);
  }

  /** Something happens, or nothing does; never more than so many milliseconds. */
  async function step(most = Infinity, turns = 3) {
    let left = most;
    for (let turn = below(turns + 1); turn > 0; turn -= 1) {
      const open = onTheWay();
      if (open.length && chance() < 0.6) await arrive(oneOf(open));
      else {
        // Now and then longer than the console waits for an answer.
        const ms = Math.min(left, chance() < 0.03 ? 13_000 : oneOf([20, 20, 40, 120, 400, 800]));
        left -= ms;
        await wait(ms);
      }
    }
  }

  /** What is on its way and called so arrives, and what is asked for then: a list is read page by page. */
  async function arriveAll(name, most) {
    for (let count = 0; count < most; count += 1) {
      const next = onTheWay().find((each) => new RegExp(name).test(each.name));
      if (!next) return;
      await arrive(next);
    }
  }
  /** Everything arrives, and what is asked for then, until nothing happens; in at most so many milliseconds. */
  async function quiet(most = 5_000) {
    for (let left = most, still = 0; left > 0 && still < 2; ) {
      const [next] = onTheWay();
      if (next) await arrive(next);
      else {
        still = most < 5_000 ? 0 : still + 1;
        await wait(Math.min(left, 50));
        left -= 50;
      }
    }
  }

  /** From here on everything arrives as it was given, also what is still on its way. */
  async function calm() {
    become({ given: 1 });
    keeping = false;
    for (let still = 0, turn = 0; still < 2 && turn < 200; turn += 1) {
      const [next] = onTheWay();
      if (next) {
        still = 0;
        await arrive(next);
      } else {
        still += 1;
        await wait(800);
      }
    }
    const found = Number((textOf("[data-found]") ?? "").replace(/\D/g, ""));
    if (ending && endOf === location.hash && !document.querySelector("dialog") && found && Number(document.querySelector(".list-row.cursor")?.ariaPosInSet) !== found)
      blame(`End did not go to the end, which is ${found}, but to ${document.querySelector(".list-row.cursor")?.ariaPosInSet}`);
    for (const each of asked) if (each.settled && !each.done) await each.settled();
    account();
  }

  /** Durations go on while nothing happens; everything else that is said has to be the same. */
  const TIMES = /(\d+([.,]\d+)?\s?(ms|s|min|h|d|d ago)\b(\s?\d+\s?(ms|s|min|h)\b)*|just now|in a moment)/g;
  const said = async () => {
    // Bars come and go above a list, which then has room for more rows or for fewer.
    if (document.querySelector(".list")) {
      await painted();
      await pass(100);
    }
    const parts = place().startsWith("#/approvals")
      ? [...document.querySelectorAll("[data-ask]")]
      : [...document.querySelectorAll("main h1, main thead, main tbody tr, main .list-row, main [data-budget], main .tile, main [role=tabpanel], main .sentence")];
    // Servers share what they have counted for a moment of their own.
    const counted = place().startsWith("#/overview") ? /\d+/g : /(?!)/g;
    return parts.map((each) => each.innerText.replaceAll(TIMES, "~").replaceAll(counted, "#").replace(/\s+/g, " ").trim());
  };

  /** Forget the page before; what is done there is accounted for. */
  function begin(number, weights) {
    seed(number);
    log.length = 0;
    asked.length = 0;
    allowed.clear();
    answers.length = 0;
    typed.clear();
    everChosen.clear();
    markedIn.clear();
    promised.clear();
    widened = false;
    ending = false;
    become(weights);
  }

  /** What was typed is left, and narrows nothing any more; nothing is chosen in a list, which is at its top. */
  async function clear() {
    typed.clear();
    document.activeElement?.blur();
    const box = document.querySelector(".list");
    if (box) {
      document.body.dispatchEvent(new KeyboardEvent("keydown", { key: "Escape", bubbles: true }));
      box.scrollTop = 0;
      await painted();
    }
    for (const each of document.querySelectorAll("main [data-search], main .search input")) {
      each.value = "";
      each.dispatchEvent(new InputEvent("input", { bubbles: true }));
    }
    await pass(1_000);
  }

  /** What is said with as many rows as there were, if there are as many. */
  async function widen(amount) {
    for (;;) {
      const now = await said();
      const more = [...document.querySelectorAll("main button")].find(({ textContent }) => /^(More|Older)$/.test(textContent.trim()));
      if (now.length >= amount || !more || more.closest(".menu")) return now;
      more.click();
      await calm();
    }
  }

  /** Go to another page. */
  async function go(hash) {
    if (location.hash === hash) return;
    const there = new Promise((done) => {
      addEventListener("hashchange", done, { once: true });
    });
    location.hash = hash;
    await there;
    await followed();
  }

  /** What can be pressed here: where, and what it is. */
  const PRESSED = "button, [role=tab], [data-ask], .pick, select, input:not([type=checkbox]):not([type=date]):not([type=datetime-local]), textarea";
  const LEFT = ".side *, [aria-label^=Copy], .copy, .json *, .jsons *, [data-fold], .tools *, #namespace-here";
  const IGNORED = /^(Sign out|Sign in|Rotate key…|Revoke…|Columns|Views|Save|JSON|Light|Dark|System)/;
  function candidates() {
    const where = document.querySelector("dialog") ?? document.querySelector(".sheet") ?? document.querySelector("main");
    if (!where) return [];
    const found = [];
    for (const element of where.querySelectorAll(PRESSED)) {
      const text = element.textContent.replace(/\s+/g, " ").trim();
      const box = element.getBoundingClientRect();
      const [x, y] = [box.x + box.width / 2, box.y + box.height / 2];
      if (element.disabled || element.readOnly || element.matches(LEFT) || IGNORED.test(text) || !box.width) continue;
      if (x < 0 || y < 0 || x > innerWidth || y > innerHeight) continue;
      const hit = document.elementFromPoint(x, y);
      if (!hit || !(element === hit || element.contains(hit))) continue;
      const tag = element.tagName.toLowerCase();
      const weight = weightOf(element);
      found.push({ x, y, tag, id: element.id, type: element.type ?? "", text: element.matches("dialog [type=submit]") ? "submit" : text.slice(0, 40), weight, options: tag === "select" ? [...element.options].map(({ value }) => value) : [] });
    }
    return found;
  }
  /** How often it is pressed, beside others. */
  function weightOf(element) {
    const text = element.textContent.trim();
    if (element.matches("dialog [type=submit]")) return 12;
    if (element.closest("dialog")) return element.matches("input, textarea, select") ? 2 : 1;
    if (element.matches("[data-question] select")) return 8;
    if (text === "Link") return 0.5;
    if (element.matches("[data-question] .primary, [data-question] .danger, .bulk .button, [data-schedule] .button")) return 6;
    if (/…$/.test(text) || /^(More|Older|Bulk actions|Change|Pause|Resume)$/.test(text)) return 5;
    if (element.matches("[data-question] textarea, [role=menuitem]")) return 3;
    if (element.matches(".pick, [data-ask]")) return 1;
    return 0.4;
  }
  /** It was pressed: a dialog that is open now is about the rows that were chosen then. */
  function released(once) {
    const dialog = shownDialog();
    if (dialog && !markedIn.has(dialog)) markedIn.set(dialog, marked);
    const now = chosenRows();
    const row = pressed?.isConnected && pressed.closest(".pick") && rowId(pressed.closest(".list-row"));
    if (row && once && (now.includes(row) === marked.includes(row) || now.filter((id) => id !== row).join() !== marked.filter((id) => id !== row).join()))
      blame("another row was chosen than the one that was pressed");
    for (const id of now) everChosen.add(id);
    pressed = null;
  }

  /** Somebody is about to press Enter: in a dialog that confirms it, in the list it opens the row. */
  let keyed = null;
  /** Whether the cursor is on its way to the end of the list. */
  let ending = false;
  /** The list it is the end of. */
  let endOf = "";
  function key(name) {
    if (!document.querySelector("dialog")) document.activeElement?.blur();
    const submit = document.querySelector("dialog [type=submit]:not([disabled])");
    const isTyping = document.activeElement?.matches("dialog input");
    if (name === "Enter" && submit && isTyping) {
      for (const each of ofDialog()) allow(each, /credentials$/.test(each) ? null : shownDialog());
      uncounted(shownDialog());
    }
    const rows = [...document.querySelectorAll(".list-row:not(.blank)")].sort((a, b) => Number(a.ariaPosInSet) - Number(b.ariaPosInSet)).map(rowId);
    log.push(`${now()} ms: ${name}, cursor at ${cursorRow()}, ${place()}, ${textOf("[data-found]")}`);
    if (!document.querySelector("dialog, .sheet") && /^(j|k|End|Home|Page|Escape)/.test(name)) ending = name === "End";
    endOf = location.hash;
    keyed = document.querySelector("dialog, .sheet") ? null : { name, rows, cursor: cursorRow(), chosen: chosenRows() };
  }
  async function keyDone() {
    await followed();
    keep(document.activeElement);
    if (!keyed) return;
    const { name, rows, cursor, chosen } = keyed;
    keyed = null;
    const at = rows.indexOf(cursor);
    const wanted = { j: rows[at + 1], k: rows[at - 1] }[name];
    if (at >= 0 && wanted && cursorRow() !== wanted) blame(`${name} went to another row than the next one`);
    if (name === "Enter" && at >= 0 && idOf(location.hash) !== cursor) blame("Enter opened another row than the one under the cursor");
    const now = chosenRows();
    if (name === "x" && at >= 0 && (now.includes(cursor) === chosen.includes(cursor) || now.filter((id) => id !== cursor).join() !== chosen.filter((id) => id !== cursor).join()))
      blame("x chose another row than the one under the cursor");
    for (const id of now) everChosen.add(id);
  }

  return {
    wrong, log, world, asked, begin, press, released, key, keyDone, keep: () => keep(document.activeElement), step, wait, arriveAll, quiet, force, become, calm, hint, cut, said, go, clear, isWidened: () => widened, widen, candidates, snapshot, watch, account, followed, onTheWay,
  };
})();
