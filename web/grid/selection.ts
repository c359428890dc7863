/** A cell by row of the table and place of its column; row -1 is the header. */
export interface Place {
  readonly row: number;
  readonly column: number;
}

/** A rectangle of cells, its last row and column included. */
export interface Block {
  readonly top: number;
  readonly bottom: number;
  readonly left: number;
  readonly right: number;
}

/** The cell that has the focus, and the cells from there to where a selection began. */
export class Selection {
  focus: Place = { row: 0, column: 0 };
  private anchor: Place | null = null;

  moveTo(place: Place, extends_: boolean): void {
    if (!extends_ || place.row < 0) this.anchor = null;
    else this.anchor ??= this.focus;
    this.focus = place;
  }

  /** All columns of all these rows. */
  selectAll(rows: number, columns: number): void {
    this.anchor = { row: 0, column: 0 };
    this.focus = { row: Math.max(0, rows - 1), column: Math.max(0, columns - 1) };
  }

  clear(): void {
    this.anchor = null;
  }

  get block(): Block {
    const { focus } = this;
    const from = this.anchor ?? focus;
    return {
      top: Math.max(0, Math.min(from.row, focus.row)),
      bottom: Math.max(0, from.row, focus.row),
      left: Math.min(from.column, focus.column),
      right: Math.max(from.column, focus.column),
    };
  }

  get isRange(): boolean {
    return this.anchor !== null;
  }

  has(row: number, column: number): boolean {
    if (this.anchor === null) return false;
    const { top, bottom, left, right } = this.block;
    return row >= top && row <= bottom && column >= left && column <= right;
  }
}
