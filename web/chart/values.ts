import { type Field, isNumeric, nanosOf } from "../client/arrow_type.ts";
import type { Cell } from "../client/cells.ts";
import { DEFAULT_FORMAT, shownText } from "../grid/formats.ts";
import type { ChartState } from "./chart_state.ts";

/** Whether a column has numbers that can be drawn. */
export function isDrawable({ type }: Field): boolean {
  return isNumeric(type) || type.kind === "bool" || type.kind === "duration";
}

/** The number to draw for a cell, as near as a pixel needs it; null for none. */
export function numberOf(cell: Cell | undefined, { type }: Field): number | null {
  if (typeof cell === "boolean") return Number(cell);
  if (typeof cell !== "number" && typeof cell !== "bigint") return null;
  if (type.kind === "decimal") return Number(cell) / 10 ** type.scale;
  if (type.kind === "duration") return Number(cell) / Number(1_000_000_000n / nanosOf(type.unit));
  const number = Number(cell);
  return Number.isFinite(number) ? number : null;
}

/** What names a row. */
export function rowName(cell: Cell | undefined, field: Field): string {
  return cell === undefined ? "" : shownText(cell, field, { ...DEFAULT_FORMAT, numbers: "plain" });
}

/** The name of a line: of its row, its column, or both. */
export function seriesName({ values, label, rows }: ChartState, row: string, column: string): string {
  if (label === "" && rows === 1) return column;
  return values.length > 1 ? `${row} ${column}` : row;
}

/** Milliseconds of a cell of a column of times; null for other columns. */
export function millisOf(cell: number | bigint, { type }: Field): number | null {
  if (type.kind === "timestamp") return Number((BigInt(cell) * nanosOf(type.unit)) / 1_000n) / 1000;
  if (type.kind === "date") return type.unit === "day" ? Number(cell) * 86_400_000 : Number(cell);
  return null;
}
