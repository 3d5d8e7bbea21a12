// A list of executions of any length: pages are fetched as they come into view, rows are drawn only where one looks.
import { get } from "./api.js";

const PAGE = 200;
const HEAD = 100;

/** The place right behind a row, as the server writes it. */
export const cursorOf = (row) => {
  const [, partition, uuid] = /^\{fp:(\d+)\}:(.+)$/.exec(row.execution_id);
  return `${row.created_at}.${partition}.${uuid}`;
};

export class Listing {
  constructor(filter, onChange) {
    this.filter = filter;
    this.onChange = onChange;
    this.rows = [];
    this.index = new Map();
    this.complete = false;
    this.problem = null;
    this.loading = null;
    this.fresh = new Set();
    this.begun = false;
  }

  search(more) {
    return get("v1/search/executions", { ...this.filter, ...more });
  }

  reindex(from = 0) {
    for (let at = from; at < this.rows.length; at += 1) this.index.set(this.rows[at].execution_id, at);
  }

  /** Fetch the next page, once at a time. */
  more() {
    if (this.complete || this.loading) return this.loading;
    const last = this.rows[this.rows.length - 1];
    this.loading = this.search({ limit: PAGE, cursor: last ? cursorOf(last) : undefined })
      .then((page) => {
        const known = this.rows.length;
        for (const row of page.executions) if (!this.index.has(row.execution_id)) this.rows.push(row);
        this.reindex(known);
        this.complete = page.next_cursor === null;
        this.problem = null;
        this.begun = true;
      })
      .catch((problem) => {
        this.problem = problem;
      })
      .finally(() => {
        this.loading = null;
        this.onChange();
      });
    return this.loading;
  }

  /** Look again at what is in view, and at what is new above everything. */
  async refresh(first, last) {
    if (!this.begun) {
      await this.more();
      return 0;
    }
    try {
      const head = await this.search({ limit: HEAD });
      const added = [];
      this.fresh = new Set();
      for (const row of head.executions) {
        const at = this.index.get(row.execution_id);
        if (at === undefined) added.push(row);
        else this.replace(at, row);
      }
      if (added.length === HEAD && head.next_cursor !== null) {
        // So much is new that what is here cannot be joined to it.
        this.rows = head.executions;
        this.index.clear();
        this.complete = false;
      } else if (added.length) {
        for (const row of added) this.fresh.add(row.execution_id);
        this.rows = this.rows.concat(added).sort((a, b) => (cursorLess(a, b) ? 1 : -1));
        if (!this.rows.length) this.complete = true;
      }
      if (added.length) this.reindex();
      if (first >= HEAD) {
        const from = Math.max(1, first);
        const page = await this.search({
          cursor: cursorOf(this.rows[from - 1]),
          limit: Math.min(PAGE, Math.max(1, last - from)),
        });
        for (const row of page.executions)
          if (this.index.has(row.execution_id)) this.replace(this.index.get(row.execution_id), row);
      }
      this.problem = null;
      this.onChange();
      return added.length;
    } catch (problem) {
      this.problem = problem;
      this.onChange();
      return 0;
    }
  }

  replace(at, row) {
    if (this.rows[at].public_state !== row.public_state) this.fresh.add(row.execution_id);
    this.rows[at] = row;
  }
}

function cursorLess(a, b) {
  if (a.created_at !== b.created_at) return a.created_at < b.created_at;
  const [, one, two] = cursorOf(a).split(".");
  const [, three, four] = cursorOf(b).split(".");
  return one === three ? two < four : Number(one) < Number(three);
}
