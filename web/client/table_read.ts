import type { Schema } from "./arrow_type.ts";
import { ByteWriter, EMPTY } from "./bytes.ts";
import { BatchReader, type Column } from "./columns.ts";
import type { Connection, Stream } from "./connection.ts";
import { ProtocolError, type ServerError } from "./errors.ts";
import { decodeFlightData, type FlightData } from "./flight_data.ts";
import type { Field } from "./arrow_type.ts";
import { decodeMessage, readSchema } from "./schema.ts";

/**
 * The messages of a whole table or query as it is now, the schema first. The server sends no more
 * than a few ahead of who reads them.
 */
export async function* readTable(connection: Connection, ticket: Uint8Array): AsyncGenerator<FlightData> {
  const waiting: FlightData[] = [];
  let wake: () => void = () => undefined;
  let end: { error: ServerError | null } | null = null;
  const stream: Stream = connection.openStream(
    {
      message: (bytes) => {
        waiting.push(decodeFlightData(bytes));
        wake();
      },
      ended: (error) => {
        end = { error };
        wake();
      },
    },
    { method: "DoGet" },
  );
  stream.send(encodeTicket(ticket));
  stream.halfClose();
  try {
    for (;;) {
      const next = waiting.shift();
      if (next !== undefined) {
        yield next;
        if (waiting.length === 0) stream.acknowledge();
        continue;
      }
      const ended = end as { error: ServerError | null } | null;
      if (ended?.error) throw ended.error;
      if (ended) return;
      await new Promise<void>((resolve) => (wake = resolve));
    }
  } finally {
    stream.cancel();
  }
}

function encodeTicket(ticket: Uint8Array): Uint8Array {
  const writer = new ByteWriter();
  writer.byte(0x0a);
  writer.varint(ticket.length);
  writer.append(ticket);
  return writer.finished();
}

/** The rows of messages that `readTable` gives, batch by batch. */
export class TableReader {
  schema: Schema | null = null;
  private readonly dictionaries = new Map<bigint, Column>();
  private readonly fields = new Map<bigint, Field>();

  /** The columns of a batch; null for another message. */
  receive({ header, body }: FlightData): { length: number; columns: Column[] } | null {
    if (header === null) return null;
    const { kind, table } = decodeMessage(header);
    if (kind === "schema") {
      this.schema = readSchema(table);
      const visit = (field: Field): void => {
        if (field.dictionary !== null) this.fields.set(field.dictionary.id, field);
        field.children.forEach(visit);
      };
      this.schema.fields.forEach(visit);
      return null;
    }
    if (this.schema === null) throw new ProtocolError("a batch came before its schema");
    if (kind === "batch") {
      const reader = new BatchReader(table, body ?? EMPTY, this.dictionaries);
      return { length: reader.length, columns: this.schema.fields.map((field) => reader.column(field)) };
    }
    const field = this.fields.get(table.int64(4));
    const values = table.table(6);
    if (field === undefined || values === null) throw new ProtocolError("an unknown dictionary");
    const reader = new BatchReader(values, body ?? EMPTY, this.dictionaries);
    this.dictionaries.set(table.int64(4), reader.column(field, "values"));
    return null;
  }
}

/** A message as it stands in an Arrow IPC stream. */
export function encapsulated({ header, body }: FlightData): Uint8Array<ArrayBuffer> {
  const writer = new ByteWriter();
  const content = header ?? EMPTY;
  const padding = (8 - (content.length % 8)) % 8;
  writer.int32(-1);
  writer.int32(content.length + padding);
  writer.append(content);
  writer.append(new Uint8Array(padding));
  writer.append(body ?? EMPTY);
  while (writer.length % 8 !== 0) writer.byte(0);
  return writer.finished();
}

/** The end of an Arrow IPC stream. */
export const STREAM_END = Uint8Array.of(0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0);
