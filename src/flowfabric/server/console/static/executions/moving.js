// Going through the list with keys: a row at a time, a screen at a time, to either end.
import { useEffect, useRef, useState } from "../dom.js";
import { rowHeight } from "./rows.js";

const NOWHERE = { place: -1, row: null };

/**
 * Where the keys stand in the list: {cursor, standing, setCursor, move(key), halt()}; a key it knows is its own. They
 * stand on a row, wherever it is by now: `standing()` is the row that is drawn so, or that was gone to since.
 */
export function useMoving(listing, scroller) {
  const [, draw] = useState(0);
  // Keys may come faster than the page is drawn.
  const at = useRef(NOWHERE);
  const ending = useRef(false);
  const stood = at.current.listing === listing ? at.current : NOWHERE;
  const isThere = !stood.row || listing.at(stood.place)?.execution_id === stood.row.execution_id;
  const cursor = Math.min(isThere ? stood.place : listing.placeOf(stood.row), listing.total - 1);
  // A row that has left the list leaves its place to the next one, as soon as that is drawn there.
  at.current = { listing, place: cursor, row: cursor < 0 ? null : (listing.at(cursor) ?? stood.row) };
  const setCursor = (place) => {
    at.current = { listing, place, row: listing.at(place) };
    draw((n) => n + 1);
  };

  /** How many rows fit between the head of the list and its lower edge. */
  const room = () => scroller.current.box.clientHeight - scroller.current.body.offsetTop;
  const show = (place) => {
    // The scroller knows only what was drawn; the list may be longer by now.
    scroller.current.extend(listing.total * rowHeight());
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
    // A key may still come when the list was left.
    if (!scroller.current) return false;
    const screen = Math.max(1, Math.floor(room() / rowHeight()) - 1);
    const step = { j: 1, ArrowDown: 1, k: -1, ArrowUp: -1, PageDown: screen, PageUp: -screen }[key];
    if (!step && key !== "Home" && key !== "End") return false;
    halt();
    if (key === "End" && !listing.complete) {
      // The list may not even be there yet.
      ending.current = true;
      listing.toEnd();
    }
    const last = listing.total - 1;
    if (last < 0) return true;
    const { place: before, row } = at.current;
    // Without a row to begin with, it is the one that is shown first.
    const from =
      before < 0 ? Math.ceil(scroller.current.top / rowHeight()) - (step === 1) : row ? listing.placeOf(row) : before;
    const place = key === "Home" ? 0 : key === "End" ? last : Math.max(0, Math.min(last, from + step));
    setCursor(place);
    show(place);
    return true;
  };
  const { total } = listing;
  useEffect(() => {
    // On the way to the end, the end moves. It may have moved again since this was drawn.
    if (!ending.current || !scroller.current) return;
    const last = listing.total - 1;
    setCursor(last);
    show(last);
    if (!listing.hurry && total === listing.total) ending.current = false;
  }, [total, listing.hurry]);

  return { cursor, standing: () => at.current.row, setCursor, move, halt };
}
