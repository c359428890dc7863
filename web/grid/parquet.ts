import type { Field } from "../client/arrow_type.ts";
import { nanosOf } from "../client/arrow_type.ts";
import { ByteWriter, utf8, viewOf } from "../client/bytes.ts";
import type { Cell } from "../client/cells.ts";
import { exactText } from "./formats.ts";
import { encodeThrift, thrift, type ThriftValue } from "./thrift.ts";

/** How a column stands in a Parquet file. */
interface Codec {
  readonly physical: number;
  readonly logical: ThriftValue | undefined;
  /** Write a cell that is not null. */
  write(writer: ByteWriter, cell: Cell): void;
}

const BOOLEAN = 0;
const INT32 = 1;
const INT64 = 2;
const FLOAT = 4;
const DOUBLE = 5;
const BYTE_ARRAY = 6;
const OPTIONAL = 1;
const PLAIN = 0;
const RLE = 3;
const NONE = thrift.struct();

const logical = (number: number, what = NONE): ThriftValue => thrift.struct([number, what]);
const unit = (number: number): ThriftValue => thrift.struct([number, NONE]);

function bytesOf(writer: ByteWriter, bytes: Uint8Array): void {
  writer.int32(bytes.length);
  writer.append(bytes);
}

const text = (of: (cell: Cell) => string): Codec => ({
  physical: BYTE_ARRAY,
  logical: logical(1),
  write: (writer, cell) => bytesOf(writer, utf8(of(cell))),
});

const long = (what: ThriftValue | undefined, factor = 1n): Codec => ({
  physical: INT64,
  logical: what,
  write: (writer, cell) => writer.int64(BigInt.asIntN(64, BigInt(cell as number | bigint) * factor)),
});

const int = (what: ThriftValue | undefined, of = (cell: Cell): number => cell as number): Codec => ({
  physical: INT32,
  logical: what,
  write: (writer, cell) => writer.int32(of(cell)),
});

function real(width: 4 | 8): Codec {
  const bytes = new Uint8Array(width);
  const view = viewOf(bytes);
  return {
    physical: width === 4 ? FLOAT : DOUBLE,
    logical: undefined,
    write: (writer, cell) => {
      if (width === 4) view.setFloat32(0, cell as number, true);
      else view.setFloat64(0, cell as number, true);
      writer.append(bytes);
    },
  };
}

/** Two's complement, the highest byte first, as few bytes as will do. */
function bigEndian(value: bigint): Uint8Array {
  const bytes: number[] = [];
  let rest = value;
  do {
    bytes.unshift(Number(rest & 0xffn));
    rest >>= 8n;
  } while (!(rest === 0n && bytes[0]! < 0x80) && !(rest === -1n && bytes[0]! >= 0x80));
  return Uint8Array.from(bytes);
}

function codecOf(field: Field): Codec {
  const { type } = field;
  switch (type.kind) {
    case "bool":
      return { physical: BOOLEAN, logical: undefined, write: () => undefined };
    case "int": {
      const what = logical(10, thrift.struct([1, thrift.i8(type.bits)], [2, thrift.bool(type.isSigned)]));
      return type.bits === 64 ? long(what) : int(what);
    }
    case "float":
      return real(type.bits === 64 ? 8 : 4);
    case "text":
      return text((cell) => cell as string);
    case "binary":
    case "fixed-binary":
      return { physical: BYTE_ARRAY, logical: undefined, write: (writer, cell) => bytesOf(writer, cell as Uint8Array) };
    case "decimal": {
      const what = thrift.struct([1, thrift.i32(type.scale)], [2, thrift.i32(type.precision)]);
      const write = (writer: ByteWriter, cell: Cell): void => bytesOf(writer, bigEndian(cell as bigint));
      return { physical: BYTE_ARRAY, logical: logical(5, what), write };
    }
    case "date":
      return int(logical(6), (cell) => (type.unit === "day" ? (cell as number) : Number(cell) / 86_400_000));
    case "time":
      return long(logical(7, thrift.struct([1, thrift.bool(false)], [2, unit(3)])), nanosOf(type.unit));
    case "timestamp": {
      const units = { s: 1, ms: 1, us: 2, ns: 3 } as const;
      const what = thrift.struct([1, thrift.bool(type.zone !== null)], [2, unit(units[type.unit])]);
      return long(logical(8, what), type.unit === "s" ? 1000n : 1n);
    }
    case "duration":
      return long(undefined);
    default:
      return text((cell) => exactText(cell, field));
  }
}

