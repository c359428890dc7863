import type { Schema } from "./arrow_type.ts";
import type { Column } from "./columns.ts";
import type { Connection } from "./connection.ts";
import { ProtocolError, ServerError } from "./errors.ts";
import { readTable, TableReader } from "./table_read.ts";
import { utf8 } from "./bytes.ts";

/** What the journal of a table reaches. */
export interface JournalInfo {
  readonly epoch: string;
  readonly version: number;
  readonly earliest: number;
}

/** A part of a history: the changes after one version up to and with another one. */
export interface ChangesRead {
  readonly table: string;
  readonly epoch: string;
  readonly from: number;
  readonly to: number;
  readonly columns: readonly string[];
  /** A condition that rows must fulfil; null for all of them. */
  readonly filter: string | null;
}

/** A batch of a read and the schema it is of. */
export interface Batch {
  readonly schema: Schema;
  readonly length: number;
  readonly columns: readonly Column[];
}

function numbers(answer: unknown, names: readonly string[]): number[] {
  const members = (answer ?? {}) as Readonly<Record<string, unknown>>;
  return names.map((name) => {
    const value = members[name];
    if (typeof value !== "number") throw new ProtocolError(`the journal tells no ${name}`);
    return value;
  });
}

/** The journal of a table; null when it has none, or none for whoever asks. */
export async function journalInfo(connection: Connection, table: string): Promise<JournalInfo | null> {
  try {
    const answer = await connection.call("journal.info", { table });
    const [version, earliest] = numbers(answer, ["version", "earliest"]);
    const { epoch } = answer as { epoch?: unknown };
    if (typeof epoch !== "string") throw new ProtocolError("the journal tells no epoch");
    return { epoch, version: version!, earliest: earliest! };
  } catch (error) {
    if (error instanceof ServerError && error.status !== "UNAVAILABLE") return null;
    throw error;
  }
}

/** A version and when it was made, in milliseconds. */
export interface VersionMark {
  readonly version: number;
  readonly ms: number;
}

/** Versions a table can be seen at, oldest first; of many some, evenly spread. */
export async function listVersions(connection: Connection, table: string): Promise<{ epoch: string; marks: VersionMark[] }> {
  const answer = (await connection.call("barrage.versions", { table })) as { epoch?: unknown; versions?: unknown };
  const { epoch, versions } = answer;
  if (typeof epoch !== "string" || !Array.isArray(versions)) throw new ProtocolError("the journal tells no versions");
  const marks = (versions as unknown[]).flatMap((entry): VersionMark[] => {
    const [version, us] = Array.isArray(entry) ? (entry as unknown[]) : [];
    return typeof version === "number" && typeof us === "number" ? [{ version, ms: us / 1000 }] : [];
  });
  return { epoch, marks };
}

/** A version of a table; `isReached` is false where the history does not go so far back. */
export interface Reached {
  readonly version: number;
  readonly isReached: boolean;
}

/** The version that was current at a time, in milliseconds; the earliest one when it is before that. */
export async function versionAt(connection: Connection, at: { table: string; journal: JournalInfo; ms: number }): Promise<Reached> {
  const { table, journal, ms } = at;
  try {
    const timestamp_us = Math.max(0, Math.floor(ms * 1000));
    const [version] = numbers(await connection.call("journal.version", { table, timestamp_us }), ["version"]);
    return { version: Math.max(version!, journal.earliest), isReached: true };
  } catch (error) {
    const isLost = error instanceof ServerError && error.status === "FAILED_PRECONDITION";
    if (isLost) return { version: journal.earliest, isReached: false };
    throw error;
  }
}

/** The version up to which changes, counted with what was before them, are no more than `rowsMax`. */
export async function boundOfChanges(
  connection: Connection,
  part: { table: string; epoch: string; from: number },
  rowsMax: number,
): Promise<number> {
  const answer = await connection.call("journal.bound", { ...part, max_rows: rowsMax, preimage: true });
  return numbers(answer, ["version"])[0]!;
}

async function* batches(connection: Connection, ticket: Readonly<Record<string, unknown>>): AsyncGenerator<Batch> {
  const reader = new TableReader();
  for await (const message of readTable(connection, utf8(`j/${JSON.stringify(ticket)}`))) {
    const batch = reader.receive(message);
    if (batch !== null) yield { schema: reader.schema!, ...batch };
  }
}

/** Changes as rows of the change feed, with the rows of before. */
export function readChanges(connection: Connection, read: ChangesRead): AsyncGenerator<Batch> {
  const { table, epoch, from, to, columns, filter } = read;
  const ticket = { mode: "changes", table, epoch, from, to, columns, preimage: true };
  return batches(connection, filter === null ? ticket : { ...ticket, filter });
}
