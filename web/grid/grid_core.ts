import { type Field, isNumeric } from "../client/arrow_type.ts";
import type { Cell } from "../client/cells.ts";
import type { Connection } from "../client/connection.ts";
import { describeTable, type TableDescription } from "../client/description.ts";
import { ServerError } from "../client/errors.ts";
import type { Operation } from "../client/query.ts";
import type { Recovery } from "../client/subscription.ts";
import type { ViewChange, ViewRow } from "../client/view.ts";
import { ColumnLayout } from "./column_layout.ts";
import { filterCondition } from "./filters.ts";
import { Flashes } from "./flashes.ts";
import { exactText } from "./formats.ts";
import { gridConditions, type GridState, queryOf } from "./grid_state.ts";
import { LiveRows } from "./live_rows.ts";
import { RowWindow } from "./row_window.ts";
import { Selection } from "./selection.ts";
import { Statistics } from "./statistics.ts";
import { wantedColumns, wantedRequest } from "./wanted.ts";

/** Rows around an anchored one: it can move by as many from one update to the next. */
const ANCHOR_MARGIN = 500;
const DESCRIBE_AGAIN_MS = 2_000;
/** Operators whose rows are rows of the table, with its columns. */
const SAME_ROWS: ReadonlySet<string> = new Set(["where", "sort", "head", "tail", "slice", "drop"]);

/** What is wrong, as the server would say it: what it said may make no sense. */
function asServerError(error: unknown): ServerError {
  return error instanceof ServerError ? error : new ServerError("DATA_LOSS", String(error));
}

/** The condition that a column holds what a cell does; null when it is not known or cannot be said. */
function keyCondition(field: Field, cell: Cell | undefined): string | null {
  if (cell === undefined) return null;
  const text = exactText(cell, field);
  const result = filterCondition(field, cell === null ? "null" : `= ${isNumeric(field.type) ? text : `'${text}'`}`);
  return result !== null && "where" in result ? result.where : null;
}

/** How a grid is told of its core. */
export interface CoreListener {
  /** Something is to be drawn. */
  dirty(): void;
  /** Columns, filters or their order are others. */
  columnsChanged(): void;
}

/**
 * A table as it is looked at: which rows and columns are in sight, what is asked of the server for
 * that, what came back. It knows no elements.
 */
export class GridCore {
  readonly window = new RowWindow();
  readonly selection = new Selection();
  readonly flashes = new Flashes();
  readonly statistics = new Statistics();
  readonly rows: LiveRows;
  fields: readonly Field[] = [];
  layout = new ColumnLayout([], { hidden: [], order: [], widths: {}, frozen: 0 } as unknown as GridState);
  description: TableDescription | null = null;
  private ownKey: readonly string[] | null = null;
  /** All columns of the table itself. */
  tableFields: readonly Field[] = [];
  recovery: Recovery = { kind: "fresh" };
  recoveredAt = -Infinity;
  error: ServerError | null = null;
  notice = "";
  isPaused = false;
  scrollX = 0;
  /** Pixels there are for columns. */
  width = 0;
  /** Whether cells flash: not for who wants less motion. */
  hasFlashes = true;
  anchor: { row: ViewRow; position: number } | null = null;

  private readonly acknowledgements: (() => void)[] = [];
  private readonly sourceTimes: number[] = [];
  /** What is older was held back by a pause. */
  private wentOnAt = -Infinity;
  private timer: ReturnType<typeof setTimeout> | undefined;
  private isClosed = false;
  private readonly unlisten: () => void;

  constructor(
    readonly connection: Connection,
    private current: GridState,
    private readonly listener: CoreListener,
  ) {
    this.rows = new LiveRows(connection, this, 100);
    this.unlisten = connection.changed.add(({ state }) => {
      if (state === "live" && this.description === null) void this.describe();
      this.listener.dirty();
    });
    if (connection.isOpen) void this.describe();
  }

  get state(): GridState {
    return this.current;
  }

  /** Show the table otherwise. */
  change(state: GridState): void {
    const before = this.current;
    this.current = state;
    const isOther = state.table !== before.table || JSON.stringify(state.operations) !== JSON.stringify(before.operations);
    if (isOther) {
      this.description = null;
      this.anchor = null;
      if (this.connection.isOpen) void this.describe();
    } else {
      this.place();
      this.ask();
    }
    this.listener.columnsChanged();
    this.listener.dirty();
  }

