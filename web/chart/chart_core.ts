import type { Field } from "../client/arrow_type.ts";
import { isNumeric } from "../client/arrow_type.ts";
import type { Cell } from "../client/cells.ts";
import type { Connection } from "../client/connection.ts";
import { describeTable } from "../client/description.ts";
import { ServerError } from "../client/errors.ts";
import { ticketOf } from "../client/query.ts";
import { type Recovery, ViewSubscription } from "../client/subscription.ts";
import type { ViewChange } from "../client/view.ts";
import type { ChartState } from "./chart_state.ts";
import { readHistory } from "./history.ts";
import { type PlotData, SERIES_MAX, TimeLine } from "./time_line.ts";
import { isDrawable, millisOf, numberOf, rowName, seriesName } from "./values.ts";

const DESCRIBE_AGAIN_MS = 2_000;

/** A row of a chart that is no line over time: its place on the axis and its values. */
export interface ChartRow {
  readonly name: string;
  readonly cells: readonly (Cell | undefined)[];
  readonly values: readonly (number | null)[];
  /** Where it stands along the axis of the chart; its number where there is none. */
  readonly at: number;
}

/** What a chart shows, as it changes. It knows no elements. */
export class ChartCore {
  fields: readonly Field[] = [];
  recovery: Recovery = { kind: "fresh" };
  recoveredAt = -Infinity;
  error: ServerError | null = null;
  /** What a line shows of the time before it was opened. */
  historyText = "";
  updateCount = 0;

  private rows: ViewSubscription | null = null;
  private line: TimeLine;
  private timer: ReturnType<typeof setTimeout> | undefined;
  private isClosed = false;
  private readonly acknowledgements: (() => void)[] = [];
  private readonly unlisten: () => void;

  constructor(
    readonly connection: Connection,
    readonly state: ChartState,
    private readonly dirty: () => void,
  ) {
    this.line = new TimeLine(state.seconds * 1000);
    this.unlisten = connection.changed.add(({ state: now }) => {
      if (now === "live" && this.rows === null) void this.describe();
      this.dirty();
    });
    if (connection.isOpen) void this.describe();
  }

  get isOverTime(): boolean {
    return this.state.kind === "line" && this.state.along === "";
  }

  get hasRows(): boolean {
    return (this.rows?.view ?? null) !== null;
  }

  /** The columns that are shown: those that were chosen, or the first with numbers. */
  get shownValues(): readonly string[] {
    if (this.state.values.length > 0) return this.state.values;
    const { label, along } = this.state;
    const free = this.fields.filter((field) => isNumeric(field.type) && field.name !== label && field.name !== along);
    return free.slice(0, 1).map(({ name }) => name);
  }

  field(name: string): Field | undefined {
    return this.fields.find((field) => field.name === name);
  }

  private async describe(): Promise<void> {
    clearTimeout(this.timer);
    try {
      const { schema } = await describeTable(this.connection, this.state);
      if (this.isClosed) return;
      this.error = null;
      if (this.setFields(schema.fields)) this.subscribe();
    } catch (error) {
      if (this.isClosed || !this.connection.isOpen) return;
      this.error = error instanceof ServerError ? error : new ServerError("DATA_LOSS", String(error));
      if (this.error.status === "NOT_FOUND") this.timer = setTimeout(() => this.retry(), DESCRIBE_AGAIN_MS);
    }
    this.dirty();
  }

  retry(): void {
    if (!this.connection.isOpen) this.connection.retry();
    else if (this.rows === null) void this.describe();
    else this.rows.reopen();
  }

  /** Whether they are such as the chart needs. */
  private setFields(fields: readonly Field[]): boolean {
    this.fields = fields;
    const missing = this.wantedNames.filter((name) => this.field(name) === undefined);
    const values = this.shownValues.map((name) => this.field(name));
    if (missing.length > 0) return this.fail(`there is no column ${missing.join(", ")}`);
    if (values.length === 0) return this.fail("there is no column with numbers");
    return values.every((field) => isDrawable(field!)) || this.fail("a column that is shown has no numbers");
  }

  private fail(message: string): false {
    this.error = new ServerError("INVALID_ARGUMENT", message);
    return false;
  }

  private get wantedNames(): string[] {
    const { label, along } = this.state;
    return [...this.shownValues, label, along].filter((name) => name !== "");
  }

