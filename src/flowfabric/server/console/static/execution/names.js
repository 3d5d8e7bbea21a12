// What executions and steps are called: a child as its parent's code calls it, a step without what only the engine needs.
import { shortId } from "../format.js";

/** A kind for people. */
export const kindName = (kind, id) => (kind === "$ask" ? "question" : kind || (id ? shortId(id) : "(no kind)"));

/** Steps behind whose name a mark stands say which trial met the error; those that begin with one are bookkeeping. */
export const isInternal = (name) => name.startsWith("!");
/** The branch of the code that makes a call stands before its name: functions, with keys and numbers. */
const BRANCH = /^(?:(?:\w+(?:\([^()>]*\))?(?:#\d+)?|\([0-9a-f]{24}\))>)+/;

/** What tells a step from all others, whichever trial met its error. */
export const stepKey = (name) => name.replace(/!\d+$/, "");
/** A step for people: without the branch of the code that makes the call. */
export const stepName = (name) => {
  const shown = stepKey(name).replace(BRANCH, "");
  return shown.startsWith("ask:") ? `question: ${shown.slice(4)}` : shown;
};

/** A child by the name of its step, with its key; else by its kind. */
export const childName = (child) =>
  child.step && !child.step.startsWith("$") ? stepName(child.step) : kindName(child.execution_kind, child.execution_id);
