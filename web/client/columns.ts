import type { ArrowType, Field } from "./arrow_type.ts";
import { fromUtf8 } from "./bytes.ts";
import type { Cell } from "./cells.ts";
import { ProtocolError } from "./errors.ts";
import type { FlatTable } from "./flatbuffer.ts";

/** A column of a batch: as many cells as it has, each made when it is read. */
export interface Column {
  readonly length: number;
  cell(index: number): Cell;
}

/** The values of dictionaries by their id, as far as they were sent. */
export type Dictionaries = ReadonlyMap<bigint, Column>;

/** Which `Field`, by identity, stands for values that are in a dictionary already. */
type Wanted = "indices" | "values";

/** Reads columns out of a record batch, depth first, as its nodes and buffers come. */
export class BatchReader {
  readonly length: number;
  private readonly nodes: DataView;
  private readonly buffers: DataView;
  private node = 0;
  private buffer = 0;

  constructor(
    batch: FlatTable,
    private readonly body: Uint8Array,
    private readonly dictionaries: Dictionaries,
  ) {
    this.length = batch.count(4);
    if (batch.has(10)) throw new ProtocolError("compressed bodies are not supported");
    this.nodes = batch.vector(6, 16) ?? new DataView(new ArrayBuffer(0));
    this.buffers = batch.vector(8, 16) ?? new DataView(new ArrayBuffer(0));
  }

  /** The next column, or null, at once, if it has no cells: most have none in a wide table. */
  nextColumn(field: Field): Column | null {
    const length = Number(this.nodes.getBigInt64(16 * this.node, true));
    if (length !== 0) return this.column(field);
    const { nodes, buffers } = layoutOf(field);
    this.node += nodes;
    this.buffer += buffers;
    return null;
  }

  column(field: Field, wanted: Wanted = "indices"): Column {
    const { dictionary } = field;
    if (dictionary !== null && wanted === "indices") return this.indexed(field, dictionary);
    return this.plain(field.type, field.children);
  }

  private indexed(field: Field, dictionary: NonNullable<Field["dictionary"]>): Column {
    const indices = this.plain(dictionary.index, []);
    const values = this.dictionaries.get(dictionary.id);
    if (values === undefined && indices.length > 0) {
      throw new ProtocolError(`column ${field.name} uses a dictionary that was not sent`);
    }
    return {
      length: indices.length,
      cell: (i) => {
        const index = indices.cell(i);
        if (index === null || values === undefined) return null;
        const place = Number(index);
        if (place < 0) return null; // one of Deephaven's values for null
        if (place >= values.length) {
          throw new ProtocolError(`column ${field.name} goes past its dictionary`);
        }
        return values.cell(place);
      },
    };
  }

  private nextNode(): { length: number; nullCount: number } {
    const at = 16 * this.node++;
    const length = Number(this.nodes.getBigInt64(at, true));
    const nullCount = Number(this.nodes.getBigInt64(at + 8, true));
    if (!(length >= 0 && nullCount >= 0 && nullCount <= length)) {
      throw new ProtocolError(`a column has ${length} cells, ${nullCount} of them null`);
    }
    return { length, nullCount };
  }

  private nextBuffer(): DataView {
    const at = 16 * this.buffer++;
    const offset = Number(this.buffers.getBigInt64(at, true));
    const length = Number(this.buffers.getBigInt64(at + 8, true));
    if (!(offset >= 0 && length >= 0 && offset + length <= this.body.length)) {
      throw new ProtocolError(`a buffer stands at ${offset} to ${offset + length}, past the body`);
    }
    return new DataView(this.body.buffer, this.body.byteOffset + offset, length);
  }

  private plain(type: ArrowType, children: readonly Field[]): Column {
    switch (type.kind) {
      case "null":
        return { length: this.nextNode().length, cell: () => null };
      case "run-end":
        return this.runs(children);
      case "union":
        return this.union(type, children);
      default: {
        const { length, nullCount } = this.nextNode();
        const validity = this.nextBuffer();
        const cell = this.valid(type, length, children);
        if (nullCount === 0 || validity.byteLength === 0) return { length, cell };
        need(validity, Math.ceil(length / 8));
        return { length, cell: (i) => (bit(validity, i) ? cell(i) : null) };
      }
    }
  }

