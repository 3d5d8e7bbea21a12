// Going through the list with keys: a row at a time, a screen at a time, to either end.
import { useEffect, useRef, useState } from "../dom.js";
import { rowHeight } from "./rows.js";

/** Where the keys stand in the list: {cursor, stands, setCursor, move(key), halt()}; a key it knows is its own. */
export function useMoving(listing, scroller) {
  const [cursor, draw] = useState(-1);
  // Keys may come faster than the page is drawn.
  const stands = useRef(-1);
  const ending = useRef(false);
  const setCursor = (place) => {
    stands.current = place;
    draw(place);
  };

  /** How many rows fit between the head of the list and its lower edge. */
  const room = () => scroller.current.box.clientHeight - scroller.current.body.offsetTop;
  const show = (place) => {
    const { top } = scroller.current;
    const upper = place * rowHeight();
    const lower = upper + rowHeight() - room();
    if (upper < top) scroller.current.to(upper);
    else if (lower > top) scroller.current.to(lower);
  };
  const halt = () => {
    ending.current = false;
    listing.hurry = false;
  };
  const move = (key) => {
    const screen = Math.max(1, Math.floor(room() / rowHeight()) - 1);
    const step = { j: 1, ArrowDown: 1, k: -1, ArrowUp: -1, PageDown: screen, PageUp: -screen }[key];
    if (!step && key !== "Home" && key !== "End") return false;
    halt();
    const last = listing.total - 1;
    if (last < 0) return true;
    // Without a row to begin with, it is the one that is shown first.
    const from = stands.current < 0 ? Math.ceil(scroller.current.top / rowHeight()) - (step === 1) : stands.current;
    const place = key === "Home" ? 0 : key === "End" ? last : Math.max(0, Math.min(last, from + step));
    setCursor(place);
    show(place);
    if (key === "End" && !listing.complete) {
      ending.current = true;
      listing.toEnd();
    }
    return true;
  };
  // Effects run after painting, when the list may be longer again: the scroller knows only what was drawn.
  const { total } = listing;
  useEffect(() => {
    // On the way to the end, the end moves.
    if (!ending.current) return;
    setCursor(total - 1);
    show(total - 1);
    if (!listing.hurry && total === listing.total) ending.current = false;
  }, [total, listing.hurry]);

  return { cursor, stands, setCursor, move, halt };
}
