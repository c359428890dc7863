/** Columns of cells as an Arrow IPC stream of one batch, in the few types that Perspective has. */
import type { Field } from "../client/arrow_type.ts";
import { nanosOf } from "../client/arrow_type.ts";
import { ByteWriter, EMPTY, utf8, viewOf } from "../client/bytes.ts";
import type { Cell } from "../client/cells.ts";
import { encodeFlat, flat, type FlatFields } from "../client/flatbuffer.ts";
import { encapsulated, STREAM_END } from "../client/table_read.ts";
import { exactText } from "../grid/formats.ts";

/** A column as Perspective gets it. */
export type Form = "bool" | "int32" | "int64" | "float64" | "date" | "moment" | "text";

export interface StreamColumn {
  readonly name: string;
  readonly form: Form;
  /** In the type of the form: days of a date, milliseconds of a moment. */
  readonly cells: readonly (boolean | number | bigint | string | null)[];
}

/** The form of a column; text where Perspective has no other for all of its values. */
export function formOf({ type }: Field): Form {
  switch (type.kind) {
    case "bool":
      return "bool";
    case "int":
      if (type.bits < 32 || (type.bits === 32 && type.isSigned)) return "int32";
      return type.bits === 32 || type.isSigned ? "int64" : "text";
    case "float":
      return "float64";
    case "date":
      return "date";
    case "timestamp":
      return "moment";
    default:
      return "text";
  }
}

const DAY_MS = 86_400_000;
const MILLI_NS = 1_000_000n;

function floored(value: bigint, divisor: bigint): bigint {
  const quotient = value / divisor;
  return value % divisor < 0n ? quotient - 1n : quotient;
}

/** Cells of a column in the type of its form. */
export function streamColumn(field: Field, cells: readonly (Cell | undefined)[]): StreamColumn {
  const form = formOf(field);
  const { type } = field;
  const convert = (cell: Cell): StreamColumn["cells"][number] => {
    if (form === "text") return typeof cell === "string" ? cell : exactText(cell, field);
    if (type.kind === "date" && type.unit === "ms") return Math.floor(Number(cell) / DAY_MS);
    if (type.kind === "timestamp") return floored((cell as bigint) * nanosOf(type.unit), MILLI_NS);
    return cell as boolean | number | bigint;
  };
  return { name: field.name, form, cells: cells.map((cell) => (cell === null || cell === undefined ? null : convert(cell))) };
}

/** Type numbers of the specification's union of types, and what the type itself says. */
const TYPES: Readonly<Record<Form, readonly [number: number, type: FlatFields]>> = {
  bool: [6, new Map()],
  int32: [2, new Map([[4, flat.int32(32)], [6, flat.bool(true)]])],
  int64: [2, new Map([[4, flat.int32(64)], [6, flat.bool(true)]])],
  float64: [3, new Map([[4, flat.int16(2)]])],
  date: [8, new Map([[4, flat.int16(0)]])],
  moment: [10, new Map([[4, flat.int16(1)]])],
  text: [5, new Map()],
};

const V5 = 4;
const SCHEMA = 1;
const BATCH = 3;

function message(kind: number, header: FlatFields, body: Uint8Array): Uint8Array<ArrayBuffer> {
  const fields: FlatFields = new Map([
    [4, flat.int16(V5)],
    [6, flat.int8(kind)],
    [8, flat.table(header)],
    [10, flat.int64(body.length)],
  ]);
  return encapsulated({ header: encodeFlat(fields), metadata: null, body });
}

function schemaOf(columns: readonly StreamColumn[]): FlatFields {
  const fields = columns.map(({ name, form }): FlatFields => {
    const [number, type] = TYPES[form];
    return new Map([
      [4, flat.string(name)],
      [6, flat.bool(true)],
      [8, flat.int8(number)],
      [10, flat.table(type)],
      [14, flat.tables([])],
    ]);
  });
  return new Map([[6, flat.tables(fields)]]);
}

function bitsOf(cells: readonly unknown[], isSet: (cell: unknown) => boolean): Uint8Array {
  const bits = new Uint8Array(Math.ceil(cells.length / 8));
  cells.forEach((cell, i) => {
    if (isSet(cell)) bits[i >> 3]! |= 1 << (i & 7);
  });
  return bits;
}

function textBuffers(cells: StreamColumn["cells"]): Uint8Array[] {
  const values = new ByteWriter();
  const offsets = new Int32Array(cells.length + 1);
  cells.forEach((cell, i) => {
    if (typeof cell === "string") values.append(utf8(cell));
    offsets[i + 1] = values.length;
  });
  return [new Uint8Array(offsets.buffer), values.finished()];
}

function valueBuffers({ form, cells }: StreamColumn): Uint8Array[] {
  if (form === "text") return textBuffers(cells);
  if (form === "bool") return [bitsOf(cells, (cell) => cell === true)];
  const isWide = form !== "int32" && form !== "date";
  const bytes = new Uint8Array(cells.length * (isWide ? 8 : 4));
  const view = viewOf(bytes);
  cells.forEach((cell, i) => {
    if (cell === null) return;
    if (form === "float64") view.setFloat64(8 * i, Number(cell), true);
    else if (isWide) view.setBigInt64(8 * i, BigInt(cell), true);
    else view.setInt32(4 * i, Number(cell), true);
  });
  return [bytes];
}

function batchOf(columns: readonly StreamColumn[], length: number): { header: FlatFields; body: Uint8Array } {
  const [nodes, places, body] = [new ByteWriter(), new ByteWriter(), new ByteWriter()];
  let buffers = 0;
  for (const column of columns) {
    const nulls = column.cells.reduce((count: number, cell) => count + Number(cell === null), 0);
    nodes.int64(length);
    nodes.int64(nulls);
    const validity = nulls === 0 ? EMPTY : bitsOf(column.cells, (cell) => cell !== null);
    for (const buffer of [validity, ...valueBuffers(column)]) {
      places.int64(body.length);
      places.int64(buffer.length);
      body.append(buffer);
      body.append(new Uint8Array((8 - (buffer.length % 8)) % 8));
      buffers++;
    }
  }
  const header: FlatFields = new Map([
    [4, flat.int64(length)],
    [6, flat.structs(nodes.finished(), columns.length)],
    [8, flat.structs(places.finished(), buffers)],
  ]);
  return { header, body: body.finished() };
}

/** Columns of one length as bytes that any Arrow library reads. */
export function arrowStream(columns: readonly StreamColumn[]): Uint8Array<ArrayBuffer> {
  const { header, body } = batchOf(columns, columns[0]?.cells.length ?? 0);
  const writer = new ByteWriter();
  writer.append(message(SCHEMA, schemaOf(columns), EMPTY));
  writer.append(message(BATCH, header, body));
  writer.append(STREAM_END);
  return writer.finished();
}
