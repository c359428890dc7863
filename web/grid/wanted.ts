import type { ViewRequest } from "../client/request.ts";
import type { ColumnLayout } from "./column_layout.ts";
import { type RowWindow, wantedRows } from "./row_window.ts";

/** Columns asked for on either side of those in sight. */
const COLUMN_MARGIN = 2;

/** The indices of the columns in sight and `always`; those asked for already, if they will do. */
export function wantedColumns(
  layout: ColumnLayout,
  sight: { from: number; width: number; always: readonly number[] },
  asked: readonly number[] | null,
): number[] {
  const moving = layout.moving(sight.from, sight.width);
  const near = new Set([...layout.frozen, ...moving].map(({ index }) => index));
  for (const index of sight.always) near.add(index);
  const allowed = new Set(layout.columns.map(({ index }) => index));
  for (const index of sight.always) allowed.add(index);
  const first = (moving[0]?.place ?? 0) - COLUMN_MARGIN;
  const last = (moving[moving.length - 1]?.place ?? -1) + COLUMN_MARGIN;
  const wide = new Set(near);
  for (const { place, index } of layout.columns) if (place >= first && place <= last) wide.add(index);
  const isEnough =
    asked !== null &&
    asked.length <= wide.size + 2 * COLUMN_MARGIN &&
    asked.every((index) => allowed.has(index)) &&
    [...near].every((index) => asked.includes(index));
  return isEnough ? [...asked] : [...wide].sort((a, b) => a - b);
}

/** The rows to ask for: those in sight and some around them, or the last ones. */
export function wantedRequest(
  window: RowWindow,
  options: { follows: boolean; margin: number; columns: readonly number[] },
  asked: ViewRequest | null,
): ViewRequest {
  const { follows, margin, columns } = options;
  if (follows) {
    const count = Math.ceil(window.page) + margin;
    const isEnough = asked?.isReverse === true && asked.count >= count && asked.count <= 2 * count;
    return { first: 0, count: isEnough ? asked.count : count, isReverse: true, columns };
  }
  const before = asked === null || asked.isReverse ? { first: 0, count: 0 } : asked;
  return { ...wantedRows(window, before, margin), isReverse: false, columns };
}
