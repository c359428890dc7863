/**
 * Which rows are in sight: a position in rows, as a double, so that 10^8 rows scroll as exactly as
 * ten. The page's own scrolling ends at some ten million pixels.
 */
export class RowWindow {
  /** The row at the upper edge, and how much of it is above. */
  top = 0;
  size = 0;
  /** How many rows fit, the last one perhaps not whole. */
  page = 1;

  get topMax(): number {
    return Math.max(0, this.size - this.page);
  }

  /** First row in sight. */
  get first(): number {
    return Math.floor(this.top);
  }

  /** The row after the last one in sight. */
  get stop(): number {
    return Math.min(this.size, Math.ceil(this.top + this.page));
  }

  get isAtEnd(): boolean {
    return this.top >= this.topMax - 1e-6;
  }

  scrollTo(row: number): void {
    this.top = Math.min(Math.max(0, row), this.topMax);
  }

  scrollBy(rows: number): void {
    this.scrollTo(this.top + rows);
  }

  /** Scroll as little as it takes to have this row in sight. */
  reveal(row: number): void {
    if (row < this.top) this.scrollTo(row);
    else if (row + 1 > this.top + this.page) this.scrollTo(row + 1 - this.page);
  }

  /** Place and length of the thumb on a track, in its unit. */
  thumb(track: number, lengthMin: number): { start: number; length: number } {
    if (this.size <= this.page) return { start: 0, length: track };
    const length = Math.max(lengthMin, (track * this.page) / this.size);
    return { start: ((track - length) * this.top) / this.topMax, length };
  }

  /** The position that puts the thumb there. */
  topAt(start: number, track: number, lengthMin: number): number {
    const { length } = this.thumb(track, lengthMin);
    if (track <= length) return 0;
    return Math.min(1, Math.max(0, start / (track - length))) * this.topMax;
  }
}

/** Rows asked for around those in sight: enough that small steps need no answer to be waited for. */
export function wantedRows(
  window: RowWindow,
  asked: { first: number; count: number },
  margin: number,
): { first: number; count: number } {
  const { first } = window;
  const visible = Math.ceil(window.page) + 1;
  const near = Math.ceil(margin / 3);
  const isInside =
    (asked.first === 0 || first - near >= asked.first) &&
    first + visible + near <= asked.first + asked.count &&
    asked.count <= visible + 3 * margin;
  if (isInside) return asked;
  const start = Math.max(0, first - margin);
  return { first: start, count: first + visible + margin - start };
}
