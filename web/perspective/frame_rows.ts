import type { Field } from "../client/arrow_type.ts";
import type { View, ViewChange, ViewRow } from "../client/view.ts";
import { arrowStream, type StreamColumn, streamColumn } from "./arrow_stream.ts";
import type { ToFrame } from "./frame_messages.ts";

/** Numbers of rows are Perspective's `integer`, of 32 bits. */
const NUMBER_MAX = 2 ** 31 - 1;

/** The rows of a view as Perspective's table gets them: each has a number, by which it is changed and removed. */
export class FrameRows {
  /** The column of the numbers: of a name that no other has. */
  readonly index: string;
  private readonly numbers = new Map<ViewRow, number>();
  private next = 0;

  constructor(
    private readonly fields: readonly Field[],
    private readonly numberMax = NUMBER_MAX,
  ) {
    const taken = new Set(fields.map(({ name }) => name));
    let index = "_row";
    while (taken.has(index)) index += "_";
    this.index = index;
  }

  /** All rows, with new numbers. */
  all(view: View): Uint8Array<ArrayBuffer> {
    this.numbers.clear();
    this.next = 0;
    return this.stream(view.rows);
  }

  /** What an update did; a row that changed travels whole. */
  changed(view: View, change: ViewChange): Extract<ToFrame, { kind: "update" | "replace" }> {
    if (this.next + change.added.length > this.numberMax) return { kind: "replace", rows: this.all(view) };
    const removed = change.removed.flatMap((row) => {
      const number = this.numbers.get(row);
      this.numbers.delete(row);
      return number === undefined ? [] : [number];
    });
    const rows = new Set([...change.added.map((at) => view.rows[at]!), ...change.cells.map(({ row }) => row)]);
    return { kind: "update", removed, rows: rows.size === 0 ? null : this.stream([...rows]) };
  }

  private stream(rows: readonly ViewRow[]): Uint8Array<ArrayBuffer> {
    const numbers: StreamColumn = { name: this.index, form: "int32", cells: rows.map((row) => this.numberOf(row)) };
    const columns = this.fields.map((field, i) => streamColumn(field, rows.map(({ cells }) => cells[i])));
    return arrowStream([numbers, ...columns]);
  }

  private numberOf(row: ViewRow): number {
    const known = this.numbers.get(row);
    if (known !== undefined) return known;
    this.numbers.set(row, this.next);
    return this.next++;
  }
}
