// Acts of a page outside dialogs: one from each press, however often it is pressed.
import { useLayoutEffect, useRef, useState } from "./dom.js";
import { toast } from "./toasts.js";

/** How far apart the two clicks of a double click may be. */
export const DOUBLE_MS = 500;

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
