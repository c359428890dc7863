import type { Cell } from "../client/cells.ts";
import { sameCell } from "../client/cells.ts";
import type { ViewChange, ViewRow } from "../client/view.ts";
import type { View } from "../client/view.ts";

export type Direction = "up" | "down" | "changed";

const FLASH_MS = 700;

function direction(before: Cell, after: Cell | undefined): Direction {
  if (typeof before === "number" && typeof after === "number") return after > before ? "up" : "down";
  if (typeof before === "bigint" && typeof after === "bigint") return after > before ? "up" : "down";
  return "changed";
}

interface Flash {
  readonly direction: Direction;
  readonly until: number;
}

/** The cells and rows that changed a moment ago. */
export class Flashes {
  private readonly cells = new Map<ViewRow, Map<number, Flash>>();
  private readonly rows = new Map<ViewRow, number>();

  note(change: ViewChange, view: View, now: number): void {
    if (change.isSnapshot) return;
    const until = now + FLASH_MS;
    for (const { row, column, before } of change.cells) {
      const after = row.cells[column];
      if (before === undefined || (after !== undefined && sameCell(before, after))) continue;
      let columns = this.cells.get(row);
      if (columns === undefined) {
        columns = new Map<number, Flash>();
        this.cells.set(row, columns);
      }
      columns.set(column, { direction: direction(before, after), until });
    }
    for (const index of newRows(change, view)) this.rows.set(view.rows[index]!, until);
  }

  of(row: ViewRow, column: number): Direction | null {
    return this.cells.get(row)?.get(column)?.direction ?? null;
  }

  isNew(row: ViewRow): boolean {
    return this.rows.has(row);
  }

  get isEmpty(): boolean {
    return this.cells.size === 0 && this.rows.size === 0;
  }

  /** Forget what is over; whether there was any. */
  sweep(now: number): boolean {
    let swept = false;
    for (const [row, columns] of this.cells) {
      for (const [column, { until }] of columns) {
        if (until <= now) swept = columns.delete(column);
      }
      if (columns.size === 0) this.cells.delete(row);
    }
    for (const [row, until] of this.rows) {
      if (until <= now) swept = this.rows.delete(row);
    }
    return swept;
  }

  clear(): void {
    this.cells.clear();
    this.rows.clear();
  }
}

/** The added rows that are new in the table; others slid in at an edge of the view. */
function newRows({ added }: ViewChange, view: View): number[] {
  const inView = new Set(added);
  const isAtStart = view.firstPosition === 0;
  const isAtEnd = view.firstPosition + view.rows.length === view.tableSize;
  let first = 0;
  let last = view.rows.length - 1;
  if (!isAtStart) while (inView.has(first)) first++;
  if (!isAtEnd) while (inView.has(last)) last--;
  return added.filter((index) => index >= first && index <= last);
}
