import type { Schema } from "./arrow_type.ts";
import type { Connection } from "./connection.ts";
import { ProtocolError } from "./errors.ts";
import { type Query, ticketText } from "./query.ts";
import { decodeMessage, readSchema } from "./schema.ts";
import { utf8 } from "./bytes.ts";

/** A table in the list of a server. */
export interface TableEntry {
  readonly name: string;
  readonly kind: string;
  readonly isTicking: boolean;
  /** -1 where the caller sees a part of it. */
  readonly rows: number;
  readonly columns: readonly string[];
  /** The beginning of what it says of itself; empty for nothing. */
  readonly description: string;
}

/** What a server says of a table or a query. */
export interface TableDescription {
  readonly kind: string;
  /** Names of the columns that tell its rows apart; none where nothing does. */
  readonly key: readonly string[];
  /** Whether whoever asks may change its rows one by one. */
  readonly isWritable: boolean;
  readonly description: string;
  /** Descriptions of columns that have one. */
  readonly columns: ReadonlyMap<string, string>;
  readonly schema: Schema;
}

type Members = Readonly<Record<string, unknown>>;

function members(value: unknown, what: string): Members {
  if (typeof value !== "object" || value === null) throw new ProtocolError(`${what} is no object`);
  return value as Members;
}

function text(value: unknown): string {
  return typeof value === "string" ? value : "";
}

function texts(value: unknown): string[] {
  if (typeof value === "string") return [value];
  return Array.isArray(value) ? value.map(text) : [];
}

export async function listTables(connection: Connection): Promise<TableEntry[]> {
  const answer = await connection.call("barrage.tables");
  if (!Array.isArray(answer)) throw new ProtocolError("the list of tables is no list");
  return answer.map((item) => {
    const entry = members(item, "a table");
    return {
      name: text(entry.name),
      kind: text(entry.kind),
      isTicking: entry.is_ticking === true,
      rows: typeof entry.rows === "number" ? entry.rows : -1,
      columns: texts(entry.columns),
      description: text(entry.description),
    };
  });
}

/** Bytes as JSON carries them. */
export function toBase64(bytes: Uint8Array): string {
  return btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""));
}

export function fromBase64(base64: string): Uint8Array {
  try {
    return Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
  } catch {
    throw new ProtocolError("a text is no base64");
  }
}

export async function describeTable(connection: Connection, query: Query): Promise<TableDescription> {
  const ticket = toBase64(utf8(ticketText(query)));
  const isPlain = query.operations.length === 0;
  const body = isPlain ? { table: query.table } : { ticket };
  const answer = members(await connection.call("barrage.describe", body), "a description");
  const columns = (Array.isArray(answer.columns) ? answer.columns : []).map((column) => members(column, "a column"));
  // Before the schema come the four bytes of a continuation and four of its length.
  const schema = readSchema(decodeMessage(fromBase64(text(answer.schema)).slice(8)).table);
  return {
    kind: text(answer.kind),
    key: texts(answer.key),
    isWritable: answer.is_writable === true,
    description: text(answer.description),
    columns: new Map(columns.map((column) => [text(column.name), text(column.description)])),
    schema,
  };
}