  /** How a cell that is not null is read, after its validity. */
  private valid(type: ArrowType, length: number, children: readonly Field[]): Column["cell"] {
    switch (type.kind) {
      case "text":
      case "binary":
        return this.variable(type, length);
      case "list":
        return this.list(type.isLarge, length, children[0]!);
      case "list-view":
        return this.listView(type.isLarge, length, children[0]!);
      case "map": {
        const [key, value] = children[0]!.children;
        const entries = this.list(false, length, children[0]!);
        const pair = (entry: Cell): Cell => {
          const members = entry as { readonly [member: string]: Cell };
          return [members[key!.name]!, members[value!.name]!];
        };
        return (i) => (entries(i) as readonly Cell[]).map(pair);
      }
      case "fixed-list": {
        const values = this.column(children[0]!);
        if (values.length < length * type.size) throw new ProtocolError("a list is cut short");
        return (i) => slice(values, i * type.size, (i + 1) * type.size);
      }
      case "struct": {
        const members = children.map((child) => [child.name, this.column(child)] as const);
        for (const [, column] of members) {
          if (column.length < length) throw new ProtocolError("a struct is cut short");
        }
        return (i) => Object.fromEntries(members.map(([name, column]) => [name, column.cell(i)]));
      }
      default:
        return fixedWidth(type, this.nextBuffer(), length);
    }
  }

  private offsets(isLarge: boolean, length: number): (index: number) => number {
    const view = this.nextBuffer();
    if (length === 0) return () => 0;
    const width = isLarge ? 8 : 4;
    need(view, (length + 1) * width);
    return isLarge
      ? (i) => Number(view.getBigInt64(8 * i, true))
      : (i) => view.getInt32(4 * i, true);
  }

  private variable(type: ArrowType & { isLarge: boolean }, length: number): Column["cell"] {
    const offset = this.offsets(type.isLarge, length);
    const data = this.nextBuffer();
    const bytes = new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
    const part = (i: number): Uint8Array => {
      const from = offset(i);
      const to = offset(i + 1);
      if (!(from >= 0 && to >= from && to <= bytes.length)) {
        throw new ProtocolError(`a cell stands at ${from} to ${to} of ${bytes.length} bytes`);
      }
      return bytes.subarray(from, to);
    };
    // A copy: the message is let go when it has been read.
    return type.kind === "text" ? (i) => fromUtf8(part(i)) : (i) => part(i).slice();
  }

  private list(isLarge: boolean, length: number, child: Field): Column["cell"] {
    const offset = this.offsets(isLarge, length);
    const values = this.column(child);
    return (i) => slice(values, offset(i), offset(i + 1));
  }

  private listView(isLarge: boolean, length: number, child: Field): Column["cell"] {
    const starts = fixedWidth(intType(isLarge ? 64 : 32), this.nextBuffer(), length);
    const sizes = fixedWidth(intType(isLarge ? 64 : 32), this.nextBuffer(), length);
    const values = this.column(child);
    return (i) => {
      const start = Number(starts(i));
      return slice(values, start, start + Number(sizes(i)));
    };
  }

  private runs(children: readonly Field[]): Column {
    const { length } = this.nextNode();
    const ends = this.column(children[0]!);
    const values = this.column(children[1]!);
    const end = (run: number): number => Number(ends.cell(run));
    if (ends.length > values.length || (length > 0 && (!ends.length || end(ends.length - 1) < length))) {
      throw new ProtocolError("the runs of a column end before it does");
    }
    return {
      length,
      cell: (i) => {
        let low = 0;
        let high = ends.length - 1;
        while (low < high) {
          const middle = (low + high) >> 1;
          if (end(middle) > i) high = middle;
          else low = middle + 1;
        }
        return values.cell(low);
      },
    };
  }

  private union(type: ArrowType & { kind: "union" }, children: readonly Field[]): Column {
    const { length } = this.nextNode();
    const codes = fixedWidth(intType(8), this.nextBuffer(), length);
    const places = type.isDense ? fixedWidth(intType(32), this.nextBuffer(), length) : null;
    const members = children.map((child) => this.column(child));
    return {
      length,
      cell: (i) => {
        const member = members[type.codes.indexOf(codes(i) as number)];
        const place = places === null ? i : (places(i) as number);
        if (member === undefined || place < 0 || place >= member.length) {
          throw new ProtocolError("a cell of a union is of no member");
        }
        return member.cell(place);
      },
    };
  }
}

interface Layout {
  readonly nodes: number;
  readonly buffers: number;
}

const layouts = new WeakMap<Field, Layout>();

/** How many nodes and buffers a column takes, whatever it holds. */
function layoutOf(field: Field): Layout {
  const known = layouts.get(field);
  if (known !== undefined) return known;
  const children = field.dictionary === null ? field.children.map(layoutOf) : [];
  const layout = {
    nodes: 1 + children.reduce((sum, child) => sum + child.nodes, 0),
    buffers: ownBuffers(field) + children.reduce((sum, child) => sum + child.buffers, 0),
  };
  layouts.set(field, layout);
  return layout;
}

