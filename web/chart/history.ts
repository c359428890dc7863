import type { Connection } from "../client/connection.ts";
import { type Batch, boundOfChanges, journalInfo, readChanges, versionAt } from "../client/journal.ts";
import { ServerError } from "../client/errors.ts";
import type { ChartState } from "./chart_state.ts";
import type { Point } from "./time_line.ts";
import { numberOf, rowName, seriesName } from "./values.ts";

/** Rows of the change feed that the server goes through for one chart. */
const CHANGES_MAX = 50_000;
const TRIES_MAX = 8;

/** What came before a chart was opened, and since when it is known. */
export interface History {
  readonly points: ReadonlyMap<string, readonly Point[]>;
  /** Since when all of it is known; null where the journal does not go so far back. */
  readonly sinceMs: number | null;
}

/** A history that is wanted: of the lines there are now, so far back. */
export interface HistoryWish {
  readonly state: ChartState;
  readonly names: ReadonlySet<string>;
  readonly spanMs: number;
}

/** The condition under which rows of the table itself are those of the chart; undefined when there is none. */
function conditionOf({ operations, label, rows }: ChartState): string | null | undefined {
  const conditions = operations.map(([name, condition]) => (name === "where" ? (condition as string) : null));
  if (conditions.includes(null)) return undefined;
  // Without names rows of the past cannot be told apart.
  if (label === "" && rows > 1) return undefined;
  return conditions.length === 0 ? null : conditions.map((condition) => `(${condition})`).join(" and ");
}

/**
 * How the cells of a chart changed before it was opened, from the journal of its table. Null where
 * that cannot be told: no journal, an aggregate, rows without names.
 */
export async function readHistory(connection: Connection, { state, names, spanMs }: HistoryWish): Promise<History | null> {
  const filter = conditionOf(state);
  if (filter === undefined || (filter === null && state.label === "")) return null;
  const { table } = state;
  const journal = await journalInfo(connection, table);
  if (journal === null) return null;
  const { epoch, version } = journal;
  let span = spanMs;
  for (let tries = 0; tries < TRIES_MAX; tries++, span /= 2) {
    const sinceMs = Date.now() - span;
    const { version: from, isReached } = await versionAt(connection, { table, journal, ms: sinceMs });
    const bound = await boundOfChanges(connection, { table, epoch, from }, CHANGES_MAX);
    if (bound < version) continue;
    const columns = [...new Set([...state.values, ...(state.label === "" ? [] : [state.label])])];
    const gathered = new Gathered(state, names, isReached ? sinceMs : null);
    try {
      for await (const batch of readChanges(connection, { table, epoch, from, to: version, columns, filter })) {
        gathered.take(batch);
      }
    } catch (error) {
      if (error instanceof ServerError && error.status !== "UNAVAILABLE") return null;
      throw error;
    }
    return gathered.isClear ? gathered.history : null;
  }
  return null;
}

/** How long a row was there. */
interface Life {
  readonly from: number;
  to: number;
}

/** The points of a change feed. */
class Gathered {
  readonly points = new Map<string, Point[]>();
  /** Of the rows of each name. */
  private readonly lives = new Map<string, Map<bigint, Life>>();

  constructor(
    private readonly state: ChartState,
    private readonly names: ReadonlySet<string>,
    private readonly sinceMs: number | null,
  ) {}

  get history(): History {
    return { points: this.points, sinceMs: this.sinceMs };
  }

  /** Whether each line was one row at a time, the one that is there now in the end. */
  get isClear(): boolean {
    return [...this.lives.values()].every((rows) => {
      const lives = [...rows.values()].sort((a, b) => a.from - b.from);
      const isOneAtATime = lives.every(({ to }, i) => to <= (lives[i + 1]?.from ?? Infinity));
      return isOneAtATime && lives[lives.length - 1]!.to === Infinity;
    });
  }

  take({ schema, length, columns }: Batch): void {
    const place = (name: string): number => schema.fields.findIndex((field) => field.name === name);
    const [types, times, ids] = ["_change_type", "_commit_timestamp", "_row_id"].map((name) => columns[place(name)]!);
    const { label, values } = this.state;
    const labelAt = label === "" ? -1 : place(label);
    for (let i = 0; i < length; i++) {
      const type = types!.cell(i) as string;
      const ms = Number(times!.cell(i)) / 1000;
      const row = labelAt < 0 ? "" : rowName(columns[labelAt]!.cell(i), schema.fields[labelAt]!);
      for (const column of values) {
        const name = seriesName(this.state, row, column);
        if (!this.names.has(name)) continue;
        const at = place(column);
        this.live(name, ids!.cell(i) as bigint, { type, ms });
        this.note(name, { type, ms, value: numberOf(columns[at]!.cell(i), schema.fields[at]!) });
      }
    }
  }

  private live(name: string, id: bigint, { type, ms }: { type: string; ms: number }): void {
    let rows = this.lives.get(name);
    if (rows === undefined) this.lives.set(name, (rows = new Map<bigint, Life>()));
    let life = rows.get(id);
    if (life === undefined) rows.set(id, (life = { from: type === "insert" ? ms : (this.sinceMs ?? 0), to: Infinity }));
    if (type === "delete") life.to = ms;
  }

  private note(name: string, { type, ms, value }: { type: string; ms: number; value: number | null }): void {
    let points = this.points.get(name);
    if (points === undefined) this.points.set(name, (points = []));
    // What was there before the first change had been there since the beginning.
    if (points.length === 0 && this.sinceMs !== null) points.push([this.sinceMs, type === "insert" ? null : value]);
    if (type === "update_preimage") return;
    points.push([ms, type === "delete" ? null : value]);
  }
}
