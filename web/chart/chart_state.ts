import type { Operation } from "../client/query.ts";
import { NUMBER_STYLES, type NumberStyle } from "../grid/formats.ts";

/**
 * - `line`: how cells change over time, or one column over another one;
 * - `bars`: a bar for each of the first or last rows;
 * - `number`: the cell of the first row, large.
 */
export const CHART_KINDS = ["line", "bars", "number"] as const;
export type ChartKind = (typeof CHART_KINDS)[number];

export const LEVELS = ["good", "wary", "bad"] as const;
export type Level = (typeof LEVELS)[number];

/** From this value on, up to the next threshold, a value is good, or not. */
export interface Threshold {
  readonly from: number;
  readonly level: Level;
}

/** A chart of a table or query: everything that a link brings back. */
export interface ChartState {
  readonly table: string;
  readonly operations: readonly Operation[];
  readonly kind: ChartKind;
  /** The columns whose numbers are shown; the first one alone by bars and numbers. */
  readonly values: readonly string[];
  /** The column that names rows; without one their numbers do. */
  readonly label: string;
  /** The column along which a line goes; empty for the time at which cells changed. */
  readonly along: string;
  /** How many rows are looked at, and whether they are the last ones. */
  readonly rows: number;
  readonly isFromEnd: boolean;
  /** How far back a line over time goes. */
  readonly seconds: number;
  readonly thresholds: readonly Threshold[];
  readonly numbers: NumberStyle;
}

export const ROWS_MAX = 2_000;
export const VALUES_MAX = 8;
export const SPANS: readonly number[] = [30, 60, 300, 900, 3_600, 21_600];
const THRESHOLDS_MAX = 8;

export function emptyChart(table: string, kind: ChartKind): ChartState {
  return {
    table,
    kind,
    operations: [],
    values: [],
    label: "",
    along: "",
    rows: kind === "bars" ? 20 : 1,
    isFromEnd: false,
    seconds: 300,
    thresholds: [],
    numbers: "auto",
  };
}

/** Only what differs from a chart that nobody touched. */
export function compactChart(state: ChartState): Partial<ChartState> {
  const empty = emptyChart(state.table, state.kind);
  const differing = Object.entries(state).filter(
    ([name, value]) =>
      name === "table" ||
      name === "kind" ||
      JSON.stringify(value) !== JSON.stringify(empty[name as keyof ChartState]),
  );
  return Object.fromEntries(differing);
}

type Unchecked = Readonly<Record<string, unknown>>;

const isText = (value: unknown): value is string => typeof value === "string";

const text = (value: unknown): string => (isText(value) ? value : "");

function within(value: unknown, [least, most]: readonly [number, number], otherwise: number): number {
  return typeof value === "number" && value >= least && value <= most ? Math.floor(value) : otherwise;
}

function readThreshold(value: unknown): Threshold[] {
  const { from, level } = (value ?? {}) as Unchecked;
  const known = LEVELS.find((one) => one === level);
  return typeof from === "number" && known !== undefined ? [{ from, level: known }] : [];
}

/** A state from a link or a saved board, of which anybody may have written anything. */
export function readChart(value: unknown): ChartState | null {
  if (typeof value !== "object" || value === null) return null;
  const given = value as Unchecked;
  const kind = CHART_KINDS.find((one) => one === given.kind);
  if (!isText(given.table) || given.table === "" || kind === undefined) return null;
  const empty = emptyChart(given.table, kind);
  const list = (item: unknown): unknown[] => (Array.isArray(item) ? item : []);
  return {
    ...empty,
    operations: list(given.operations).filter(
      (operation): operation is Operation => Array.isArray(operation) && isText(operation[0]),
    ),
    values: list(given.values).filter(isText).slice(0, VALUES_MAX),
    label: text(given.label),
    along: text(given.along),
    rows: within(given.rows, [1, ROWS_MAX], empty.rows),
    isFromEnd: given.isFromEnd === true,
    seconds: within(given.seconds, [1, SPANS[SPANS.length - 1]!], empty.seconds),
    thresholds: list(given.thresholds).flatMap(readThreshold).slice(0, THRESHOLDS_MAX),
    numbers: NUMBER_STYLES.find((style) => style === given.numbers) ?? "auto",
  };
}

/** Thresholds as somebody writes them: `70 wary, 90 bad`. */
export function writeThresholds(thresholds: readonly Threshold[]): string {
  return thresholds.map(({ from, level }) => `${from} ${level}`).join(", ");
}

export function parseThresholds(line: string): readonly Threshold[] | { readonly problem: string } {
  const parts = line.split(",").map((part) => part.trim()).filter(Boolean);
  const read: Threshold[] = [];
  for (const part of parts.slice(0, THRESHOLDS_MAX)) {
    const [, from, level] = /^([-+.\deE]+)\s+([a-z]+)$/.exec(part) ?? [];
    const known = LEVELS.find((one) => one === level);
    if (known === undefined || !Number.isFinite(Number(from))) {
      return { problem: `${part} is no threshold, such as 90 bad (there are ${LEVELS.join(", ")})` };
    }
    read.push({ from: Number(from), level: known });
  }
  return read.sort((a, b) => a.from - b.from);
}

/** The level of a value: that of the highest threshold it has reached. */
export function levelOf(value: number, thresholds: readonly Threshold[]): Level | null {
  let level: Level | null = null;
  let highest = -Infinity;
  for (const threshold of thresholds) {
    if (value < threshold.from || threshold.from < highest) continue;
    highest = threshold.from;
    level = threshold.level;
  }
  return level;
}
