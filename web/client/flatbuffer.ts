import { ByteWriter, EMPTY, fromUtf8, utf8, viewOf } from "./bytes.ts";
import { ProtocolError } from "./errors.ts";

/** A table of a FlatBuffer. Fields are named by their slot, 4 + 2 × their number. */
export class FlatTable {
  private readonly vtable: number;
  private readonly vtableBytes: number;

  private constructor(
    private readonly view: DataView,
    private readonly at: number,
  ) {
    this.vtable = at - view.getInt32(at, true);
    this.vtableBytes = view.getUint16(this.vtable, true);
  }

  static root(bytes: Uint8Array): FlatTable {
    const view = viewOf(bytes);
    return new FlatTable(view, view.getUint32(0, true));
  }

  /** Where a field stands; 0 when it is absent. */
  private offset(slot: number): number {
    if (slot + 2 > this.vtableBytes) return 0;
    const offset = this.view.getUint16(this.vtable + slot, true);
    return offset === 0 ? 0 : this.at + offset;
  }

  has(slot: number): boolean {
    return this.offset(slot) !== 0;
  }

  bool(slot: number): boolean {
    return this.uint8(slot) !== 0;
  }

  uint8(slot: number, absent = 0): number {
    const at = this.offset(slot);
    return at === 0 ? absent : this.view.getUint8(at);
  }

  int8(slot: number): number {
    const at = this.offset(slot);
    return at === 0 ? 0 : this.view.getInt8(at);
  }

  int16(slot: number, absent = 0): number {
    const at = this.offset(slot);
    return at === 0 ? absent : this.view.getInt16(at, true);
  }

  int32(slot: number, absent = 0): number {
    const at = this.offset(slot);
    return at === 0 ? absent : this.view.getInt32(at, true);
  }

  uint32(slot: number): number {
    const at = this.offset(slot);
    return at === 0 ? 0 : this.view.getUint32(at, true);
  }

  int64(slot: number): bigint {
    const at = this.offset(slot);
    return at === 0 ? 0n : this.view.getBigInt64(at, true);
  }

  /** A whole number of at least 0 that a double holds. */
  count(slot: number): number {
    const value = this.int64(slot);
    if (value < 0n || value > BigInt(Number.MAX_SAFE_INTEGER)) {
      throw new ProtocolError(`${value} is no number of rows or bytes`);
    }
    return Number(value);
  }

  table(slot: number): FlatTable | null {
    const at = this.offset(slot);
    return at === 0 ? null : new FlatTable(this.view, at + this.view.getUint32(at, true));
  }

  /** The bytes of a vector of elements `width` bytes wide; null when it is absent. */
  vector(slot: number, width: number): DataView | null {
    const at = this.offset(slot);
    if (at === 0) return null;
    const start = at + this.view.getUint32(at, true);
    const bytes = this.view.getUint32(start, true) * width;
    if (start + 4 + bytes > this.view.byteLength) {
      throw new ProtocolError(`a vector of ${bytes} bytes goes past the end`);
    }
    return new DataView(this.view.buffer, this.view.byteOffset + start + 4, bytes);
  }

  bytes(slot: number): Uint8Array | null {
    const view = this.vector(slot, 1);
    return view === null ? null : new Uint8Array(view.buffer, view.byteOffset, view.byteLength);
  }

  text(slot: number): string | null {
    const bytes = this.bytes(slot);
    return bytes === null ? null : fromUtf8(bytes);
  }

  tables(slot: number): FlatTable[] | null {
    const vector = this.vector(slot, 4);
    if (vector === null) return null;
    const tables: FlatTable[] = [];
    for (let at = 0; at < vector.byteLength; at += 4) {
      const place = vector.byteOffset - this.view.byteOffset + at;
      tables.push(new FlatTable(this.view, place + vector.getUint32(at, true)));
    }
    return tables;
  }
}

/** What a field of a written table holds. */
export type FlatValue =
  | { readonly kind: "int8" | "bool" | "int16" | "int32" | "uint32"; readonly value: number }
  | { readonly kind: "int64"; readonly value: number | bigint }
  | { readonly kind: "bytes"; readonly value: Uint8Array }
  | { readonly kind: "string"; readonly value: string }
  | { readonly kind: "table"; readonly value: FlatFields }
  | { readonly kind: "tables"; readonly value: readonly FlatFields[] }
  /** A vector of structs of 64-bit numbers, as bytes. */
  | { readonly kind: "structs"; readonly value: Uint8Array; readonly count: number };

/** Fields by slot. */
export type FlatFields = ReadonlyMap<number, FlatValue>;

