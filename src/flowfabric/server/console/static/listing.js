// A list of executions of any length. It is kept as stretches: everything between two places in the order of the list.
// Stretches are fetched as they come into view, forgotten when they are far away and asked for again by where they
// begin, so what the list holds in memory does not grow with its length.
import { get } from "./api.js";

const PAGE = 200;
/** The largest page the server gives. */
export const MOST = 1_000;
/** As many pages are read at once for what is in view, where few rows fit on one. */
const PAGES = 8;
/** What is looked at for news, above everything. */
const HEAD = 100;
/** A next page needed this soon means a long way to scroll. */
const HASTE = 1_500;
const BLINK = 250;
/** As many rows stay in memory, but for what is in view. */
export const KEPT = 8_000;

/** Where a row stands in the order of the list. */
export const keyOf = (row) => {
  const [, partition, uuid] = /^\{fp:(\d+)\}:(.+)$/.exec(row.execution_id);
  return { at: row.created_at, partition: Number(partition), uuid };
};
/** The place right behind a key, as the server writes it. */
const cursor = (key) => (key ? `${key.at}.${key.uuid}.${key.partition}` : undefined);
/** Below zero if the first of them is the newer one, which comes first. */
const order = (a, b) => b.at - a.at || (a.uuid === b.uuid ? b.partition - a.partition : a.uuid > b.uuid ? -1 : 1);
/** Whether a key lies behind one and not behind another; nothing stands for the beginning and the end of the list. */
const within = (key, after, until) => (!after || order(key, after) > 0) && (!until || order(key, until) <= 0);
/** How far a page reaches: to where the next one begins, which may be behind its last row, or to the end. */
const reach = (page) => {
  if (page.next_cursor === null) return null;
  const [at, uuid, partition] = page.next_cursor.split(".");
  return { at: Number(at), partition: Number(partition), uuid };
};

export class Listing {
  constructor(filter, onChange, ask = (query) => get("v1/search/executions", query)) {
    this.filter = filter;
    this.onChange = onChange;
    this.ask = ask;
    // Each is {after, until, rows, count}: what lies behind `after` up to `until`. Without rows it is to be fetched, and
    // its count is what it was. The first one always has its rows.
    this.stretches = [];
    this.view = { first: 0, last: 0 };
    this.complete = false;
    this.problem = null;
    this.loading = null;
    this.filling = null;
    this.fresh = new Set();
    this.opened = false;
    this.hurry = false;
    this.asked = -HASTE;
    this.told = 0;
    this.starts = null;
  }

  search(more) {
    return this.ask({ ...this.filter, ...more });
  }

  changed() {
    this.starts = null;
    this.trim();
    // On the way to the end, drawing every page would take longer than fetching it.
    if (this.hurry && performance.now() - this.told < BLINK) return;
    this.told = performance.now();
    this.onChange();
  }

  // -- places ----------------------------------------------------------------------------------------------------------

  /** The place of the first row of each stretch, and behind them how many there are. */
  places() {
    if (!this.starts) {
      this.starts = [0];
      for (const stretch of this.stretches) this.starts.push(this.starts[this.starts.length - 1] + stretch.count);
    }
    return this.starts;
  }

  get total() {
    return this.places()[this.stretches.length];
  }

  /** The rows from one place to before another; null for one that has to be fetched first. */
  between(first, last) {
    const starts = this.places();
    const found = [];
    for (let index = 0; index < this.stretches.length && starts[index] < last; index += 1) {
      const { rows } = this.stretches[index];
      const end = Math.min(last, starts[index + 1]);
      for (let place = Math.max(first, starts[index]); place < end; place += 1)
        found.push(rows ? rows[place - starts[index]] : null);
    }
    return found;
  }

  at(place) {
    return (place >= 0 && this.between(place, place + 1)[0]) || null;
  }

