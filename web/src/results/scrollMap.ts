/**
 * Maps the position of a scroll bar to the position in a list that may be higher than the browser permits.
 *
 * Firefox limits the height of an element to 17.9 million pixels, which are 640,000 rows. Beyond the limit, small moves
 * (wheel, keys) move the list by the same number of pixels, and large ones (the scroll bar is dragged) by the share of
 * its height. After a move, `settled` gives the position of the scroll bar that fits the list again.
 */
const MAX_PX = 15_000_000;
/** Moves up to so many heights of the window are small. */
const SMALL_MOVE = 2;

export class ScrollMap {
  #total = 0;
  #viewport = 0;
  #top = 0;
  #offset = 0;

  constructor(private readonly maxPx: number = MAX_PX) {}

  /** Take the height of the whole list and of the window, in pixels. */
  resize(total: number, viewport: number): void {
    this.#total = total;
    this.#viewport = viewport;
  }

  /** The height of the element that scrolls. */
  get height(): number {
    return Math.min(this.#total, this.maxPx);
  }

  /** The position in the list. */
  get offset(): number {
    return this.#offset;
  }

  /** What has to be added to a position in the list to get the position in the element. */
  get shift(): number {
    return this.#top - this.#offset;
  }

  /** Take the position of the scroll bar; returns the position in the list. */
  moved(top: number): number {
    const delta = top - this.#top;
    this.#top = top;
    const isSmall = Math.abs(delta) <= SMALL_MOVE * this.#viewport;
    const offset = this.#isScaled && isSmall ? this.#offset + delta : top * this.#factor;
    this.#offset = this.#clamped(this.#atEnd(top, offset));
    return this.#offset;
  }

  /** Go to a position in the list; returns the position of the scroll bar for it. */
  go(offset: number): number {
    this.#offset = this.#clamped(offset);
    this.#top = this.#offset / this.#factor;
    return this.#top;
  }

  /** Return where the scroll bar belongs, or null if it is there. */
  settled(): number | null {
    if (Math.abs(this.#offset / this.#factor - this.#top) < 1) return null;
    return this.go(this.#offset);
  }

  /** Whether the scroll bar is at an end and the list is not. */
  get isStuck(): boolean {
    const isAtStart = this.#top <= 0 && this.#offset > 0;
    return isAtStart || (this.#top >= this.height - this.#viewport && this.#offset < this.#last);
  }

  /** Where the scroll bar is at its end, the list is too, unless the rest is more than what a pixel of the bar means. */
  #atEnd(top: number, offset: number): number {
    if (top <= 0 && offset < this.#factor) return 0;
    const isLast = top >= this.height - this.#viewport - 1 && this.#last - offset < 2 * this.#factor;
    return isLast && this.#isScaled ? this.#last : offset;
  }

  get #isScaled(): boolean {
    return this.#total > this.maxPx;
  }

  get #last(): number {
    return Math.max(0, this.#total - this.#viewport);
  }

  get #factor(): number {
    return this.#isScaled ? this.#last / Math.max(1, this.maxPx - this.#viewport) : 1;
  }

  #clamped(offset: number): number {
    return Math.max(0, Math.min(this.#last, offset));
  }
}
