// Preact, htm and signals as one import. Everything shown goes through here, so everything shown is text.
import { h, render, Fragment, createContext } from "./vendor/preact.js";
import { useState, useEffect, useRef, useMemo, useCallback, useLayoutEffect, useContext } from "./vendor/hooks.js";
import { signal, computed, effect, batch } from "./vendor/signals.js";
import htm from "./vendor/htm.js";

const html = htm.bind(h);

/** The value of a signal; the component is drawn again when it changes, also if that is between drawing and listening. */
function useValue(source) {
  const [, drawn] = useState(source.peek());
  useLayoutEffect(
    () =>
      effect(() => {
        const current = source.value;
        drawn(() => current);
      }),
    [source],
  );
  return source.peek();
}

export { html, h, render, Fragment, createContext, signal, computed, effect, batch, useValue };
export { useState, useEffect, useRef, useMemo, useCallback, useLayoutEffect, useContext };