  /** Where a row is by now, or would be. */
  placeOf(row) {
    const key = keyOf(row);
    const starts = this.places();
    const index = this.stretches.findIndex(({ after, until }) => within(key, after, until));
    if (index < 0) return starts[this.stretches.length];
    const { rows } = this.stretches[index];
    return starts[index] + (rows ? rows.filter((each) => order(keyOf(each), key) < 0).length : 0);
  }

  // -- fetching --------------------------------------------------------------------------------------------------------

  /** Fetch the next page, once at a time. */
  more() {
    if (this.complete || this.loading) return this.loading;
    const { until: behind = null } = this.stretches[this.stretches.length - 1] || {};
    const limit = this.hurry || performance.now() - this.asked < HASTE ? MOST : PAGE;
    this.loading = this.search({ limit, cursor: cursor(behind) })
      .then((page) => {
        this.complete = page.next_cursor === null;
        this.stretches.push({
          after: behind,
          until: reach(page),
          rows: page.executions,
          count: page.executions.length,
        });
        this.problem = null;
        this.opened = true;
        this.asked = performance.now();
      })
      .catch((problem) => {
        this.problem = problem;
        this.hurry = false;
      })
      .finally(() => {
        this.loading = null;
        this.changed();
      });
    return this.loading;
  }

  /** Fetch everything there is, page by page, until `hurry` is taken back. */
  async toEnd() {
    this.hurry = true;
    while (this.hurry && !this.complete) await this.more();
    this.hurry = false;
    this.onChange();
  }

  /** Say what is in view: what is missing there is fetched, one stretch at a time. */
  look(first, last) {
    this.view = { first, last };
    // After a failure the next refresh retries.
    if (!this.opened || this.problem) return;
    const margin = performance.now() - this.asked < HASTE ? 4 * PAGE : PAGE / 2;
    if (!this.complete && last > this.total - margin) this.more();
    const starts = this.places();
    const missing = this.stretches.find(
      ({ rows, count }, index) => !rows && starts[index] < last && starts[index] + count > first,
    );
    if (!missing || this.filling || this.hurry) return;
    this.filling = this.search({ cursor: cursor(missing.after), limit: Math.min(MOST, missing.count + 20) })
      .then((page) => this.fill(missing, page))
      .catch((problem) => {
        this.problem = problem;
      })
      .finally(() => {
        this.filling = null;
        this.changed();
      });
  }

  fill(stretch, page) {
    const index = this.stretches.indexOf(stretch);
    if (index < 0) return;
    const end = reach(page);
    if (end && (!stretch.until || order(end, stretch.until) < 0)) {
      // There is more in it than one page holds.
      const count = Math.max(1, stretch.count - page.executions.length);
      this.stretches.splice(index + 1, 0, { after: end, until: stretch.until, rows: null, count });
      stretch.until = end;
    }
    stretch.rows = page.executions.filter((row) => within(keyOf(row), stretch.after, stretch.until));
    stretch.count = stretch.rows.length;
    this.problem = null;
  }

  /** Forget what is farthest from view. */
  trim() {
    let { kept } = this;
    if (kept <= KEPT) return;
    const starts = this.places();
    // On the way to the end, that is what will be in view.
    const { first, last } = this.hurry ? { first: this.total, last: this.total } : this.view;
    const far = this.stretches
      .map((stretch, index) => ({
        stretch,
        distance: index && stretch.rows ? Math.max(starts[index] - last, first - starts[index + 1]) : 0,
      }))
      .filter(({ distance }) => distance > 0)
      .sort((a, b) => b.distance - a.distance);
    for (const { stretch } of far) {
      if (kept <= KEPT) return;
      kept -= stretch.count;
      stretch.rows = null;
    }
  }

  /** How many rows are in memory. */
  get kept() {
    return this.stretches.reduce((sum, { rows }) => sum + (rows ? rows.length : 0), 0);
  }

  // -- following what happens ------------------------------------------------------------------------------------------