const WIDTHS = {
  int8: 1, bool: 1, int16: 2, int32: 4, uint32: 4, int64: 8, bytes: 4, string: 4, table: 4, tables: 4, structs: 4,
} as const;

/**
 * A FlatBuffer with this root table, written from front to back: table, its vtable behind it, then
 * what its offsets lead to, each aligned to eight bytes.
 */
export function encodeFlat(root: FlatFields): Uint8Array {
  const writer = new ByteWriter();
  writer.int32(8);
  writer.int32(0);
  const out = { writer, patches: [] as { at: number; target: number }[] };
  writeTable(out, root);
  const bytes = writer.finished();
  const view = viewOf(bytes);
  for (const { at, target } of out.patches) view.setUint32(at, target - at, true);
  return bytes;
}

interface Output {
  readonly writer: ByteWriter;
  readonly patches: { at: number; target: number }[];
}

function pad(writer: ByteWriter, multiple: number): void {
  while (writer.length % multiple !== 0) writer.byte(0);
}

function writeTable({ writer, patches }: Output, fields: FlatFields): void {
  pad(writer, 8);
  const start = writer.length;
  // Wide fields first, so that each stands at a multiple of its width.
  const ordered = [...fields].sort(([, a], [, b]) => WIDTHS[b.kind] - WIDTHS[a.kind]);
  const places = new Map<number, number>();
  let inline = 4;
  for (const [slot, value] of ordered) {
    const width = WIDTHS[value.kind];
    inline = Math.ceil(inline / width) * width;
    places.set(slot, inline);
    inline += width;
  }
  const vtable = Math.ceil(inline / 4) * 4;
  writer.int32(-vtable);
  for (const [slot, value] of ordered) {
    while (writer.length - start < (places.get(slot) ?? 0)) writer.byte(0);
    writeInline(writer, value);
  }
  pad(writer, 4);
  const slots = Math.max(2, ...fields.keys());
  writer.int16(slots + 2);
  writer.int16(inline);
  for (let slot = 4; slot <= slots; slot += 2) writer.int16(places.get(slot) ?? 0);
  for (const [slot, value] of ordered) writeBehind({ writer, patches }, value, start + (places.get(slot) ?? 0));
}

/** What a field at a place only leads to. */
function writeBehind(out: Output, value: FlatValue, at: number): void {
  const { writer, patches } = out;
  if (typeof value.value !== "object" && value.kind !== "string") return;
  pad(writer, 8);
  if (value.kind === "structs") writer.int32(0); // so that what follows their number stands at a multiple of eight
  patches.push({ at, target: writer.length });
  if (value.kind === "table") {
    writeTable(out, value.value);
  } else if (value.kind === "tables") {
    writer.int32(value.value.length);
    const first = writer.length;
    writer.append(new Uint8Array(4 * value.value.length));
    value.value.forEach((table, i) => {
      pad(writer, 8);
      patches.push({ at: first + 4 * i, target: writer.length });
      writeTable(out, table);
    });
  } else if (value.kind === "string") {
    const bytes = utf8(value.value);
    writer.int32(bytes.length);
    writer.append(bytes);
    writer.byte(0);
  } else if (value.kind === "bytes" || value.kind === "structs") {
    writer.int32(value.kind === "bytes" ? value.value.length : value.count);
    writer.append(value.value);
  }
}

function writeInline(writer: ByteWriter, value: FlatValue): void {
  if (value.kind === "int8" || value.kind === "bool") writer.int8(value.value);
  else if (value.kind === "int16") writer.int16(value.value);
  else if (value.kind === "int32" || value.kind === "uint32") writer.int32(value.value);
  else if (value.kind === "int64") writer.int64(value.value);
  else writer.int32(0);
}

export const flat = {
  int8: (value: number): FlatValue => ({ kind: "int8", value }),
  bool: (value: boolean): FlatValue => ({ kind: "bool", value: value ? 1 : 0 }),
  int16: (value: number): FlatValue => ({ kind: "int16", value }),
  int32: (value: number): FlatValue => ({ kind: "int32", value }),
  uint32: (value: number): FlatValue => ({ kind: "uint32", value }),
  int64: (value: number | bigint): FlatValue => ({ kind: "int64", value }),
  bytes: (value: Uint8Array): FlatValue => ({ kind: "bytes", value }),
  text: (value: string): FlatValue => ({ kind: "bytes", value: value ? utf8(value) : EMPTY }),
  string: (value: string): FlatValue => ({ kind: "string", value }),
  table: (value: FlatFields): FlatValue => ({ kind: "table", value }),
  tables: (value: readonly FlatFields[]): FlatValue => ({ kind: "tables", value }),
  structs: (value: Uint8Array, count: number): FlatValue => ({ kind: "structs", value, count }),
};
