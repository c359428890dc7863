/** Live tables of a Barrage server: connect, subscribe to a view, read its rows. */
export type { ArrowType, Field, Schema, TimeUnit } from "./arrow_type.ts";
export { isNumeric, typeName } from "./arrow_type.ts";
export type { CalendarSpan, Cell } from "./cells.ts";
export { sameCell } from "./cells.ts";
export type { ConnectionOptions, ConnectionState, StreamHandler } from "./connection.ts";
export { Connection, Stream, SUB_PROTOCOL } from "./connection.ts";
export type { Caller } from "./control.ts";
export { ProtocolError, ServerError } from "./errors.ts";
export { Listeners } from "./listeners.ts";
export type { Operation, Query } from "./query.ts";
export { ticketOf, ticketText } from "./query.ts";
export type { ViewRequest } from "./request.ts";
export { RowSet } from "./row_set.ts";
export type { Recovery, SubscribeOptions } from "./subscription.ts";
export { ViewSubscription } from "./subscription.ts";
export type { CellChange, ViewChange, ViewRow } from "./view.ts";
export { View } from "./view.ts";
