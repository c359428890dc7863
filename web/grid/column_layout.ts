import { type Field, isNumeric } from "../client/arrow_type.ts";
import type { GridState } from "./grid_state.ts";

/** A column as it stands on the page. */
export interface PlacedColumn {
  /** Index in the table. */
  readonly index: number;
  readonly field: Field;
  /** Place among all columns that are not hidden. */
  readonly place: number;
  /** From the left edge of the frozen columns, or of the others. */
  readonly left: number;
  readonly width: number;
  readonly isFrozen: boolean;
}

export const WIDTH_MIN = 40;
export const WIDTH_MAX = 1200;
const CHARACTER = 7.6;
const PADDING = 24;

/** A width that fits what such a column usually holds, and its name. */
export function defaultWidth(field: Field): number {
  const { type } = field;
  const characters: Readonly<Record<string, number>> = {
    bool: 6,
    text: 13,
    timestamp: type.kind === "timestamp" && type.unit === "ns" ? 30 : 25,
    date: 11,
    time: 15,
    duration: 15,
    binary: 22,
    list: 24,
  };
  let wide = characters[type.kind] ?? 12;
  if (type.kind === "int") wide = type.bits === 64 ? 14 : type.bits === 32 ? 11 : 7;
  const name = field.name.length + 3;
  return Math.round(Math.min(320, Math.max(wide, name) * CHARACTER + PADDING));
}

/** The fields that are shown, in their order on the page. */
export function shownFields(fields: readonly Field[], state: GridState): { field: Field; index: number }[] {
  const hidden = new Set(state.hidden);
  const ranks = new Map(state.order.map((name, rank) => [name, rank]));
  return fields
    .map((field, index) => ({ field, index }))
    .filter(({ field }) => !hidden.has(field.name))
    .sort((a, b) => {
      const rank = (ranks.get(a.field.name) ?? Infinity) - (ranks.get(b.field.name) ?? Infinity);
      return Number.isNaN(rank) || rank === 0 ? a.index - b.index : rank;
    });
}

export class ColumnLayout {
  readonly columns: readonly PlacedColumn[];
  readonly frozenWidth: number;
  /** Width of the columns that move. */
  readonly movingWidth: number;

  constructor(fields: readonly Field[], state: GridState) {
    const placed: PlacedColumn[] = [];
    let left = 0;
    let frozenWidth = 0;
    shownFields(fields, state).forEach(({ field, index }, place) => {
      const isFrozen = place < state.frozen;
      if (place === state.frozen) left = 0;
      const width = state.widths[field.name] ?? defaultWidth(field);
      placed.push({ index, field, place, left, width, isFrozen });
      left += width;
      if (isFrozen) frozenWidth = left;
    });
    this.columns = placed;
    this.frozenWidth = frozenWidth;
    this.movingWidth = placed.length > state.frozen ? left : 0;
  }

  get frozen(): readonly PlacedColumn[] {
    return this.columns.filter(({ isFrozen }) => isFrozen);
  }

  /** The columns that move and are in sight. */
  moving(from: number, width: number): PlacedColumn[] {
    const all = this.columns;
    let low = 0;
    let high = all.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      const { isFrozen, left, width: own } = all[middle]!;
      if (isFrozen || left + own <= from) low = middle + 1;
      else high = middle;
    }
    const inSight: PlacedColumn[] = [];
    for (; low < all.length && all[low]!.left < from + width; low++) inSight.push(all[low]!);
    return inSight;
  }
}

export function alignsRight(field: Field): boolean {
  return field.dictionary === null && isNumeric(field.type);
}