  /** Look again at what is in view, and at what is new above everything; says how many are new there. */
  async refresh() {
    if (!this.opened) {
      await this.more();
      return 0;
    }
    try {
      const { first, last } = this.view;
      const above = first < HEAD ? null : this.at(first - 1);
      const lowest = this.at(Math.min(last, this.total) - 1);
      const until = lowest && keyOf(lowest);
      const limit = Math.min(MOST, Math.max(1, last - first));
      // Everything new is put in at once: in between, rows would move under the reader's eyes.
      const [head, page] = await Promise.all([
        this.through(null, above || !until ? this.newest : until, above ? HEAD : Math.min(MOST, Math.max(HEAD, last))),
        above && this.through(keyOf(above), until, limit),
      ]);
      const added = this.news(head);
      if (page) this.cover(keyOf(above), page.end, page.rows);
      this.problem = null;
      return added;
    } catch (problem) {
      this.problem = problem;
      return 0;
    } finally {
      this.changed();
    }
  }

  /** Where the newest row that is known stands; nothing if there was none at all. */
  get newest() {
    const [{ count, rows, until }] = this.stretches;
    return count ? keyOf(rows[0]) : until;
  }

  /**
   * What lies behind a place, up to another or a little further, as {rows, end}. A page may have fewer rows than were
   * asked for, and all of them may be new: then further ones are read, but no more than `PAGES`.
   */
  async through(after, until, limit) {
    let rows = [];
    let end = after;
    for (let page = 0; page < PAGES; page += 1) {
      const found = await this.search({ cursor: cursor(end), limit: page ? MOST : limit });
      rows = rows.concat(found.executions);
      end = reach(found);
      if (!end || !until || order(end, until) >= 0) break;
    }
    return { rows, end };
  }

  /** Put in what is above everything; says how many are new. */
  news({ rows, end }) {
    this.fresh = new Set();
    const known = this.newest;
    const [head] = this.stretches;
    if (end && (known ? order(end, known) < 0 : true)) {
      // What lies between is fetched when somebody looks there.
      const rest = { after: end, until: head.until, rows: null, count: head.count + HEAD };
      if (known) this.stretches.splice(0, 1, { after: null, until: end, rows: [], count: 0 }, rest);
      else {
        head.until = end;
        this.complete = false;
      }
    }
    this.cover(null, end, rows);
    this.divide();
    return known ? rows.filter((row) => order(keyOf(row), known) < 0).length : rows.length;
  }

  /** These are all that lie behind one place, up to another. */
  cover(after, until, rows) {
    for (const stretch of this.stretches) {
      const behind = after && stretch.until && order(stretch.until, after) <= 0;
      const before = until && stretch.after && order(until, stretch.after) <= 0;
      const starts = !after || (stretch.after && order(after, stretch.after) <= 0);
      const ends = !until || (stretch.until && order(until, stretch.until) >= 0);
      if (!behind && !before && (stretch.rows || (starts && ends))) this.replace(stretch, after, until, rows);
    }
    this.starts = null;
  }

  replace(stretch, after, until, rows) {
    const own = rows.filter((row) => within(keyOf(row), stretch.after, stretch.until));
    const old = stretch.rows;
    if (old) {
      const states = new Map(old.map((row) => [row.execution_id, row.public_state]));
      for (const row of own) if (states.get(row.execution_id) !== row.public_state) this.fresh.add(row.execution_id);
    }
    stretch.rows = [
      ...(old || []).filter((row) => after && order(keyOf(row), after) <= 0),
      ...own,
      ...(old || []).filter((row) => until && order(keyOf(row), until) > 0),
    ];
    stretch.count = stretch.rows.length;
  }

  /** What has gathered at the head becomes stretches of its own. */
  divide() {
    const [{ rows, until }] = this.stretches;
    if (rows.length <= MOST) return;
    const own = rows.slice(0, MOST / 2);
    const rest = rows.slice(MOST / 2);
    const cut = keyOf(own[own.length - 1]);
    this.stretches.splice(
      0,
      1,
      { after: null, until: cut, rows: own, count: own.length },
      { after: cut, until, rows: rest, count: rest.length },
    );
    this.starts = null;
  }
}
