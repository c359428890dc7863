import { encodeFlat, flat, type FlatFields, type FlatValue } from "./flatbuffer.ts";
import { encodeMetadataOnly } from "./flight_data.ts";
import { wrapped } from "./metadata.ts";
import { encodeBitSet, encodeRowSet, RowSet } from "./row_set.ts";

const SUBSCRIPTION_REQUEST = 5;

/** The rows and columns of a view. */
export interface ViewRequest {
  /** The first row wanted; with `isReverse` how many rows before the last one it ends. */
  readonly first: number;
  readonly count: number;
  /** Whether rows are counted from the end of the table, so that the view follows it. */
  readonly isReverse: boolean;
  /** Indices of the columns, ascending; null for all of them. */
  readonly columns: readonly number[] | null;
}

export interface SubscriptionOptions {
  readonly intervalMs: number;
  /** Longest list shown; 0 for no limit. */
  readonly listLengthMax: number;
}

export function viewportOf(request: ViewRequest): RowSet {
  return RowSet.span(request.first, request.first + request.count);
}

export function sameRequest(a: ViewRequest, b: ViewRequest): boolean {
  return (
    a.first === b.first &&
    a.count === b.count &&
    a.isReverse === b.isReverse &&
    (a.columns === b.columns || String(a.columns) === String(b.columns))
  );
}

/** The message that opens or changes a subscription. */
export function encodeSubscription(
  ticket: Uint8Array,
  request: ViewRequest,
  { options, token }: { options: SubscriptionOptions; token: Uint8Array },
): Uint8Array {
  const optionFields = new Map<number, FlatValue>();
  if (options.intervalMs > 0) optionFields.set(8, flat.int32(options.intervalMs));
  if (options.listLengthMax > 0) optionFields.set(16, flat.int64(options.listLengthMax));
  const fields = new Map<number, FlatValue>([
    [4, flat.bytes(ticket)],
    [8, flat.bytes(encodeRowSet(viewportOf(request)))],
    [10, flat.table(optionFields satisfies FlatFields)],
    [14, flat.bytes(token)],
  ]);
  if (request.columns !== null) fields.set(6, flat.bytes(encodeBitSet(request.columns)));
  if (request.isReverse) fields.set(12, flat.bool(true));
  return encodeMetadataOnly(wrapped(SUBSCRIPTION_REQUEST, encodeFlat(fields)));
}
