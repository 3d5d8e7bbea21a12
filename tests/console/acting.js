// For tests: what asks back before something is done, what is said when it is, addresses, charts. Goes with looking.js.
Object.assign(looking, (() => {
  const { agreed, asked, away, button, chosen, dialog, drawn, each, find, foreign, lane, left } = looking;
  const { many, near, one, plain, still, text, texts, typed, until } = looking;

  /** The dialogs of all rows of a list, one after the other: what each is called. With `again` it is done, for the
   * reason that stands there, and what is said then is told. */
  async function dialogs(rows, { open, choose, again = null }) {
    const found = { titles: [], labels: [], said: [], strange: [] };
    const all = find(rows);
    still();
    away(one(".shell"));
    for (const row of all) {
      const reason = again && one(again, row).textContent;
      const shown = await dialog(() => (choose ? chosen(row, open, choose) : button(open, row).click()));
      found.titles.push(text("h2", shown));
      found.labels.push(...texts("label", shown));
      found.strange.push(...foreign(shown));
      if (again) found.said.push(await agreed({ reason }));
      else await left();
    }
    found.strange.push(...foreign());
    return found;
  }

  /** Pauses lanes as before, for these reasons. */
  const paused = (token, lanes) => Promise.all(lanes.map(async ([name, reason]) => {
    const headers = { authorization: `Bearer ${token}`, "content-type": "application/json" };
    const body = JSON.stringify({ state: "paused", reason });
    const { ok } = await fetch(`v1/lanes/${encodeURIComponent(name)}/state`, { method: "PUT", headers, body });
    if (!ok) throw new Error(`lane ${name} was not paused`);
  }));

  /** Cancelling and replaying all that fit: both show by what they are found. */
  const bulk = (given) => each(many(given.map(near), 10, "/"), async (word, _, expect) => {
    const told = { search: `ns:${word} kind:${word} lane:${lane(word)} tag:${word}=${word}` };
    typed(one("#q"), told.search);
    await drawn();
    one("#q").form.requestSubmit();
    await drawn();
    for (const verb of ["Cancel", "Replay"]) {
      const said = await asked(() => chosen(one(".page-head"), "Bulk actions", `${verb} all`));
      for (const [name, part] of Object.entries(told)) expect(`${verb} all`, said, `${name} ${part}`);
    }
  }, ".shell");

  /** Makes credentials that are called so, and signs with keys that are. */
  const made = (given) => each(many(given, 10), async (name, _, expect) => {
    still();
    await dialog(() => button("New credential").click());
    typed(one("#c-name"), name);
    await drawn();
    one("dialog form").requestSubmit();
    await until(() => one("dialog [aria-label=Token]"), "a token");
    expect("credential", text("dialog h2"), `${name} created`);
    button("Done", one("dialog")).click();
    await until(() => !one("dialog"), "no dialog");
  }, ".shell");
  const keys = (given) => each(many(given, 10), async (name, _, expect) => {
    await dialog(() => button("Rotate key").click());
    expect("toast", await agreed({ kid: name }), `Signing with key ${name} now.`);
    await until(() => text("dd.mono") === plain(name), name);
  }, ".shell");

  /** Every kind of address that says something: it is shown as a text, or refused. */
  async function addresses(given, known) {
    const refused = () => one("main .problem[role=alert]");
    const at = async (place, test) => {
      location.hash = `#/${place}`;
      await until(test, place);
    };
    const all = (look) => each(many(given, 20).map(([joined]) => [encodeURIComponent(joined), joined]), look);
    // Where there is nothing: how much is found is not the matter here.
    one("#namespace").value = given[0];
    one("#namespace").dispatchEvent(new Event("change", { bubbles: true }));
    const lacking = await all(async (name, wanted) => {
      await at(`executions?q=${name}`, () => one("#q")?.value === wanted && (one(".list .empty, .list-row") || refused()));
      await at(`executions/${name}`, () => !one("#q") && refused());
      await at(`executions?state=${name}`, () => one("#q") && refused());
      await at(`budgets/${name}`, () => text("main .empty") === "No budgets.");
      await at(`executions?within=${name}`, () => one("#within") && one(".list .empty, .list-row"));
      await at(`flows/${name}`, () => !one("#q") && refused());
      await at(name, () => text("h1") === "Page not found");
    });
    const shown = () => one("[role=tabpanel]")?.getAttribute("aria-labelledby");
    const own = `executions/${encodeURIComponent(known)}`;
    lacking.push(...await all(async (name) => {
      await at(`${own}?tab=details`, () => shown() === "tab-details");
      await at(`${own}?tab=${name}`, () => shown() === "tab-data");
    }));
    let last = null;
    lacking.push(...await all(async (name) => {
      const found = () => one(".inbox .problem[role=alert]");
      await at(`approvals/${name}`, () => found() && found() !== last);
      last = found();
    }));
    return lacking;
  }

  /** One round of the overview: its charts with the pointer over them. */
  async function overview() {
    location.hash = "#/somewhere";
    await until(() => text("h1") === "Page not found", "elsewhere");
    location.hash = "#/overview";
    await until(() => find("figure .u-over").length === 6 && one("[data-matter]"), "charts");
    const matters = (kind) => texts(`[data-matter=${kind}] .grow`);
    const found = { strange: foreign(), budget: matters("budget"), worker: matters("worker") };
    for (const figure of find("figure")) {
      const label = figure.ariaLabel.slice(0, figure.ariaLabel.indexOf(":"));
      const over = one(".u-over", figure);
      const box = over.getBoundingClientRect();
      const middle = { clientX: box.left + box.width / 2, clientY: box.top + box.height / 2, bubbles: true };
      over.dispatchEvent(new MouseEvent("mouseenter", middle));
      over.dispatchEvent(new MouseEvent("mousemove", middle));
      await until(() => one(".chart-tip", figure), label);
      found[label] = {
        label: plain(figure.ariaLabel),
        tip: texts(".chart-tip .line", figure),
        legend: texts(".legend span", figure.closest("section")),
      };
      found.strange.push(...foreign());
    }
    return found;
  }

  return { addresses, bulk, dialogs, keys, made, overview, paused };
})());
