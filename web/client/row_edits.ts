import type { Connection } from "./connection.ts";

/** Cells as texts by column; null is null. */
export type CellTexts = Readonly<Record<string, string | null>>;

/** A change of cells of one row; it is refused where they do not hold what is expected. */
export interface CellsChange {
  readonly key: CellTexts;
  readonly cells: CellTexts;
  readonly expected: CellTexts;
}

export async function setCells(connection: Connection, table: string, change: CellsChange): Promise<void> {
  await connection.call("barrage.set_cells", { table, ...change });
}

export async function addRow(connection: Connection, table: string, cells: CellTexts): Promise<void> {
  await connection.call("barrage.add_row", { table, cells });
}

export async function removeRow(connection: Connection, table: string, key: CellTexts): Promise<void> {
  await connection.call("barrage.remove_row", { table, key });
}
