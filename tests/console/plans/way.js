// For tests: the way between a page and its server. Every answer waits until it is let through; what becomes of it is
// drawn when it is asked for: some are lost, doubled, broken off or replaced on the way.
globalThis.way = (() => {
  const { real, followed, now, weighed } = globalThis.stepped;
  /** What was done and what arrived, in this order: to be read when something went wrong. */
  const log = [];
  const way = { dialog: () => null };

  /** What becomes of an answer. Only what is "given" and "twice" arrives as the server has given it. */
  let fates = { given: 1 };
  /** What becomes of the next answers to requests that are called so. */
  const forced = [];
  const force = (name, fate) => forced.push([new RegExp(name), fate]);
  const become = (weights) => {
    forced.length = 0;
    fates = weights;
  };
  /** At most so many rows on a page of what is listed. */
  const FEW = { "search/executions": 8, "search/flows": 1, asks: 2, "admin/audit": 3 };
  const BATCH = 6;
  const asked = [];
  const streams = new Set();
  /** Requests reach the server one after the other. */
  let line = Promise.resolve();
  const sent = (url, options) => {
    const own = line.then(async () => {
      const response = await real.fetch(url, options);
      return { status: response.status, text: await response.text() };
    });
    line = own.catch(() => null);
    return own;
  };

  /** The same request for few rows. */
  function small(address, options) {
    const url = new URL(address);
    const few = FEW[url.pathname.replace("/v1/", "")];
    if (few && Number(url.searchParams.get("limit")) > few) url.searchParams.set("limit", few);
    if (!/\/v1\/bulk\//.test(url.pathname)) return [url, options];
    const body = JSON.parse(options.body);
    return [url, { ...options, body: JSON.stringify({ ...body, limit: Math.min(body.limit, BATCH) }) }];
  }

  const read = ({ status, text }) => ({
    ok: status < 400,
    status,
    headers: new Headers(),
    json: async () => JSON.parse(text),
    text: async () => text,
    arrayBuffer: async () => new TextEncoder().encode(text).buffer,
  });
  const broken = ({ status }) => ({
    ...read({ status, text: "" }),
    json: async () => {
      throw new SyntaxError("Unexpected end of JSON input");
    },
    arrayBuffer: async () => {
      throw new TypeError("network error");
    },
  });

  /** A stream of hints: the plan says when something has changed. */
  function follow(options) {
    const own = {};
    const body = new ReadableStream({
      start(to) {
        own.say = (text) => to.enqueue(new TextEncoder().encode(text));
        own.cut = () => {
          streams.delete(own);
          to.error(new TypeError("network error"));
        };
      },
    });
    streams.add(own);
    options.signal?.addEventListener("abort", () => streams.has(own) && own.cut());
    return Promise.resolve({ ok: true, status: 200, headers: new Headers(), body });
  }
  const hint = async () => {
    for (const each of streams) each.say("event: changed\ndata: {}\n\n");
    await followed();
  };
  const cut = async () => {
    for (const each of [...streams]) each.cut();
    await followed();
  };

  const isAct = ({ method, body, name }) => method !== "GET" && !body?.dry_run && !/\/answers\/look$/.test(name);
  /** What a request does, in words that a press can be compared with. */
  const named = (method, path) => `${method} ${decodeURIComponent(path)}`;

  globalThis.fetch = (address, options = {}) => {
    if (!new URL(address, location).pathname.startsWith("/v1/")) return real.fetch(address, options);
    if (options.headers?.accept === "text/event-stream") return follow(options);
    const [url, meant] = small(new URL(address, location), options);
    const body = meant.body ? JSON.parse(meant.body) : null;
    const method = meant.method || "GET";
    const key = meant.headers?.["idempotency-key"];
    const one = { number: asked.length, method, name: named(method, url.pathname), body, key, dialog: way.dialog(), over: false };
    asked.push(one);
    log.push(`${now()} ms: ${one.number} ${one.name} is asked`);
    const at = forced.findIndex(([name]) => name.test(one.name));
    let fate = at < 0 ? weighed(fates) : forced.splice(at, 1)[0][1];
    // Without a key nobody can tell the second from the first.
    if (isAct(one) && !key && fate === "twice") fate = "given";
    if (/\/v1\/me$/.test(url.pathname)) fate = "given";
    one.fate = fate;
    const { signal, ...rest } = meant;
    const send = () => sent(url, rest);
    const toServer = { unsent: null, refused: null, slow: null }[fate] === undefined ? send() : null;
    one.there = toServer;
    return new Promise((resolve, reject) => {
      const end = (settle) => {
        if (one.over) return;
        one.over = true;
        settle();
      };
      const lose = () => end(() => reject(new TypeError("Failed to fetch")));
      signal?.addEventListener("abort", () => {
        one.failed ||= !one.over && isAct(one);
        end(() => reject(signal.reason));
      });
      if (signal?.aborted) return;
      const told = (answer) => {
        one.status = answer.status;
        if (isAct(one) && answer.status < 400) one.done = true;
        if (one.done && body?.filter) one.count = Object.values(JSON.parse(answer.text)).flatMap((each) => (Array.isArray(each) ? each : [])).length;
        return answer;
      };
      const ways = {
        given: async () => told(await toServer),
        slow: async () => told(await send()),
        twice: async () => {
          told(await toServer);
          return send();
        },
        broken: async () => broken(told(await toServer)),
        gateway: async () => {
          told(await toServer);
          return { status: 502, text: "<h1>Bad gateway</h1>" };
        },
        lost: async () => {
          told(await toServer);
          return null;
        },
        unsent: async () => null,
        refused: async () => ({ status: 503, text: '{"error": "the server is busy"}' }),
      };
      one.deliver = async () => {
        const answer = await ways[fate]();
        if (one.over) return;
        one.failed = isAct(one) && (!answer || answer.status >= 400 || fate === "broken");
        if (answer) end(() => resolve(answer.json ? answer : read(answer)));
        else lose();
        await followed();
      };
      /** Nobody waits for it, but the server may have got it. */
      one.settled = async () => {
        if (toServer) told(await toServer);
      };
    });
  };
  const onTheWay = () => asked.filter((each) => !each.over);
  return Object.assign(way, { log, asked, onTheWay, isAct, force, become, hint, cut });
})();
