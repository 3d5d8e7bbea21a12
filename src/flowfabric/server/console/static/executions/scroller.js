// Scrolling through more than a browser can lay out. Up to a height that every browser can draw, this is ordinary
// scrolling. Beyond it the body stays as high as that, and where one is in the list (`top`) is kept apart from where the
// scroll bar is: small movements count as they are, large ones (the bar is dragged) in proportion.

/** As high as an element is made; browsers end between 17 and 33 million. */
export const TALLEST = 8_000_000;
/** What a wheel, a finger or a key does at once; a pixel of the scroll bar is more. */
const SMALL = 3_000;
/** How far the scroll bar may be from where it belongs before it is put there. */
const ASTRAY = 80_000;

export class Scroller {
  constructor(box, body, onMove) {
    this.box = box;
    this.body = body;
    this.onMove = onMove;
    this.whole = 0;
    this.top = 0;
    /** What is at `y` in the list is drawn at `y - shift`. */
    this.shift = 0;
    this.seen = 0;
    let waiting = false;
    const moved = () => {
      if (waiting) return;
      waiting = true;
      requestAnimationFrame(() => {
        waiting = false;
        this.follow();
        this.onMove();
      });
    };
    box.addEventListener("scroll", moved, { passive: true });
    const observer = new ResizeObserver(moved);
    observer.observe(box);
    this.stop = () => {
      box.removeEventListener("scroll", moved);
      observer.disconnect();
    };
  }

  /** How far the scroll bar can go, and how far the list does. */
  get ends() {
    const more = this.body.offsetTop - this.box.clientHeight;
    return { bar: Math.max(0, this.height + more), list: Math.max(0, this.whole + more) };
  }

  get height() {
    return Math.min(this.whole, TALLEST);
  }

  /** The list is so high by now. */
  extend(whole) {
    if (whole === this.whole) return;
    this.whole = whole;
    this.body.style.height = `${this.height}px`;
    this.follow();
  }

  /** Go to a height of the list, as far as there is one. */
  to(top) {
    const { bar, list } = this.ends;
    this.top = Math.round(Math.max(0, Math.min(top, list)));
    this.box.scrollTop = list > bar ? Math.round((this.top * bar) / list) : this.top;
    this.seen = this.box.scrollTop;
    this.shift = list > bar ? this.top - Math.round(this.seen) : 0;
    this.onMove();
  }

  /** The scroll bar was moved, or there is more to scroll. */
  follow() {
    const { bar, list } = this.ends;
    const at = this.box.scrollTop;
    const moved = at - this.seen;
    this.seen = at;
    if (list <= bar) {
      this.top = at;
      this.shift = 0;
      return;
    }
    const top = Math.abs(moved) > SMALL ? (at * list) / bar : this.top + moved;
    this.top = Math.round(Math.max(0, Math.min(top, list)));
    this.shift = this.top - Math.round(at);
    const astray = Math.abs((this.top * bar) / list - at) > ASTRAY;
    const stuck = (at <= 0 && this.top > 0) || (at >= bar - 1 && this.top < list);
    if (astray || stuck) this.to(this.top);
  }
}
