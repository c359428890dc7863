import type { Schema } from "./arrow_type.ts";
import type { Cell } from "./cells.ts";
import { ProtocolError } from "./errors.ts";
import type { ViewRequest } from "./request.ts";
import type { ViewUpdate } from "./update_assembler.ts";

/** A row of a view. It is the same object as long as the server says it is the same row. */
export interface ViewRow {
  /** By column index; undefined where the column is not subscribed. */
  readonly cells: (Cell | undefined)[];
}

/** A cell that was changed by an update, and what it held before. */
export interface CellChange {
  readonly row: ViewRow;
  readonly column: number;
  readonly before: Cell | undefined;
}

/** What an update did to a view. */
export interface ViewChange {
  readonly isSnapshot: boolean;
  /** Indices of the rows it brought. */
  readonly added: readonly number[];
  /** The rows it took. */
  readonly removed: readonly ViewRow[];
  readonly cells: readonly CellChange[];
  readonly sourceTimeNs: bigint | null;
}

/** The rows of a table that are seen, in step with the server. */
export class View {
  rows: ViewRow[] = [];
  tableSize = 0;
  /** What the rows are the answer to. */
  request: ViewRequest | null = null;
  /** Version of the table these rows are of. */
  step = -1n;

  constructor(readonly schema: Schema) {}

  /** The row of the table that stands first in the view. */
  get firstPosition(): number {
    if (this.request === null) return 0;
    if (!this.request.isReverse) return this.request.first;
    return this.tableSize - this.request.first - this.rows.length;
  }

  apply(update: ViewUpdate): ViewChange {
    const { metadata } = update;
    const { kept, removed } = this.without(update);
    const { rows, added } = merged(kept, update);
    const cells: CellChange[] = [];
    metadata.modified.forEach((positions, column) => {
      let at = 0;
      for (const position of positions) {
        const row = rows[position];
        if (row === undefined) throw new ProtocolError(`row ${position} is past the view's end`);
        cells.push({ row, column, before: row.cells[column] });
        row.cells[column] = update.modified[column]![at++];
      }
    });
    this.rows = rows;
    this.tableSize = metadata.tableSize;
    this.step = metadata.lastStep;
    return {
      isSnapshot: metadata.isSnapshot,
      added,
      removed,
      cells,
      sourceTimeNs: metadata.sourceTimeNs,
    };
  }

  private without({ metadata }: ViewUpdate): { kept: readonly ViewRow[]; removed: readonly ViewRow[] } {
    const { bounds } = metadata.removed;
    if (bounds.length === 0) return { kept: this.rows, removed: [] };
    if (bounds[bounds.length - 1]! >= this.rows.length) {
      throw new ProtocolError("an update removes rows past the view's end");
    }
    const [kept, removed]: [ViewRow[], ViewRow[]] = [[], []];
    let at = 0;
    for (let i = 0; i < bounds.length; i += 2) {
      for (; at < bounds[i]!; at++) kept.push(this.rows[at]!);
      for (; at <= bounds[i + 1]!; at++) removed.push(this.rows[at]!);
    }
    for (; at < this.rows.length; at++) kept.push(this.rows[at]!);
    return { kept, removed };
  }
}

function merged(kept: readonly ViewRow[], update: ViewUpdate): { rows: ViewRow[]; added: number[] } {
  const rows: ViewRow[] = [];
  const added: number[] = [];
  let next = 0;
  for (const position of update.metadata.added) {
    while (rows.length < position) {
      const row = kept[next++];
      if (row === undefined) throw new ProtocolError(`row ${position} would stand alone`);
      rows.push(row);
    }
    const number = added.length;
    const cells: (Cell | undefined)[] = [];
    update.added.forEach((column, i) => {
      if (column.length > 0) cells[i] = column[number];
    });
    added.push(position);
    rows.push({ cells });
  }
  for (; next < kept.length; next++) rows.push(kept[next]!);
  return { rows, added };
}