  private subscribe(): void {
    const wanted = new Set(this.wantedNames);
    const columns = this.fields.flatMap(({ name }, index) => (wanted.has(name) ? [index] : []));
    const { rows: count, isFromEnd } = this.state;
    const rows = new ViewSubscription(this.connection, ticketOf(this.state), {
      request: { first: 0, count, isReverse: isFromEnd, columns },
      intervalMs: 100,
      applied: (acknowledge) => this.acknowledgements.push(acknowledge),
    });
    this.rows = rows;
    rows.replaced.add(({ schema }) => {
      const isSame = schema.fields.map(({ name }) => name).join("\0") === this.fields.map(({ name }) => name).join("\0");
      if (!isSame) this.begin();
    });
    rows.updated.add((change) => this.changed(change));
    rows.recovered.add((recovery) => {
      this.recovery = recovery;
      if (recovery.kind === "replayed" || recovery.kind === "resnapshot") this.interrupt();
      this.recoveredAt = recovery.kind === "fresh" ? -Infinity : Date.now();
    });
    rows.failed.add((error) => {
      this.error = error;
      this.dirty();
    });
  }

  /** The table has other columns than before. */
  private begin(): void {
    this.rows?.close();
    this.rows = null;
    void this.describe();
  }

  private changed(change: ViewChange): void {
    this.error = null;
    this.updateCount++;
    if (this.isOverTime) {
      const at = change.sourceTimeNs === null || change.isSnapshot ? Date.now() : Number(change.sourceTimeNs / 1000n) / 1000;
      const isFirst = this.line.last === null;
      this.line.add(at, this.current());
      if (isFirst) void this.lookBack();
    }
    this.dirty();
  }

  /** What happens from the last update to the next one will not be known. */
  interrupt(): void {
    this.line.interrupt();
  }

  /** Ask the journal for what was before. */
  private async lookBack(): Promise<void> {
    const { line, state } = this;
    const names = new Set(line.names);
    const view = this.rows?.view ?? null;
    const areRowsNamed = view !== null && names.size === Math.min(view.rows.length, SERIES_MAX) * this.shownValues.length;
    if (!areRowsNamed || (state.label === "" && view.tableSize !== 1)) return;
    try {
      const wish = { state: { ...state, values: this.shownValues }, names, spanMs: state.seconds * 1000 };
      const history = await readHistory(this.connection, wish);
      if (history === null || this.isClosed) return;
      line.prepend(history.points, history.sinceMs);
      this.historyText = "history from the journal";
      this.dirty();
    } catch (error) {
      if (!(error instanceof ServerError)) throw error; // the connection was lost: there is no history then
    }
  }

  /** The values of all lines now. */
  private current(): Map<string, number | null> {
    const { state } = this;
    const names = this.shownValues;
    const values = new Map<string, number | null>();
    for (const row of this.chartRows(SERIES_MAX)) {
      row.values.forEach((value, i) => values.set(seriesName({ ...state, values: names }, row.name, names[i]!), value));
    }
    return values;
  }

  /** The rows in the window, as they are now. */
  chartRows(countMax = Infinity): ChartRow[] {
    const { rows, state } = this;
    const view = rows?.view ?? null;
    if (view === null) return [];
    const place = (name: string): number => this.fields.findIndex((field) => field.name === name);
    const at = this.shownValues.map(place);
    const [label, along] = [place(state.label), place(state.along)];
    return view.rows.slice(0, countMax).map(({ cells }, i) => {
      const cell = cells[along];
      const field = this.fields[along];
      const position = view.firstPosition + i;
      const where = field === undefined ? position : (millisecondsOrNumber(cell, field) ?? NaN);
      return {
        name: label < 0 ? String(position) : rowName(cells[label], this.fields[label]!),
        cells: at.map((index) => cells[index]),
        values: at.map((index) => numberOf(cells[index], this.fields[index]!)),
        at: where,
      };
    });
  }

  /** The lines over time as they are at a time, in milliseconds. */
  timeData(now: number): PlotData {
    return this.line.data(this.connection.state === "live" ? now : 0);
  }

  /** What there is stands on the screen. */
  painted(): void {
    for (const acknowledge of this.acknowledgements.splice(0)) acknowledge();
  }

  close(): void {
    this.isClosed = true;
    clearTimeout(this.timer);
    this.unlisten();
    this.rows?.close();
  }
}

function millisecondsOrNumber(cell: Cell | undefined, field: Field): number | null {
  if (typeof cell === "number" || typeof cell === "bigint") {
    const ms = millisOf(cell, field);
    if (ms !== null) return ms;
  }
  return numberOf(cell, field);
}