/** The bits of flags, the first one lowest. */
function packed(flags: readonly boolean[]): Uint8Array {
  const bytes = new Uint8Array(Math.ceil(flags.length / 8));
  flags.forEach((flag, i) => {
    if (flag) bytes[i >> 3]! |= 1 << (i & 7);
  });
  return bytes;
}

/** A page: which cells are there, then those. */
function page(codec: Codec, cells: readonly Cell[]): Uint8Array<ArrayBuffer> {
  const levels = new ByteWriter();
  levels.varint(Math.ceil(cells.length / 8) * 2 + 1);
  levels.append(packed(cells.map((cell) => cell !== null)));
  const content = new ByteWriter();
  bytesOf(content, levels.finished());
  if (codec.physical === BOOLEAN) content.append(packed(cells.filter((cell) => cell !== null) as boolean[]));
  else for (const cell of cells) if (cell !== null) codec.write(content, cell);
  const size = thrift.i32(content.length);
  const about = thrift.struct(
    [1, thrift.i32(cells.length)],
    [2, thrift.i32(PLAIN)],
    [3, thrift.i32(RLE)],
    [4, thrift.i32(RLE)],
  );
  const header = encodeThrift(thrift.struct([1, thrift.i32(0)], [2, size], [3, size], [5, about]));
  const whole = new Uint8Array(header.length + content.length);
  whole.set(header);
  whole.set(content.finished(), header.length);
  return whole;
}

const MARK = utf8("PAR1");

/** A Parquet file, a row group for each batch. Lists and other nested values stand in it as text. */
export class ParquetWriter {
  readonly parts: Uint8Array<ArrayBuffer>[] = [MARK.slice()];
  private length = MARK.length;
  private rows = 0;
  private readonly groups: ThriftValue[] = [];
  private readonly codecs: readonly Codec[];

  constructor(private readonly fields: readonly Field[]) {
    this.codecs = fields.map(codecOf);
  }

  /** Add rows, given by column. */
  add(columns: readonly (readonly Cell[])[]): void {
    const rows = columns[0]?.length ?? 0;
    if (rows === 0) return;
    let bytes = 0;
    const chunks = columns.map((cells, i) => {
      const codec = this.codecs[i]!;
      const written = page(codec, cells);
      const at = this.length;
      this.parts.push(written);
      this.length += written.length;
      bytes += written.length;
      const about = thrift.struct(
        [1, thrift.i32(codec.physical)],
        [2, thrift.list([thrift.i32(PLAIN), thrift.i32(RLE)])],
        [3, thrift.list([thrift.text(this.fields[i]!.name)])],
        [4, thrift.i32(0)],
        [5, thrift.i64(rows)],
        [6, thrift.i64(written.length)],
        [7, thrift.i64(written.length)],
        [9, thrift.i64(at)],
      );
      return thrift.struct([2, thrift.i64(at)], [3, about]);
    });
    this.groups.push(thrift.struct([1, thrift.list(chunks)], [2, thrift.i64(bytes)], [3, thrift.i64(rows)]));
    this.rows += rows;
  }

  finish(): Blob {
    const columns = this.fields.map(({ name, type }, i) => {
      const codec = this.codecs[i]!;
      const isDecimal = type.kind === "decimal";
      return thrift.struct(
        [1, thrift.i32(codec.physical)],
        [3, thrift.i32(OPTIONAL)],
        [4, thrift.text(name)],
        [6, isDecimal ? thrift.i32(5) : undefined],
        [7, isDecimal ? thrift.i32(type.scale) : undefined],
        [8, isDecimal ? thrift.i32(type.precision) : undefined],
        [10, codec.logical],
      );
    });
    const root = thrift.struct([4, thrift.text("schema")], [5, thrift.i32(columns.length)]);
    const footer = encodeThrift(
      thrift.struct(
        [1, thrift.i32(2)],
        [2, thrift.list([root, ...columns])],
        [3, thrift.i64(this.rows)],
        [4, thrift.list(this.groups)],
        [6, thrift.text("barrage")],
      ),
    );
    const end = new ByteWriter();
    end.append(footer);
    end.int32(footer.length);
    end.append(MARK);
    return new Blob([...this.parts, end.finished()], { type: "application/vnd.apache.parquet" });
  }
}
