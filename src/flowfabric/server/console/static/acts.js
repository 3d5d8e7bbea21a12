// Acts: one from each press, however often it is pressed, and to what was there when the pointer came.
import { useLayoutEffect, useRef, useState } from "./dom.js";
import { toast } from "./toasts.js";

/** How far apart the two clicks of a double click may be. */
export const DOUBLE_MS = 500;

// The second click of a double click is meant for what the first one met, not for what has come there since: a dialog
// that has opened, a button that was busy, another row because of a message above the table.
const CONTROLS = "a, button, input, select, textarea, summary, label, dialog, [role=tab]";
const controlOf = (target) => {
  const found = target.closest?.(CONTROLS);
  return found?.control ?? found;
};
let first = null;
let second = null;
document.addEventListener(
  "pointerdown",
  ({ target }) => {
    const control = controlOf(target);
    first = second;
    second = control?.disabled ? null : control;
  },
  true,
);
document.addEventListener(
  "click",
  (event) => {
    const control = controlOf(event.target);
    if (event.detail < 2 || !control || control === first) return;
    event.preventDefault();
    event.stopPropagation();
  },
  true,
);

/**
 * {busy, problem, run}: `run(act)` does one thing at a time. Busy ends once what is shown was read after the act
 * (`refresh` settles then), and no sooner than a double click does: its second click meets what the first one was for.
 * What goes wrong after the page was left is told in a toast, with what it is `about`.
 */
export function useBusy(refresh = () => {}, about = "") {
  const [state, setState] = useState({ busy: false, problem: null });
  const running = useRef(false);
  const left = useRef(false);
  useLayoutEffect(
    () => () => {
      left.current = true;
    },
    [],
  );
  const run = async (act) => {
    if (running.current) return;
    running.current = true;
    setState({ busy: true, problem: null });
    const twice = new Promise((over) => {
      setTimeout(over, DOUBLE_MS);
    });
    let problem = null;
    try {
      await act();
    } catch (error) {
      problem = error;
      if (left.current) toast([about, error.message].filter(Boolean).join(": "), "bad");
      setState({ busy: true, problem });
    }
    await Promise.all([refresh(), twice]);
    running.current = false;
    setState({ busy: false, problem });
  };
  return { ...state, run };
}
