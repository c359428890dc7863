import { ByteWriter, utf8 } from "../client/bytes.ts";

/** A value of Thrift's compact protocol, as far as the footer of a Parquet file needs it. */
export type ThriftValue =
  | { readonly kind: "bool"; readonly value: boolean }
  | { readonly kind: "i8" | "i32" | "i64"; readonly value: number }
  | { readonly kind: "text"; readonly value: string }
  | { readonly kind: "list"; readonly value: readonly ThriftValue[] }
  | { readonly kind: "struct"; readonly value: ThriftFields };

/** Fields by their numbers, ascending; undefined ones are left out. */
export type ThriftFields = readonly (readonly [number, ThriftValue | undefined])[];

export const thrift = {
  bool: (value: boolean): ThriftValue => ({ kind: "bool", value }),
  i8: (value: number): ThriftValue => ({ kind: "i8", value }),
  i32: (value: number): ThriftValue => ({ kind: "i32", value }),
  i64: (value: number): ThriftValue => ({ kind: "i64", value }),
  text: (value: string): ThriftValue => ({ kind: "text", value }),
  list: (value: readonly ThriftValue[]): ThriftValue => ({ kind: "list", value }),
  struct: (...value: ThriftFields): ThriftValue => ({ kind: "struct", value }),
};

const TYPES = { bool: 1, i8: 3, i32: 5, i64: 6, text: 8, list: 9, struct: 12 } as const;
const FALSE = 2;

export function encodeThrift(value: ThriftValue): Uint8Array<ArrayBuffer> {
  const writer = new ByteWriter();
  write(writer, value);
  return writer.finished();
}

/** Zigzag: small numbers are short, negative ones too. */
function whole(writer: ByteWriter, value: number): void {
  writer.varint(value < 0 ? -2 * value - 1 : 2 * value);
}

function write(writer: ByteWriter, value: ThriftValue): void {
  switch (value.kind) {
    case "bool":
      return; // it stands in the head of its field
    case "i8":
      writer.int8(value.value);
      return;
    case "i32":
    case "i64":
      whole(writer, value.value);
      return;
    case "text": {
      const bytes = utf8(value.value);
      writer.varint(bytes.length);
      writer.append(bytes);
      return;
    }
    case "list": {
      const { length } = value.value;
      const type = TYPES[value.value[0]?.kind ?? "struct"];
      if (length < 15) writer.byte((length << 4) | type);
      else {
        writer.byte(0xf0 | type);
        writer.varint(length);
      }
      for (const item of value.value) write(writer, item);
      return;
    }
    case "struct":
      fields(writer, value.value);
  }
}

function fields(writer: ByteWriter, all: ThriftFields): void {
  let last = 0;
  for (const [number, value] of all) {
    if (value === undefined) continue;
    const type = value.kind === "bool" && !value.value ? FALSE : TYPES[value.kind];
    writer.byte(((number - last) << 4) | type);
    write(writer, value);
    last = number;
  }
  writer.byte(0);
}