  /** What the server says of the table comes first: filters need to know its columns. */
  private async describe(): Promise<void> {
    clearTimeout(this.timer);
    const { table, operations } = this.current;
    const isWanted = (): boolean => !this.isClosed && table === this.current.table && operations === this.current.operations;
    try {
      const description = await describeTable(this.connection, { table, operations });
      const own = await this.describeOwn(description);
      if (!isWanted()) return;
      this.description = description;
      this.tableFields = own?.schema.fields ?? [];
      this.ownKey = own?.isWritable === true ? own.key : null;
      this.error = null;
      this.setFields(description.schema.fields);
      this.ask();
    } catch (error) {
      if (this.isClosed) return;
      this.error = this.connection.isOpen ? asServerError(error) : null; // the pill tells of a loss
      if (this.error === null) return;
      if (this.error.status === "NOT_FOUND") this.timer = setTimeout(() => this.retry(), DESCRIBE_AGAIN_MS);
    }
    this.listener.dirty();
  }

  /** What the server says of the table itself, whose rows may be changed; null where others are shown. */
  private async describeOwn(description: TableDescription): Promise<TableDescription | null> {
    const { table, operations } = this.current;
    if (operations.length === 0) return description;
    if (!operations.every(([name]) => SAME_ROWS.has(name))) return null;
    const own = await describeTable(this.connection, { table, operations: [] });
    return own.key.every((name) => description.schema.fields.some((field) => field.name === name)) ? own : null;
  }

  retry(): void {
    if (!this.connection.isOpen) this.connection.retry();
    else if (this.description === null) void this.describe();
    else this.rows.retry();
  }

  private setFields(fields: readonly Field[]): void {
    this.fields = fields;
    this.place();
    this.listener.columnsChanged();
  }

  private place(): void {
    this.layout = new ColumnLayout(this.fields, this.current);
    const { focus } = this.selection;
    const last = Math.max(0, this.layout.columns.length - 1);
    if (focus.column > last) this.selection.moveTo({ row: focus.row, column: last }, false);
    this.scrollColumns(this.scrollX);
  }

  get problems(): ReadonlyMap<string, string> {
    return gridConditions(this.current, this.fields).problems;
  }

  get follows(): boolean {
    return this.current.follows && this.description?.kind !== "blink";
  }

  /** The key of the table, where rows that are shown are its rows and may be changed; null elsewhere. */
  get writableKey(): readonly string[] | null {
    return this.current.at === "" ? this.ownKey : null;
  }

  get keyIndices(): number[] {
    const key = this.description?.key ?? [];
    return key.map((name) => this.fields.findIndex((field) => field.name === name)).filter((i) => i >= 0);
  }

  /** What leaves nothing but a row: its key where it has one, its position elsewhere. */
  operationsOfRow(position: number): Operation[] {
    const cells = this.rows.row(position)?.row.cells ?? [];
    const conditions = this.keyIndices.map((index) => keyCondition(this.fields[index]!, cells[index]));
    if (conditions.length > 0 && !conditions.includes(null)) {
      return [...this.current.operations, ["where", conditions.join(" and ")]];
    }
    return [...queryOf(this.current, this.fields).operations, ["slice", position, position + 1]];
  }

  /** Ask for what is in sight, if it is not asked for. */
  ask(): void {
    if (this.description === null || this.width === 0) return;
    const asked = this.rows.request;
    const columns = wantedColumns(
      this.layout,
      {
        from: this.scrollX,
        width: this.width - this.layout.frozenWidth,
        always: this.anchor === null && this.writableKey === null ? [] : this.keyIndices,
      },
      asked?.columns ?? null,
    );
    const margin = this.anchor === null ? Math.ceil(this.window.page) : ANCHOR_MARGIN;
    const request = wantedRequest(this.window, { follows: this.follows, margin, columns }, asked);
    this.rows.arePassing = this.description.kind === "blink";
    this.rows.show(queryOf(this.current, this.fields), request);
  }

  /** Something was scrolled or has another size. */
  moved(): void {
    this.ask();
    this.listener.dirty();
  }

