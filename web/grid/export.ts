import type { Field } from "../client/arrow_type.ts";
import type { Connection } from "../client/connection.ts";
import { ProtocolError } from "../client/errors.ts";
import { type Operation, type Query, ticketOf } from "../client/query.ts";
import { encapsulated, readTable, STREAM_END, TableReader } from "../client/table_read.ts";
import type { PlacedColumn } from "./column_layout.ts";
import { columnName } from "./filters.ts";
import { exactText } from "./formats.ts";
import { ParquetWriter } from "./parquet.ts";
import type { GridCore } from "./grid_core.ts";
import { queryOf } from "./grid_state.ts";
import type { LiveRows } from "./live_rows.ts";
import type { Block } from "./selection.ts";

export type FileFormat = "csv" | "arrow" | "parquet";

function tsvCell(text: string): string {
  return /[\t\n\r"]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text;
}

function csvCell(text: string): string {
  return /[,\n\r"]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text;
}

/** Cells as spreadsheets paste them; null where a row is not there to be copied. */
export function blockText(
  rows: LiveRows,
  columns: readonly PlacedColumn[],
  { block, hasNames }: { block: Block; hasNames: boolean },
): string | null {
  const chosen = columns.slice(block.left, block.right + 1);
  const lines = hasNames ? [chosen.map(({ field }) => tsvCell(field.name)).join("\t")] : [];
  for (let position = block.top; position <= block.bottom; position++) {
    const shown = rows.row(position);
    if (shown === null || chosen.some(({ index }) => shown.row.cells[index] === undefined)) return null;
    lines.push(chosen.map(({ index, field }) => tsvCell(exactText(shown.row.cells[index], field))).join("\t"));
  }
  return lines.join("\n");
}

/** A query of nothing but these columns. */
export function selecting(query: Query, fields: readonly Field[]): Query {
  const names = fields.map(({ name }) => columnName(name) ?? name);
  return { ...query, operations: [...query.operations, ["select", names]] };
}

const COPIED_ROWS_MAX = 100_000;

/** The selected cells, rows that are not in the page among them, as they are now. */
export async function fetchedBlock(core: GridCore, hasNames: boolean): Promise<string> {
  const { top, bottom, left, right } = core.selection.block;
  if (bottom - top >= COPIED_ROWS_MAX) {
    throw new Error(`${bottom - top + 1} rows are too many for the clipboard; download them`);
  }
  const fields = core.layout.columns.slice(left, right + 1).map(({ field }) => field);
  const { table, operations } = selecting(queryOf(core.state, core.fields), fields);
  const slice: Operation = ["slice", top, bottom + 1];
  const lines: string[] = [];
  await eachRow(core.connection, { table, operations: [...operations, slice] }, {
    names: (names) => hasNames && lines.push(names.map(tsvCell).join("\t")),
    row: (cells) => lines.push(cells.map(tsvCell).join("\t")),
  });
  return lines.join("\n");
}

interface RowTaker {
  names(names: readonly string[]): void;
  row(cells: readonly string[]): void;
}

async function eachRow(connection: Connection, query: Query, taker: RowTaker): Promise<void> {
  const reader = new TableReader();
  for await (const message of readTable(connection, ticketOf(query))) {
    const batch = reader.receive(message);
    const { fields } = reader.schema!;
    if (batch === null) {
      if (message.metadata === null && message.body === null) taker.names(fields.map(({ name }) => name));
      continue;
    }
    for (let row = 0; row < batch.length; row++) {
      taker.row(batch.columns.map((column, i) => exactText(column.cell(row), fields[i]!)));
    }
  }
}

/** All rows of a query as a file. */
export async function fileOf(connection: Connection, query: Query, format: FileFormat): Promise<Blob> {
  if (format === "csv") {
    const parts: string[] = [];
    await eachRow(connection, query, {
      names: (names) => parts.push(`${names.map(csvCell).join(",")}\r\n`),
      row: (cells) => parts.push(`${cells.map(csvCell).join(",")}\r\n`),
    });
    return new Blob(parts, { type: "text/csv" });
  }
  if (format === "arrow") {
    const parts: Uint8Array<ArrayBuffer>[] = [];
    for await (const message of readTable(connection, ticketOf(query))) parts.push(encapsulated(message));
    return new Blob([...parts, STREAM_END], { type: "application/vnd.apache.arrow.stream" });
  }
  const reader = new TableReader();
  let writer: ParquetWriter | null = null;
  for await (const message of readTable(connection, ticketOf(query))) {
    const batch = reader.receive(message);
    writer ??= new ParquetWriter(reader.schema!.fields);
    writer.add(batch?.columns.map(({ length, cell }) => Array.from({ length }, (_, row) => cell(row))) ?? []);
  }
  if (writer === null) throw new ProtocolError("a table came without its schema");
  return writer.finish();
}

/** Hand a file to the user. */
export function save(file: Blob, name: string): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(file);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}
