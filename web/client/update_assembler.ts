import type { Field, Schema } from "./arrow_type.ts";
import type { Cell } from "./cells.ts";
import { BatchReader, type Column } from "./columns.ts";
import { ProtocolError, reading } from "./errors.ts";
import type { FlatTable } from "./flatbuffer.ts";
import type { FlightData } from "./flight_data.ts";
import { decodeUpdateMetadata, type UpdateMetadata } from "./metadata.ts";
import { decodeMessage, readSchema } from "./schema.ts";
import { EMPTY } from "./bytes.ts";

/** Rows of one update believed; a view is never that large. */
export const UPDATE_ROWS_MAX = 1_000_000;

/** A whole update: for each column the cells of added rows and of modified ones, in order. */
export interface ViewUpdate {
  readonly metadata: UpdateMetadata;
  /** By column; a column that is not subscribed has no cells. */
  readonly added: readonly (readonly Cell[])[];
  readonly modified: readonly (readonly Cell[])[];
}

/** An update of which batches are still to come. */
interface PartialUpdate {
  readonly metadata: UpdateMetadata;
  readonly added: Cell[][];
  readonly modified: Cell[][];
  readonly addedExpected: number;
  readonly modifiedExpected: number;
  addedRead: number;
  modifiedRead: number;
}

/** Puts the messages of a subscription together: first the schema, then updates. */
export class UpdateAssembler {
  schema: Schema | null = null;
  private readonly dictionaries = new Map<bigint, Column>();
  private dictionaryFields = new Map<bigint, Field>();
  private partial: PartialUpdate | null = null;

  /** The update that this message completes; null when more is to come. */
  receive(message: FlightData): ViewUpdate | null {
    if (message.header === null) throw new ProtocolError("a message has no Arrow header");
    const { kind, table } = decodeMessage(message.header);
    if (kind === "schema") {
      if (this.schema !== null) throw new ProtocolError("a second schema on one stream");
      this.schema = readSchema(table);
      this.dictionaryFields = dictionaryFields(this.schema);
      return null;
    }
    if (this.schema === null) throw new ProtocolError("a batch came before its schema");
    const body = message.body ?? EMPTY;
    return reading("a record batch", () => {
      if (kind === "batch") return this.batch(this.schema!, { table, body, message });
      this.dictionary(table, body);
      return null;
    });
  }

  private dictionary(table: FlatTable, body: Uint8Array): void {
    const id = table.int64(4);
    const field = this.dictionaryFields.get(id);
    const data = table.table(6);
    if (field === undefined || data === null) throw new ProtocolError(`no dictionary ${id}`);
    const values = new BatchReader(data, body, this.dictionaries).column(field, "values");
    const before = table.bool(8) ? this.dictionaries.get(id) : undefined;
    this.dictionaries.set(id, before === undefined ? values : joined(before, values));
  }

  private batch(
    schema: Schema,
    { table, body, message }: { table: FlatTable; body: Uint8Array; message: FlightData },
  ): ViewUpdate | null {
    const metadata = message.metadata === null ? null : decodeUpdateMetadata(message.metadata);
    if (metadata !== null) {
      if (this.partial !== null) throw new ProtocolError("an update began inside another");
      this.partial = begun(schema, metadata);
    }
    const { partial } = this;
    if (partial === null) throw new ProtocolError("a batch belongs to no update");
    const batch = new BatchReader(table, body, this.dictionaries);
    const isAdded = partial.addedRead < partial.addedExpected;
    read(schema, batch, isAdded ? partial.added : partial.modified);
    if (isAdded) partial.addedRead += batch.length;
    else partial.modifiedRead += batch.length;
    if (partial.addedRead > partial.addedExpected || partial.modifiedRead > partial.modifiedExpected) {
      throw new ProtocolError("an update has more rows than it announced");
    }
    const isWhole =
      partial.addedRead === partial.addedExpected &&
      partial.modifiedRead === partial.modifiedExpected;
    if (!isWhole) return null;
    this.partial = null;
    checkCounts(partial);
    return partial;
  }
}

function begun(schema: Schema, metadata: UpdateMetadata): PartialUpdate {
  const addedExpected = metadata.added.size;
  const modifiedExpected = metadata.modified.reduce((most, rows) => Math.max(most, rows.size), 0);
  if (addedExpected + modifiedExpected > UPDATE_ROWS_MAX) {
    throw new ProtocolError(`an update of ${addedExpected + modifiedExpected} rows`);
  }
  return {
    metadata,
    added: schema.fields.map(() => []),
    modified: schema.fields.map(() => []),
    addedExpected,
    modifiedExpected,
    addedRead: 0,
    modifiedRead: 0,
  };
}

function read(schema: Schema, batch: BatchReader, into: Cell[][]): void {
  schema.fields.forEach((field, i) => {
    const column = batch.nextColumn(field);
    if (column === null) return;
    if (column.length > batch.length) {
      throw new ProtocolError(`column ${field.name} has more cells than its batch has rows`);
    }
    const cells = into[i]!;
    for (let row = 0; row < column.length; row++) cells.push(column.cell(row));
  });
}

function checkCounts(update: PartialUpdate): void {
  update.added.forEach((cells, i) => {
    const modified = update.modified[i]!.length;
    const expected = update.metadata.modified[i]?.size ?? 0;
    if ((cells.length && cells.length !== update.addedExpected) || modified !== expected) {
      throw new ProtocolError(`column ${i} has other rows than its update announced`);
    }
  });
}

function dictionaryFields(schema: Schema): Map<bigint, Field> {
  const found = new Map<bigint, Field>();
  const visit = (field: Field): void => {
    if (field.dictionary !== null) found.set(field.dictionary.id, field);
    field.children.forEach(visit);
  };
  schema.fields.forEach(visit);
  return found;
}

function joined(before: Column, more: Column): Column {
  return {
    length: before.length + more.length,
    cell: (i) => (i < before.length ? before.cell(i) : more.cell(i - before.length)),
  };
}
