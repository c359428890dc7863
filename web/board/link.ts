import { compactChart } from "../chart/chart_state.ts";
import { compactState } from "../grid/grid_state.ts";
import { compactPerspective } from "../perspective/perspective_state.ts";
import { type BoardState, boardOf, readBoard } from "./layout.ts";
import type { PanelContent } from "./panel.ts";

/** A board as the part of a link behind `#`: `#table=quotes`, or `#board=` and JSON. */
export function writeLink(board: BoardState): string {
  const only = board.rows.length === 1 && board.rows[0]!.panels.length === 1 ? board.rows[0]!.panels[0]! : null;
  if (only !== null && board.alerts.length === 0 && "grid" in only && Object.keys(compactState(only.grid)).length === 1) {
    return `#table=${encodeURIComponent(only.grid.table)}`;
  }
  return `#board=${encodeURIComponent(JSON.stringify(compactBoard(board)))}`;
}

/** A board without what is as it is anyway. */
export function compactBoard(board: BoardState): unknown {
  const round = (share: number): number => Math.round(share * 1000) / 1000;
  return {
    ...(board.alerts.length === 0 ? {} : { alerts: board.alerts }),
    rows: board.rows.map(({ panels, height }) => ({
      height: round(height),
      panels: panels.map((panel) => ({
        ...compactContent(panel),
        width: round(panel.width),
      })),
    })),
  };
}

function compactContent(content: PanelContent): Readonly<Record<string, unknown>> {
  if ("grid" in content) return { grid: compactState(content.grid) };
  if ("chart" in content) return { chart: compactChart(content.chart) };
  return { perspective: compactPerspective(content.perspective) };
}

/** The board a link says; null when it says none. */
export function readLink(hash: string): BoardState | null {
  const [, kind, content] = /^#(table|board)=(.*)$/s.exec(hash) ?? [];
  if (kind === undefined || content === undefined) return null;
  try {
    const text = decodeURIComponent(content);
    return kind === "table" ? (text === "" ? null : boardOf(text)) : readBoard(JSON.parse(text));
  } catch {
    return null;
  }
}
