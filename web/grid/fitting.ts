import { defaultWidth, type PlacedColumn, WIDTH_MIN } from "./column_layout.ts";
import { type CellFormat, shownText } from "./formats.ts";
import type { GridCore } from "./grid_core.ts";

const WIDTH_FIT_MAX = 600;

/** Widths by name that fit what stands in columns now. */
export function fittingWidths(
  core: GridCore,
  names: readonly string[],
  { family, format }: { family: string; format(name: string): CellFormat },
): Record<string, number> {
  const context = document.createElement("canvas").getContext("2d");
  const { view } = core.rows;
  const width = (column: PlacedColumn): number => {
    if (view === null || context === null) return defaultWidth(column.field);
    context.font = `600 13px ${family}`;
    let widest = context.measureText(column.field.name).width + 26;
    context.font = `13px ${family}`;
    for (const { cells } of view.rows) {
      const cell = cells[column.index];
      if (cell === undefined) continue;
      const text = shownText(cell, column.field, format(column.field.name));
      widest = Math.max(widest, context.measureText(text).width + 24);
    }
    return Math.round(Math.min(WIDTH_FIT_MAX, Math.max(WIDTH_MIN, widest)));
  };
  const chosen = core.layout.columns.filter(({ field }) => names.includes(field.name));
  return Object.fromEntries(chosen.map((column) => [column.field.name, width(column)]));
}
