import { utf8 } from "./bytes.ts";

/** An argument of an operator. */
export type Argument = string | number | readonly string[] | Readonly<Record<string, string>>;

/** One operator and its arguments, such as `["sort", ["-price"]]`. */
export type Operation = readonly [name: string, ...args: Argument[]];

/** Operators chained to a table. Equal queries are one table on the server. */
export interface Query {
  readonly table: string;
  readonly operations: readonly Operation[];
  /** The version of the table it begins with, as `epoch:version`; the table as it changes without it. */
  readonly at?: string;
}

/** The ticket of a table, or of a query: a `q/` ticket, which needs no call to be made. */
export function ticketText(query: Query): string {
  const { table, operations: ops, at } = query;
  if (at !== undefined) return `q/${JSON.stringify({ table, at, ops })}`;
  return ops.length === 0 ? `s/${table}` : `q/${JSON.stringify({ table, ops })}`;
}

export function ticketOf(query: Query): Uint8Array {
  return utf8(ticketText(query));
}
