// Fills forms as people do: something, nothing, or nonsense. Runs in the page.
(async ({ asked, seed }) => {
  const base = new URL("console/", document.baseURI);
  const { html, render } = await import(new URL("dom.js", base));
  const { AnswerForm } = await import(new URL("answerform.js", base));
  let state = seed;
  const random = () => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return state / 2 ** 32;
  };
  const one = (list) => list[Math.floor(random() * list.length)];
  // Not a timer: browsers hold back those that follow one another.
  const { port1: there, port2: here } = new MessageChannel();
  const drawn = () =>
    new Promise((done) => {
      here.onmessage = done;
      there.postMessage(null);
    });
  const TEXTS = {
    "date": ["2030-12-31", "1999-02-03"],
    "date-time": ["2030-12-31T12:00", "2030-06-01T23:59:58"],
    "time": ["12:30", "23:59:59"],
    "duration": ["P1DT2H", "PT5M", "one day"],
    "uuid": ["0f6a1a3c-6f0e-4d8e-9b54-2d1f8a7c9e10", "0f6a"],
    "decimal": ["12.50", "3", "-1e3", "12,5", "123456789.123"],
    "base64": ["aGFsbG8=", "?"],
  };
  const PLAIN = { integer: ["3", "5", "12", "-4", "1e2", "7.5", "x", "99999999999999999999"], number: ["0.5", "1", "-2.25", "ten"], json: ['{"a": 1}', "[1, 2", "3", '"x"'], name: ["a", "b", "1", "2"], string: ["AB-12", "abc", "ab", "a longer text with ü", " "] };
  const type = (field, text) => {
    const kind = field.tagName === "TEXTAREA" ? HTMLTextAreaElement : HTMLInputElement;
    Object.getOwnPropertyDescriptor(kind.prototype, "value").set.call(field, text);
    field.dispatchEvent(new Event("input", { bubbles: true }));
  };
  const fill = async (place, given) => {
    for (let round = 0; round < 3; round += 1) {
      for (const button of place.querySelectorAll("[data-add], [data-append]")) if (random() < 0.4) button.click();
      await drawn();
      for (const choice of place.querySelectorAll("select[data-kind=union]"))
        if (choice.value === "-1" && random() < 0.8) {
          choice.value = one([...choice.options]).value;
          choice.dispatchEvent(new Event("change", { bubbles: true }));
        }
      await drawn();
    }
    for (const field of place.querySelectorAll("[data-kind]")) {
      const { kind, format } = field.dataset;
      if (random() < given) continue;
      if (kind === "boolean") field.click();
      else if (kind === "choice") {
        field.value = one([...field.options]).value;
        field.dispatchEvent(new Event("change", { bubbles: true }));
      } else if (kind !== "union") type(field, one(TEXTS[format] || PLAIN[kind] || PLAIN.string));
    }
    await drawn();
  };
  const send = async (place) => {
    const buttons = [...place.querySelectorAll("form > .line:last-child button")];
    one(buttons).click();
    await drawn();
    await drawn();
  };
  const found = [];
  for (const [index, { schema, approves, value }] of asked.entries()) {
    for (const way of ["empty", "some", "most", "prefilled"]) {
      const place = document.createElement("div");
      document.body.append(place);
      let answer;
      const onAnswer = (given) => {
        answer = JSON.stringify(given);
      };
      const wanted = way === "prefilled" ? value : undefined;
      render(html`<${AnswerForm} ...${{ schema, approves, onAnswer, value: wanted }} />`, place);
      await drawn();
      if (way === "some") await fill(place, 0.5);
      if (way === "most") await fill(place, 0.05);
      await send(place);
      const told = [...place.querySelectorAll(".field-problem")].map((each) => each.textContent);
      const unsent = Boolean(place.querySelector("[data-unsent]"));
      found.push({ index, way, answer: answer ?? null, told, unsent });
      render(null, place);
      place.remove();
    }
  }
  return found;
})
