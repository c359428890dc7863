import { ProtocolError, reading } from "./errors.ts";
import { encodeFlat, flat, FlatTable } from "./flatbuffer.ts";
import { decodeBitSet, decodeRowSet, RowSet } from "./row_set.ts";

/** "dphn", the magic number of Barrage metadata. */
export const MAGIC = 0x6e687064;

const UPDATE = 6;
const EMPTY_ROW_SET = 0x20;

/** What an update of a view says beside its cells. Row sets are positions in the view. */
export interface UpdateMetadata {
  readonly firstStep: bigint;
  readonly lastStep: bigint;
  readonly isSnapshot: boolean;
  /** The viewport a snapshot answers. */
  readonly viewport: RowSet | null;
  readonly isReverse: boolean;
  /** Indices of the columns a snapshot is for; null where it does not say: all. */
  readonly columns: readonly number[] | null;
  readonly added: RowSet;
  readonly removed: RowSet;
  /** For each column of the table; columns past its end have none. */
  readonly modified: readonly RowSet[];
  readonly tableSize: number;
  /** Wall time in nanoseconds at which the newest change in it was made. */
  readonly sourceTimeNs: bigint | null;
}

/** The metadata in a message's `app_metadata`; null when there is none. */
export function decodeUpdateMetadata(bytes: Uint8Array): UpdateMetadata | null {
  return reading("the metadata of an update", () => {
    if (bytes.length === 0) return null;
    const wrapper = FlatTable.root(bytes);
    if (wrapper.uint32(4) !== MAGIC) return null;
    const payload = wrapper.bytes(8);
    if (wrapper.int8(6) !== UPDATE || payload === null) {
      throw new ProtocolError(`a message of the type ${wrapper.int8(6)} instead of an update`);
    }
    return readUpdate(FlatTable.root(payload), wrapper.has(10) ? wrapper.int64(10) : null);
  });
}

function readUpdate(table: FlatTable, sourceTimeNs: bigint | null): UpdateMetadata {
  const columns = table.bytes(14);
  if (table.has(20)) throw new ProtocolError("an update in row keys, though a view was asked for");
  return {
    firstStep: table.int64(4),
    lastStep: table.int64(6),
    isSnapshot: table.bool(8),
    viewport: table.has(10) ? rowSetIn(table, 10) : null,
    isReverse: table.bool(12),
    columns: columns === null ? null : decodeBitSet(columns),
    added: rowSetIn(table, 16),
    removed: rowSetIn(table, 18),
    modified: (table.tables(24) ?? []).map((node) => rowSetIn(node, 4)),
    tableSize: table.count(26),
    sourceTimeNs,
  };
}

function rowSetIn(table: FlatTable, slot: number): RowSet {
  const bytes = table.bytes(slot);
  return bytes === null || bytes[0] === EMPTY_ROW_SET ? RowSet.EMPTY : decodeRowSet(bytes);
}

/** A wrapper of a payload, as `app_metadata` carries it. */
export function wrapped(type: number, payload: Uint8Array): Uint8Array {
  return encodeFlat(
    new Map([
      [4, flat.uint32(MAGIC)],
      [6, flat.int8(type)],
      [8, flat.bytes(payload)],
    ]),
  );
}
