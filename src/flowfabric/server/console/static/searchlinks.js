// Links to the list of executions, narrowed to something.
import { hrefOf, term } from "./executions/address.js";

/** `{ kind: "resize", worker: "w 1" }` -> the list of these; `state` may name one, too. */
export const listHref = (words, state) =>
  hrefOf({ q: Object.entries(words).map(([name, value]) => term(name, value)).join(" "), states: state ? [state] : [] });
