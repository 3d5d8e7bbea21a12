// Tables whose order changes by itself: not under somebody's pointer.
import { useRef, useState } from "./dom.js";

/**
 * {shown, still}: the rows in the order they are given, but while the pointer is over what has the handlers `still`, in
 * the one they had. What is pressed is what was seen there. Rows that were asked for otherwise come in a new order.
 */
export function useStill(rows, keyOf, asked = "") {
  const [, draw] = useState(0);
  const over = useRef(false);
  const places = useRef(new Map());
  const before = useRef(asked);
  if (before.current !== asked) places.current = new Map();
  before.current = asked;
  const place = (row) => places.current.get(keyOf(row)) ?? Infinity;
  const shown = over.current ? [...rows].sort((a, b) => place(a) - place(b) || 0) : rows;
  places.current = new Map(shown.map((row, number) => [keyOf(row), number]));
  const still = {
    onPointerEnter: () => {
      over.current = true;
    },
    onPointerLeave: () => {
      over.current = false;
      draw((n) => n + 1);
    },
  };
  return { shown, still };
}
