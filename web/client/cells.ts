/** A duration in months, days and nanoseconds, none of which is a number of the others. */
export interface CalendarSpan {
  readonly months: number;
  readonly days: number;
  readonly nanoseconds: bigint;
}

/**
 * The value of a cell. Integers of 64 bits, decimals (unscaled), timestamps, durations and times
 * are bigints in the unit of their type, so nothing is rounded; null is null alone.
 */
export type Cell =
  | null
  | boolean
  | number
  | bigint
  | string
  | Uint8Array
  | CalendarSpan
  | readonly Cell[]
  | { readonly [member: string]: Cell };

/** Whether two cells hold the same value. */
export function sameCell(a: Cell, b: Cell): boolean {
  if (Object.is(a, b)) return true;
  if (typeof a !== "object" || typeof b !== "object" || a === null || b === null) return false;
  if (a instanceof Uint8Array || b instanceof Uint8Array) {
    if (!(a instanceof Uint8Array && b instanceof Uint8Array)) return false;
    return a.length === b.length && a.every((byte, i) => byte === b[i]);
  }
  const these = Object.entries(a) as [string, Cell][];
  const those = b as { readonly [member: string]: Cell };
  return (
    Array.isArray(a) === Array.isArray(b) &&
    these.length === Object.keys(b).length &&
    these.every(([name, cell]) => name in those && sameCell(cell, those[name]!))
  );
}
