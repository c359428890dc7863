import { type AlertRule, readAlerts } from "../alerts/alert_rule.ts";
import { readChart } from "../chart/chart_state.ts";
import { emptyState, readState } from "../grid/grid_state.ts";
import { readPerspective } from "../perspective/perspective_state.ts";
import type { PanelContent } from "./panel.ts";

/** Something with a share of the width of its row. */
export interface Sized {
  readonly width: number;
}

/** Rows of panels from top to bottom; heights and widths are shares. */
export interface Layout<Panel extends Sized> {
  readonly rows: readonly { readonly panels: readonly Panel[]; readonly height: number }[];
}

/** One panel of a board. */
export type PanelState = Sized & PanelContent;

export interface BoardState extends Layout<PanelState> {
  readonly alerts: readonly AlertRule[];
}

export const PANELS_MAX = 16;

export function boardOf(table: string): BoardState {
  return { rows: [{ height: 1, panels: [{ grid: emptyState(table), width: 1 }] }], alerts: [] };
}

function share(value: unknown): number {
  return typeof value === "number" && value > 0.01 && value < 100 ? value : 1;
}

type Unchecked = Readonly<Record<string, unknown>>;

function readContent(given: Unchecked): PanelContent | null {
  const [grid, chart, perspective] = [readState(given.grid), readChart(given.chart), readPerspective(given.perspective)];
  if (chart !== null) return { chart };
  if (perspective !== null) return { perspective };
  return grid === null ? null : { grid };
}

/** A board from a link or the server; null when it is none. */
export function readBoard(value: unknown): BoardState | null {
  if (typeof value !== "object" || value === null || !Array.isArray((value as { rows?: unknown }).rows)) return null;
  let left = PANELS_MAX;
  const rows = (value as { rows: unknown[] }).rows.flatMap((row) => {
    const { panels, height } = (row ?? {}) as { panels?: unknown; height?: unknown };
    const read = (Array.isArray(panels) ? panels : []).flatMap((panel): PanelState[] => {
      const content = readContent((panel ?? {}) as Unchecked);
      if (content === null || left-- <= 0) return [];
      return [{ ...content, width: share((panel as Unchecked).width) }];
    });
    return read.length === 0 ? [] : [{ panels: read, height: share(height) }];
  });
  return rows.length === 0 ? null : { rows, alerts: readAlerts((value as { alerts?: unknown }).alerts) };
}

export type Side = "left" | "right" | "above" | "below";

export interface Spot {
  readonly row: number;
  readonly column: number;
}

/** A board with a panel more, beside another one. */
export function withPanel<P extends Sized>(board: Layout<P>, panel: P, at: Spot & { side: Side }): Layout<P> {
  const rows = board.rows.map((row) => ({ ...row, panels: [...row.panels] }));
  const { row, column, side } = at;
  if (side === "above" || side === "below" || rows[row] === undefined) {
    const place = rows[row] === undefined ? rows.length : row + (side === "below" ? 1 : 0);
    rows.splice(place, 0, { height: 1, panels: [{ ...panel, width: 1 }] });
  } else {
    rows[row].panels.splice(column + (side === "right" ? 1 : 0), 0, panel);
  }
  return { rows };
}

export function withoutPanel<P extends Sized>(board: Layout<P>, { row, column }: Spot): Layout<P> {
  const rows = board.rows.map((one, i) =>
    i === row ? { ...one, panels: one.panels.filter((_, j) => j !== column) } : one,
  );
  return { rows: rows.filter(({ panels }) => panels.length > 0) };
}

/** A panel taken to the side of another one. */
export function withMoved<P extends Sized>(board: Layout<P>, from: Spot, to: Spot & { side: Side }): Layout<P> {
  const panel = board.rows[from.row]?.panels[from.column];
  if (panel === undefined) return board;
  const isOwn = from.row === to.row && from.column === to.column;
  const isAlone = board.rows[from.row]!.panels.length === 1;
  if (isOwn && (isAlone || to.side === "left" || to.side === "right")) return board;
  // A mark keeps the place while the panel is somewhere else.
  const added = withPanel(board, { ...panel }, to);
  const rows = added.rows.map((row) => ({ ...row, panels: row.panels.filter((one) => one !== panel) }));
  return { rows: rows.filter(({ panels }) => panels.length > 0) };
}
