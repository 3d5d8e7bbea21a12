// For tests: chance that follows from a number, and a clock that goes on only when it is told to.
globalThis.stepped = (() => {
  const real = { fetch: fetch.bind(globalThis), requestAnimationFrame: requestAnimationFrame.bind(globalThis), Date };

  // -- chance --------------------------------------------------------------------------------------------------------

  let state = 1;
  const seed = (number) => {
    state = number;
  };
  const chance = () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4_294_967_296;
  };
  const below = (number) => Math.floor(chance() * number);
  const oneOf = (all) => all[below(all.length)];
  const weighed = (weights) => {
    let left = chance() * Object.values(weights).reduce((sum, each) => sum + each, 0);
    for (const [name, weight] of Object.entries(weights)) {
      left -= weight;
      if (left < 0) return name;
    }
    return Object.keys(weights)[0];
  };

  // -- the clock -----------------------------------------------------------------------------------------------------

  const began = real.Date.now();
  let passed = 0;
  let numbers = 0;
  const timers = new Map();
  const later = (act, ms) => {
    numbers += 1;
    timers.set(numbers, { number: numbers, at: passed + Math.max(1, Number(ms) || 0), act });
    return numbers;
  };
  const forget = (number) => {
    timers.delete(number);
  };
  globalThis.setTimeout = (act, ms, ...given) => later(() => act(...given), ms);
  globalThis.clearTimeout = forget;
  globalThis.setInterval = (act, ms, ...given) => {
    let number = 0;
    const again = () => {
      timers.set(number, { number, at: passed + Math.max(1, ms), act: again });
      act(...given);
    };
    number = later(again, ms);
    return number;
  };
  globalThis.clearInterval = forget;
  globalThis.requestAnimationFrame = (act) => later(() => act(passed), 16 - (passed % 16));
  globalThis.cancelAnimationFrame = forget;
  performance.now = () => passed;
  globalThis.Date = class extends real.Date {
    constructor(...given) {
      super(...(given.length ? given : [began + passed]));
    }
    static now() {
      return began + passed;
    }
  };
  AbortSignal.timeout = (ms) => {
    const own = new AbortController();
    later(() => own.abort(new DOMException("too late", "TimeoutError")), ms);
    return own.signal;
  };

  const channel = new MessageChannel();
  const waiting = [];
  channel.port1.onmessage = () => waiting.shift()();
  /** The address that the page has been told of; browsers tell it later than they change it. */
  let knownHash = location.hash;
  addEventListener("hashchange", () => {
    knownHash = location.hash;
  });
  /** Whatever follows from what was done has happened. */
  const followed = async () => {
    for (let turn = 0, most = 50; turn < 3 && most > 0; turn += knownHash === location.hash, most -= 1)
      await new Promise((done) => {
        waiting.push(done);
        channel.port2.postMessage(null);
      });
    // Or it was changed without a word.
    knownHash = location.hash;
  };

  /** The browser has laid out what is there, and told those who watch its size. */
  const painted = () =>
    new Promise((done) => {
      real.requestAnimationFrame(() => real.requestAnimationFrame(done));
    });

  /** Let time pass. */
  async function pass(ms) {
    const end = passed + ms;
    for (;;) {
      const next = [...timers.values()].filter(({ at }) => at <= end).sort((a, b) => a.at - b.at || a.number - b.number)[0];
      if (!next) break;
      passed = Math.max(passed, next.at);
      if (timers.get(next.number) === next) timers.delete(next.number);
      next.act();
      await followed();
    }
    passed = end;
    await followed();
  }

  return { real, seed, chance, below, oneOf, weighed, followed, painted, pass, now: () => passed };
})();