function ownBuffers({ type, dictionary }: Field): number {
  if (dictionary !== null) return 2;
  switch (type.kind) {
    case "null":
    case "run-end":
      return 0;
    case "struct":
    case "fixed-list":
      return 1;
    case "text":
    case "binary":
    case "list-view":
      return 3;
    case "union":
      return type.isDense ? 2 : 1;
    default:
      return 2;
  }
}

function need(view: DataView, bytes: number): void {
  if (view.byteLength < bytes) {
    throw new ProtocolError(`a column has ${view.byteLength} bytes where ${bytes} are needed`);
  }
}

function bit(view: DataView, index: number): boolean {
  return (view.getUint8(index >> 3) & (1 << (index & 7))) !== 0;
}

function slice(values: Column, from: number, to: number): Cell[] {
  if (!(from >= 0 && to >= from && to <= values.length)) {
    throw new ProtocolError(`a list stands at ${from} to ${to} of ${values.length} values`);
  }
  return Array.from({ length: to - from }, (_, i) => values.cell(from + i));
}

const intType = (bits: number): ArrowType => ({ kind: "int", bits, isSigned: true });

/** Bytes a cell takes; a type that has no fixed width has none. */
function widthOf(type: ArrowType): number {
  switch (type.kind) {
    case "bool":
      return 1 / 8;
    case "int":
    case "float":
    case "time":
    case "decimal":
      return type.bits / 8;
    case "date":
      return type.unit === "day" ? 4 : 8;
    case "interval":
      return { months: 4, "days-ms": 8, "months-days-ns": 16 }[type.unit];
    case "fixed-binary":
      return type.width;
    default:
      return 8; // timestamp, duration
  }
}

function fixedWidth(type: ArrowType, view: DataView, length: number): Column["cell"] {
  const width = widthOf(type);
  need(view, Math.ceil(length * width));
  switch (type.kind) {
    case "bool":
      return (i) => bit(view, i);
    case "int":
      return integers(view, type.bits, type.isSigned);
    case "float":
      return floats(view, type.bits);
    case "decimal":
      return (i) => wideInteger(view, i * width, width);
    case "date":
      return type.unit === "day" ? integers(view, 32, true) : integers(view, 64, true);
    case "time":
      return integers(view, type.bits, true);
    case "interval":
      return intervals(view, type.unit);
    case "fixed-binary":
      return (i) => new Uint8Array(view.buffer, view.byteOffset + i * width, width).slice();
    default:
      return integers(view, 64, true);
  }
}

function integers(view: DataView, bits: number, isSigned: boolean): Column["cell"] {
  switch (bits) {
    case 8:
      return isSigned ? (i) => view.getInt8(i) : (i) => view.getUint8(i);
    case 16:
      return isSigned ? (i) => view.getInt16(2 * i, true) : (i) => view.getUint16(2 * i, true);
    case 32:
      return isSigned ? (i) => view.getInt32(4 * i, true) : (i) => view.getUint32(4 * i, true);
    default:
      return isSigned ? (i) => view.getBigInt64(8 * i, true) : (i) => view.getBigUint64(8 * i, true);
  }
}

function floats(view: DataView, bits: number): Column["cell"] {
  if (bits === 64) return (i) => view.getFloat64(8 * i, true);
  if (bits === 32) return (i) => view.getFloat32(4 * i, true);
  return (i) => halfFloat(view.getUint16(2 * i, true));
}

function halfFloat(word: number): number {
  const sign = word & 0x8000 ? -1 : 1;
  const exponent = (word >> 10) & 0x1f;
  const fraction = word & 0x3ff;
  if (exponent === 0x1f) return fraction ? NaN : sign * Infinity;
  if (exponent === 0) return sign * fraction * 2 ** -24;
  return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
}

/** A little-endian integer of any number of bytes. */
function wideInteger(view: DataView, at: number, width: number): bigint {
  if (width === 4) return BigInt(view.getInt32(at, true));
  let value = view.getBigInt64(at + width - 8, true);
  for (let part = width - 16; part >= 0; part -= 8) {
    value = (value << 64n) | view.getBigUint64(at + part, true);
  }
  return value;
}

function intervals(view: DataView, unit: (ArrowType & { kind: "interval" })["unit"]): Column["cell"] {
  if (unit === "months") return (i) => view.getInt32(4 * i, true);
  if (unit === "days-ms") {
    return (i) => ({
      months: 0,
      days: view.getInt32(8 * i, true),
      nanoseconds: BigInt(view.getInt32(8 * i + 4, true)) * 1_000_000n,
    });
  }
  return (i) => ({
    months: view.getInt32(16 * i, true),
    days: view.getInt32(16 * i + 4, true),
    nanoseconds: view.getBigInt64(16 * i + 8, true),
  });
}
