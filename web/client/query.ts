import { utf8 } from "./bytes.ts";

/** An argument of an operator. */
export type Argument = string | number | readonly string[] | Readonly<Record<string, string>>;

/** One operator and its arguments, such as `["sort", ["-price"]]`. */
export type Operation = readonly [name: string, ...args: Argument[]];

/** Operators chained to a table. Equal queries are one table on the server. */
export interface Query {
  readonly table: string;
  readonly operations: readonly Operation[];
}

/** The ticket of a table, or of a query: a `q/` ticket, which needs no call to be made. */
export function ticketText(query: Query): string {
  if (query.operations.length === 0) return `s/${query.table}`;
  return `q/${JSON.stringify({ table: query.table, ops: query.operations })}`;
}

export function ticketOf(query: Query): Uint8Array {
  return utf8(ticketText(query));
}
