import { ByteReader, ByteWriter } from "./bytes.ts";
import { ProtocolError, reading } from "./errors.ts";

/**
 * An ordered set of row positions, as ranges whose last position belongs to them. Positions are
 * doubles, so none is above 2^53 - 1; the keys of full subscriptions, which may be, are not read.
 */
export class RowSet {
  static readonly EMPTY = new RowSet([]);

  /** First and last position of each range, ascending and apart. */
  constructor(readonly bounds: readonly number[]) {}

  /** Positions from `start` up to but not including `stop`. */
  static span(start: number, stop: number): RowSet {
    return stop > start ? new RowSet([start, stop - 1]) : RowSet.EMPTY;
  }

  static of(positions: Iterable<number>): RowSet {
    const bounds: number[] = [];
    for (const position of [...new Set(positions)].sort((a, b) => a - b)) {
      extend(bounds, position, position);
    }
    return new RowSet(bounds);
  }

  get size(): number {
    let size = 0;
    for (let i = 0; i < this.bounds.length; i += 2) {
      size += this.bounds[i + 1]! - this.bounds[i]! + 1;
    }
    return size;
  }

  *[Symbol.iterator](): Generator<number> {
    for (let i = 0; i < this.bounds.length; i += 2) {
      for (let position = this.bounds[i]!; position <= this.bounds[i + 1]!; position++) {
        yield position;
      }
    }
  }

  has(position: number): boolean {
    for (let i = 0; i < this.bounds.length; i += 2) {
      if (position <= this.bounds[i + 1]!) return position >= this.bounds[i]!;
    }
    return false;
  }

  equals(other: RowSet): boolean {
    return (
      this.bounds.length === other.bounds.length &&
      this.bounds.every((bound, i) => bound === other.bounds[i])
    );
  }
}

/** Put a range at the end of others, joined to the last one if it touches it. */
function extend(bounds: number[], first: number, last: number): void {
  if (bounds.length && bounds[bounds.length - 1]! + 1 === first) bounds[bounds.length - 1] = last;
  else bounds.push(first, last);
}

const OFFSET = 1;
const SHORT_ARRAY = 2;
const BYTE_ARRAY = 3;
const END = 4;

function value(reader: ByteReader, kind: number): number {
  const { view, at } = reader;
  switch (kind) {
    case 1:
      reader.at += 2;
      return view.getInt16(at, true);
    case 2:
      reader.at += 4;
      return view.getInt32(at, true);
    case 3:
      reader.at += 8;
      return Number(view.getBigInt64(at, true));
    case 4:
      reader.at += 1;
      return view.getInt8(at);
    default:
      throw new ProtocolError(`a row set has the value type ${kind}`);
  }
}

function* deltas(bytes: Uint8Array): Generator<number> {
  const reader = new ByteReader(bytes);
  for (;;) {
    const byte = reader.view.getUint8(reader.at++);
    const command = (byte >> 3) & 7;
    if (command === END) return;
    if (command < OFFSET || command > END) {
      throw new ProtocolError(`a row set has the command ${command}`);
    }
    const first = value(reader, byte & 7);
    if (command === OFFSET) {
      yield first;
      continue;
    }
    if (first < 0) throw new ProtocolError(`a row set has an array of ${first}`);
    const kind = command === BYTE_ARRAY ? 4 : 1;
    for (let i = 0; i < first; i++) yield value(reader, kind);
  }
}

/** The row set these bytes say; what stands behind its end is not looked at. */
export function decodeRowSet(bytes: Uint8Array): RowSet {
  return reading("a row set", () => {
    const bounds: number[] = [];
    let last = 0;
    let start = -1;
    let isFirst = true;
    for (const delta of deltas(bytes)) {
      if (delta === 0 && !isFirst) throw new ProtocolError("a row set repeats a position");
      last += Math.abs(delta);
      if (!Number.isSafeInteger(last)) {
        throw new ProtocolError("a row set goes beyond position 2^53 - 1");
      }
      if (delta < 0) {
        if (start < 0) throw new ProtocolError("a row set ends a range that did not begin");
        extend(bounds, start, last);
        start = -1;
      } else {
        if (start >= 0) extend(bounds, start, start);
        start = last;
      }
      isFirst = false;
    }
    if (start >= 0) extend(bounds, start, start);
    return new RowSet(bounds);
  });
}

/** The canonical bytes of a row set: equal sets have equal bytes. */
export function encodeRowSet(rows: RowSet): Uint8Array {
  const writer = new ByteWriter();
  let previous = 0;
  let pending: number[] = [];
  const append = (position: number, isEnd: boolean): void => {
    const delta = position - previous;
    previous = position;
    if (delta >= 32767) {
      writePending(writer, pending);
      pending = [];
      writeValue(writer, OFFSET, isEnd ? -delta : delta);
    } else {
      pending.push(isEnd ? -delta : delta);
    }
  };
  for (let i = 0; i < rows.bounds.length; i += 2) {
    const first = rows.bounds[i]!;
    const last = rows.bounds[i + 1]!;
    append(first, false);
    if (last > first) append(last, true);
  }
  writePending(writer, pending);
  writer.byte(END << 3);
  return writer.finished();
}

function writeValue(writer: ByteWriter, command: number, number: number): void {
  const isWithin = (bits: number): boolean => number >= -(2 ** bits) && number < 2 ** bits;
  if (isWithin(7)) {
    writer.byte((command << 3) | 4);
    writer.int8(number);
  } else if (isWithin(15)) {
    writer.byte((command << 3) | 1);
    writer.int16(number);
  } else if (isWithin(31)) {
    writer.byte((command << 3) | 2);
    writer.int32(number);
  } else {
    writer.byte((command << 3) | 3);
    writer.int64(number);
  }
}

/** Runs of at least four byte-sized deltas, and those at the end, are bytes; the others shorts. */
function writePending(writer: ByteWriter, pending: readonly number[]): void {
  let from = 0;
  let tail = 0;
  const emit = (stop: number): void => {
    writeArray(writer, SHORT_ARRAY, pending.slice(from, stop - tail));
    writeArray(writer, BYTE_ARRAY, pending.slice(stop - tail, stop));
    from = stop;
  };
  pending.forEach((delta, i) => {
    if (delta >= -128 && delta <= 127) {
      tail++;
      return;
    }
    if (tail >= 4) emit(i);
    tail = 0;
  });
  emit(pending.length);
}

function writeArray(writer: ByteWriter, command: number, numbers: readonly number[]): void {
  if (numbers.length === 1) writeValue(writer, OFFSET, numbers[0]!);
  if (numbers.length < 2) return;
  writeValue(writer, command, numbers.length);
  for (const number of numbers) {
    if (command === BYTE_ARRAY) writer.int8(number);
    else writer.int16(number);
  }
}

/** The bytes of a set of column indices: bit j of byte i is column 8 i + j. */
export function encodeBitSet(indices: Iterable<number>): Uint8Array {
  const bytes: number[] = [];
  for (const index of indices) {
    while (bytes.length <= index >> 3) bytes.push(0);
    bytes[index >> 3]! |= 1 << (index & 7);
  }
  return Uint8Array.from(bytes);
}

/** The indices below `limit` in a bit set. */
export function decodeBitSet(bytes: Uint8Array, limit = bytes.length * 8): number[] {
  const indices: number[] = [];
  for (let index = 0; index < Math.min(limit, bytes.length * 8); index++) {
    if (bytes[index >> 3]! & (1 << (index & 7))) indices.push(index);
  }
  return indices;
}
