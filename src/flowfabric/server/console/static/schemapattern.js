// Patterns of schemas, matched in bounded time: a browser's own matcher may take for ever over one that somebody chose
// for that. A pattern is followed from all places of the text at once, as the server does it (sdk/schemas/patterns.py). What is
// not followed here is left to the server.

const MOST_STEPS = 200_000;
const isWord = (one) => (one >= "a" && one <= "z") || (one >= "A" && one <= "Z") || (one >= "0" && one <= "9") || one === "_";
const isDigit = (one) => one >= "0" && one <= "9";
const isSpace = (one) => one.trim() === "";
/** Which characters beyond ASCII are digits or letters is for the server to say: here they may be anything. */
const isBeyond = (one) => one > "\u007f";
/** What stands behind a backslash and means many characters. */
const CLASSES = {
  d: isDigit,
  D: (one) => !isDigit(one),
  w: isWord,
  W: (one) => !isWord(one),
  s: isSpace,
  S: (one) => !isSpace(one),
};
const LETTERS = { n: "\n", r: "\r", t: "\t", f: "\f", v: "\v" };

class NotFollowed extends Error {}

/** Reads a pattern into a function from places to places. */
class Reader {
  constructor(pattern) {
    this.left = [...pattern];
  }

  peek = () => this.left[0];

  take = () => {
    if (!this.left.length) throw new NotFollowed();
    return this.left.shift();
  };

  whole() {
    const found = this.choices();
    if (this.left.length) throw new NotFollowed();
    return found;
  }

  choices() {
    const all = [this.sequence()];
    while (this.peek() === "|") {
      this.take();
      all.push(this.sequence());
    }
    if (all.length === 1) return all[0];
    return (run, places) => new Set(all.flatMap((each) => [...each(run, places)]));
  }

  sequence() {
    const parts = [];
    while (this.left.length && this.peek() !== "|" && this.peek() !== ")") parts.push(this.repeated(this.atom()));
    return (run, places) => parts.reduce((from, part) => (from.size ? part(run, from) : from), places);
  }

  atom() {
    const one = this.take();
    if (one === "^") return (run, places) => new Set(places.has(0) ? [0] : []);
    if (one === "$") return (run, places) => new Set(places.has(run.text.length) ? [run.text.length] : []);
    if (one === "(") {
      if (this.peek() === "?") {
        this.take();
        if (this.take() !== ":") throw new NotFollowed();
      }
      const found = this.choices();
      if (this.take() !== ")") throw new NotFollowed();
      return found;
    }
    if ("*+?{".includes(one)) throw new NotFollowed();
    const fits = one === "[" ? this.set() : one === "." ? (each) => each !== "\n" : one === "\\" ? this.escaped() : (each) => each === one;
    return (run, places) => {
      run.step(places.size);
      return new Set([...places].filter((at) => at < run.text.length && fits(run.text[at])).map((at) => at + 1));
    };
  }

  escaped() {
    const found = this.escape();
    return typeof found === "string" ? (each) => each === found : found;
  }

  escape() {
    const one = this.take();
    if (Object.hasOwn(CLASSES, one)) {
      return (each) => isBeyond(each) || CLASSES[one](each);
    }
    if (Object.hasOwn(LETTERS, one)) return LETTERS[one];
    if (isWord(one)) throw new NotFollowed();
    return one;
  }

  set() {
    const negated = this.peek() === "^";
    if (negated) this.take();
    const tests = [];
    let classes = false;
    for (let first = true; first || this.peek() !== "]"; first = false) {
      let one = this.take();
      if (one === "[") throw new NotFollowed();
      if (one === "\\") one = this.escape();
      if (typeof one !== "string") {
        classes = true;
        tests.push(one);
      } else if (this.peek() === "-" && this.left[1] !== "]") {
        this.take();
        let last = this.take();
        if (last === "\\") last = this.escape();
        if (typeof last !== "string") throw new NotFollowed();
        tests.push((each) => each.codePointAt(0) >= one.codePointAt(0) && each.codePointAt(0) <= last.codePointAt(0));
      } else tests.push((each) => each === one);
    }
    this.take();
    return (each) => (classes && isBeyond(each)) || tests.some((test) => test(each)) !== negated;
  }

  repeated(part) {
    const bounds = this.bounds();
    if (!bounds) return part;
    if ("?+".includes(this.peek() ?? " ")) {
      if (this.take() === "+") throw new NotFollowed();
    }
    const [least, most] = bounds;
    return (run, places) => {
      let from = places;
      for (let round = 0; round < least && from.size; round += 1) {
        run.step(1);
        from = part(run, from);
      }
      const found = new Set(from);
      for (let round = least; round < most && from.size; round += 1) {
        run.step(1);
        from = new Set([...part(run, from)].filter((at) => !found.has(at)));
        for (const at of from) found.add(at);
      }
      return found;
    };
  }

  bounds() {
    const one = this.peek();
    const known = { "*": [0, Infinity], "+": [1, Infinity], "?": [0, 1] }[one];
    if (known) {
      this.take();
      return known;
    }
    if (one !== "{") return null;
    this.take();
    let text = "";
    while (this.peek() !== "}") text += this.take();
    this.take();
    const [least, most = least, ...more] = text.split(",");
    if (more.length || text === "" || text === "," || ![...text].every((each) => isDigit(each) || each === ",")) throw new NotFollowed();
    return [Number(least), text.endsWith(",") ? Infinity : Number(most)];
  }
}

/** Whether a pattern is found in a text; yes if that is for the server to say. */
export function matches(pattern, given) {
  let steps = MOST_STEPS;
  const run = {
    text: [...given],
    step: (count) => {
      steps -= 1 + count;
      if (steps < 0) throw new NotFollowed();
    },
  };
  try {
    const follow = new Reader(pattern).whole();
    return follow(run, new Set(Array.from({ length: run.text.length + 1 }, (_, at) => at))).size > 0;
  } catch (error) {
    if (error instanceof NotFollowed || error instanceof RangeError) return true;
    throw error;
  }
}
