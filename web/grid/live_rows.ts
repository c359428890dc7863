import type { Field } from "../client/arrow_type.ts";
import { sameCell } from "../client/cells.ts";
import type { Connection } from "../client/connection.ts";
import type { ServerError } from "../client/errors.ts";
import { type Query, ticketOf, ticketText } from "../client/query.ts";
import type { ViewRequest } from "../client/request.ts";
import { type Recovery, ViewSubscription } from "../client/subscription.ts";
import type { View, ViewChange, ViewRow } from "../client/view.ts";

/** What rows tell the grid that shows them. */
export interface RowsListener {
  /** `acknowledge` is to be called when the change has been painted. */
  changed(change: ViewChange, acknowledge: () => void): void;
  /** Columns are others than before, or known for the first time. */
  columnsChanged(fields: readonly Field[]): void;
  recovered(recovery: Recovery): void;
  failed(error: ServerError): void;
}

/** A row to be shown; one that is `isOld` was seen here before and may have changed since. */
export interface ShownRow {
  readonly row: ViewRow;
  readonly isOld: boolean;
}

const REMEMBERED_MAX = 5_000;

/**
 * The rows of one query. When another query is set, its rows take the place of those there once the
 * first of them have come; a query that fails leaves what is there.
 */
export class LiveRows {
  private shown: ViewSubscription | null = null;
  private coming: ViewSubscription | null = null;
  private readonly remembered = new Map<number, ViewRow>();
  private ticket = "";
  /** Whether they are of one cycle each: nobody gets those again that give way to others. */
  arePassing = false;
  private isPaused = false;
  /** Whether the rows that are shown stay as they are. */
  private isHeld = false;

  constructor(
    private readonly connection: Connection,
    private readonly listener: RowsListener,
    private readonly intervalMs: number,
  ) {}

  get view(): View | null {
    return this.shown?.view ?? null;
  }

  get updateCount(): number {
    return this.shown?.updateCount ?? 0;
  }

  /** The last request, answered or not. */
  get request(): ViewRequest | null {
    return (this.coming ?? this.shown)?.request ?? null;
  }

  get isCurrent(): boolean {
    return this.coming === null && (this.shown?.isCurrent ?? false);
  }

  show(query: Query, request: ViewRequest): void {
    const ticket = ticketText(query);
    if (ticket === this.ticket) {
      if (!(this.isHeld && this.arePassing)) this.ask(request);
      return;
    }
    this.ticket = ticket;
    this.coming?.close();
    const coming: ViewSubscription = new ViewSubscription(this.connection, ticketOf(query), {
      request,
      intervalMs: this.intervalMs,
      applied: (acknowledge) => this.acknowledgements.push(acknowledge),
    });
    this.coming = coming;
    coming.replaced.add(({ schema }) => {
      this.replace(coming);
      this.listener.columnsChanged(schema.fields);
    });
    coming.updated.add((change) => this.tell(change));
    coming.recovered.add((recovery) => this.listener.recovered(recovery));
    coming.failed.add((error) => this.listener.failed(error));
  }

  /** Of updates that were told of and are not painted yet. */
  private readonly acknowledgements: (() => void)[] = [];

  private tell(change: ViewChange): void {
    this.listener.changed(change, () => {
      for (const acknowledge of this.acknowledgements.splice(0)) acknowledge();
    });
    // The answer to a request for passing rows has none.
    if (!(this.arePassing && change.isSnapshot)) this.hold();
  }

  private replace(subscription: ViewSubscription): void {
    this.remembered.clear();
    if (this.coming !== subscription) return;
    this.shown?.close();
    this.shown = subscription;
    this.coming = null;
    this.isHeld = false;
  }

  /** Ask for other rows or columns of the same query. */
  ask(request: ViewRequest): void {
    this.remember();
    const isOther = (this.coming ?? this.shown)?.change(request) ?? false;
    if (isOther && this.coming === null) this.letGo();
  }

  private remember(): void {
    const { view } = this;
    if (view === null) return;
    if (this.remembered.size > REMEMBERED_MAX) this.remembered.clear();
    const first = view.firstPosition;
    view.rows.forEach((row, i) => this.remembered.set(first + i, row));
  }

  /** What is known of a row of the table; null for one that was never seen. */
  row(position: number): ShownRow | null {
    const { view } = this;
    if (view === null) return null;
    const row = view.rows[position - view.firstPosition];
    if (row !== undefined) return { row, isOld: false };
    const old = this.remembered.get(position);
    return old === undefined ? null : { row: old, isOld: true };
  }

  /** Where a row stands now: the same row, or one with the same key. */
  find(row: ViewRow, key: readonly number[]): number | null {
    const { view } = this;
    if (view === null) return null;
    let at = view.rows.indexOf(row);
    if (at < 0 && key.length > 0) {
      at = view.rows.findIndex(({ cells }) =>
        key.every((column) => {
          const cell = cells[column];
          const wanted = row.cells[column];
          return cell !== undefined && wanted !== undefined && sameCell(cell, wanted);
        }),
      );
    }
    return at < 0 ? null : view.firstPosition + at;
  }

  /** Rows stay as they are. Others that are asked for are shown as they are then, and stay. */
  pause(): void {
    this.isPaused = true;
    this.hold();
  }

  resume(): void {
    this.isPaused = false;
    this.letGo();
  }

  private hold(): void {
    if (!this.isPaused || this.isHeld || this.shown === null) return;
    // The answer to the last request is still to come, on this stream or on another.
    if (this.coming === null && !this.shown.isCurrent) return;
    this.isHeld = true;
    this.shown.pause();
  }

  private letGo(): void {
    if (!this.isHeld) return;
    this.isHeld = false;
    this.shown?.resume();
  }

  retry(): void {
    this.letGo();
    (this.coming ?? this.shown)?.reopen();
  }

  close(): void {
    this.coming?.close();
    this.shown?.close();
  }
}
