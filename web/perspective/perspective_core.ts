import type { Field, Schema } from "../client/arrow_type.ts";
import type { Connection } from "../client/connection.ts";
import { describeTable } from "../client/description.ts";
import { ServerError } from "../client/errors.ts";
import { ticketOf } from "../client/query.ts";
import { sameColumns } from "../client/schema.ts";
import { type Recovery, ViewSubscription } from "../client/subscription.ts";
import type { View, ViewChange } from "../client/view.ts";
import type { ToFrame } from "./frame_messages.ts";
import { FrameRows } from "./frame_rows.ts";
import type { PerspectiveState } from "./perspective_state.ts";

const DESCRIBE_AGAIN_MS = 2_000;

/** Rows and cells that the page holds for one viewer; of a larger table it has the first rows. */
export const ROWS_MAX = 100_000;
export const CELLS_MAX = 2_000_000;

export interface FrameListener {
  /** A table with other columns than before, or the first one. */
  begin(rows: Uint8Array<ArrayBuffer>, table: FrameRows): void;
  send(message: Extract<ToFrame, { kind: "update" | "replace" }>): void;
  /** Something else is to be said of it. */
  dirty(): void;
}

/** The rows of a table or query on their way into a frame. It knows no elements. */
export class PerspectiveCore {
  error: ServerError | null = null;
  recovery: Recovery = { kind: "fresh" };
  recoveredAt = -Infinity;

  private schema: Schema | null = null;
  private rows: ViewSubscription | null = null;
  private table: FrameRows | null = null;
  private shown: View | null = null;
  private isClosed = false;
  private timer: ReturnType<typeof setTimeout> | undefined;
  private readonly acknowledgements: (() => void)[] = [];
  private readonly unlisten: () => void;

  constructor(
    readonly connection: Connection,
    readonly state: PerspectiveState,
    private readonly frame: FrameListener,
  ) {
    this.unlisten = connection.changed.add(({ state: now }) => {
      if (now === "live" && this.rows === null) void this.describe();
      this.frame.dirty();
    });
    if (connection.isOpen) void this.describe();
  }

  get fields(): readonly Field[] {
    return this.schema?.fields ?? [];
  }

  get hasRows(): boolean {
    return this.shown !== null;
  }

  /** How many rows the frame has, and how many the table. */
  get counts(): { readonly here: number; readonly whole: number } | null {
    return this.shown === null ? null : { here: this.shown.rows.length, whole: this.shown.tableSize };
  }

  retry(): void {
    if (!this.connection.isOpen) this.connection.retry();
    else if (this.rows === null) void this.describe();
    else this.rows.reopen();
  }

  private async describe(): Promise<void> {
    clearTimeout(this.timer);
    try {
      const { schema } = await describeTable(this.connection, this.state);
      if (this.isClosed || this.rows !== null) return;
      this.error = null;
      this.schema = schema;
      this.subscribe();
    } catch (error) {
      if (this.isClosed || !this.connection.isOpen) return;
      this.error = error instanceof ServerError ? error : new ServerError("DATA_LOSS", String(error));
      if (this.error.status === "NOT_FOUND") this.timer = setTimeout(() => this.retry(), DESCRIBE_AGAIN_MS);
    }
    this.frame.dirty();
  }

  private subscribe(): void {
    const count = Math.max(1, Math.min(ROWS_MAX, Math.floor(CELLS_MAX / Math.max(1, this.fields.length))));
    const rows = new ViewSubscription(this.connection, ticketOf(this.state), {
      request: { first: 0, count, isReverse: false, columns: null },
      intervalMs: 100,
      applied: (acknowledge) => this.acknowledgements.push(acknowledge),
    });
    this.rows = rows;
    rows.updated.add((change) => this.changed(rows.view!, change));
    rows.recovered.add((recovery) => {
      this.recovery = recovery;
      this.recoveredAt = recovery.kind === "fresh" ? -Infinity : Date.now();
    });
    rows.failed.add((error) => {
      this.error = error;
      this.frame.dirty();
    });
  }

  private changed(view: View, change: ViewChange): void {
    this.error = null;
    if (view === this.shown) this.frame.send(this.table!.changed(view, change));
    else this.replaced(view);
    this.frame.dirty();
  }

  private replaced(view: View): void {
    const isSame = this.table !== null && this.schema !== null && sameColumns(view.schema, this.schema);
    this.shown = view;
    this.schema = view.schema;
    if (isSame) {
      this.frame.send({ kind: "replace", rows: this.table!.all(view) });
    } else {
      this.table = new FrameRows(this.fields);
      this.frame.begin(this.table.all(view), this.table);
    }
  }

  /** The frame has the rows of one update. */
  applied(): void {
    this.acknowledgements.shift()?.();
  }

  close(): void {
    this.isClosed = true;
    clearTimeout(this.timer);
    this.unlisten();
    this.rows?.close();
  }
}