  scrollColumns(to: number): void {
    const inSight = this.width - this.layout.frozenWidth;
    this.scrollX = Math.max(0, Math.min(to, this.layout.movingWidth - inSight));
  }

  /** Scroll to a row; who does so does not follow the end any more. */
  scrollTo(row: number): void {
    this.window.scrollTo(row);
    this.leaveEnd();
    this.moved();
  }

  private leaveEnd(): void {
    if (this.current.follows) {
      this.current = { ...this.current, follows: false };
      this.listener.columnsChanged();
    }
  }

  setAnchor(position: number | null): void {
    const shown = position === null ? null : this.rows.row(position);
    this.anchor = shown === null || position === null ? null : { row: shown.row, position };
    this.notice = "";
    this.moved();
  }

  setPaused(isPaused: boolean): void {
    this.isPaused = isPaused;
    if (isPaused) this.rows.pause();
    else {
      this.wentOnAt = Date.now();
      this.rows.resume();
    }
    this.listener.dirty();
  }

  // What the rows tell.

  changed(change: ViewChange, acknowledge: () => void): void {
    const now = Date.now();
    this.error = null;
    this.acknowledgements.push(acknowledge);
    this.statistics.arrived(now, this.connection.bytesReceived);
    if (change.sourceTimeNs !== null && !change.isSnapshot && !this.isPaused) {
      const time = Number(change.sourceTimeNs / 1000n) / 1000;
      if (time >= this.wentOnAt) this.sourceTimes.push(time);
    }
    const { view } = this.rows;
    if (view !== null) {
      if (this.hasFlashes) this.flashes.note(change, view, now);
      this.window.size = view.tableSize;
    }
    this.keepAnchor();
    if (this.isPaused) {
      // What the window has moved to is still asked for, before nothing comes any more.
      this.settle();
      this.ask();
    }
    this.listener.dirty();
  }

  private keepAnchor(): void {
    if (this.anchor === null) return;
    const position = this.rows.find(this.anchor.row, this.keyIndices);
    if (position === null) {
      // It may come back with the view that was asked for.
      if (!this.rows.isCurrent) return;
      this.anchor = null;
      this.notice = "The anchored row is not in the table any more, or went too far at once.";
      return;
    }
    const moved = position - this.anchor.position;
    const shown = this.rows.row(position);
    if (shown !== null) this.anchor = { row: shown.row, position };
    if (moved === 0) return;
    this.window.top = Math.max(0, this.window.top + moved);
    const { focus } = this.selection;
    if (focus.row >= 0) this.selection.moveTo({ row: Math.max(0, focus.row + moved), column: focus.column }, false);
    this.ask();
  }

  columnsChanged(fields: readonly Field[]): void {
    this.flashes.clear();
    this.setFields(fields);
  }

  recovered(recovery: Recovery): void {
    this.recovery = recovery;
    this.recoveredAt = recovery.kind === "fresh" ? -Infinity : Date.now();
    this.listener.dirty();
  }

  failed(error: ServerError): void {
    this.error = error;
    // The table may have come back with other columns than filters and sorting were made for.
    const isOfColumns = error.status === "INVALID_ARGUMENT" || error.status === "FAILED_PRECONDITION";
    if (isOfColumns) void this.describeAfter(error);
    this.listener.dirty();
  }

  private async describeAfter(error: ServerError): Promise<void> {
    const before = this.fields.map(({ name }) => name).join("\0");
    await this.describe();
    if (this.fields.map(({ name }) => name).join("\0") === before) this.error ??= error;
    this.listener.dirty();
  }

  /** The rows stand on the screen: take more, and note how old they were. */
  painted(now: number): void {
    for (const acknowledge of this.acknowledgements.splice(0)) acknowledge();
    for (const time of this.sourceTimes.splice(0)) this.statistics.painted(now - time);
  }

  /** Put the window right for the rows that there are. */
  settle(): void {
    if (this.rows.view === null) return;
    if (this.follows) this.window.top = this.window.topMax;
    else this.window.scrollTo(this.window.top);
  }

  close(): void {
    this.isClosed = true;
    clearTimeout(this.timer);
    this.unlisten();
    this.rows.close();
  }
}
