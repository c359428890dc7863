import type { ArrowType, DictionaryEncoding, Field, Schema, TimeUnit } from "./arrow_type.ts";
import { ProtocolError, reading } from "./errors.ts";
import { FlatTable } from "./flatbuffer.ts";

/** The header of an Arrow message: what is in it, and how many bytes of body belong to it. */
export interface ArrowMessage {
  readonly kind: "schema" | "dictionary" | "batch";
  readonly table: FlatTable;
}

const KINDS = ["", "schema", "dictionary", "batch"] as const;
const DEPTH_MAX = 64;
const FIELDS_MAX = 100_000;

export function decodeMessage(header: Uint8Array): ArrowMessage {
  return reading("an Arrow message", () => {
    const root = FlatTable.root(header);
    const kind = KINDS[root.uint8(6)];
    const table = root.table(8);
    if (!kind || table === null) {
      throw new ProtocolError(`an Arrow message is of the kind ${root.uint8(6)}`);
    }
    return { kind, table };
  });
}

export function readSchema(table: FlatTable): Schema {
  return reading("a schema", () => {
    if (table.int16(4) !== 0) throw new ProtocolError("big-endian columns are not supported");
    const budget = { left: FIELDS_MAX };
    const fields = (table.tables(6) ?? []).map((field) => readField(field, 1, budget));
    return { fields, metadata: readMetadata(table, 8) };
  });
}

/** Whether two schemas have columns of the same names and types. */
export function sameColumns(a: Schema, b: Schema): boolean {
  return sameFields(a.fields, b.fields);
}

function sameFields(a: readonly Field[], b: readonly Field[]): boolean {
  return (
    a.length === b.length &&
    a.every((field, i) => {
      const other = b[i]!;
      return (
        field.name === other.name &&
        JSON.stringify(field.type) === JSON.stringify(other.type) &&
        sameFields(field.children, other.children)
      );
    })
  );
}

function readMetadata(table: FlatTable, slot: number): Map<string, string> {
  return new Map(
    (table.tables(slot) ?? []).map((entry) => [entry.text(4) ?? "", entry.text(6) ?? ""]),
  );
}

function readField(table: FlatTable, depth: number, budget: { left: number }): Field {
  if (depth > DEPTH_MAX) throw new ProtocolError(`a schema nests deeper than ${DEPTH_MAX}`);
  if (budget.left-- <= 0) throw new ProtocolError(`a schema has more than ${FIELDS_MAX} fields`);
  const name = table.text(4) ?? "";
  const parameters = table.table(10);
  if (parameters === null) throw new ProtocolError(`column ${name} has no type`);
  const children = (table.tables(14) ?? []).map((child) => readField(child, depth + 1, budget));
  return {
    name,
    type: readType(table.uint8(8), parameters, children),
    isNullable: table.bool(6),
    children,
    dictionary: readDictionary(table.table(12)),
    metadata: readMetadata(table, 16),
  };
}

function readDictionary(table: FlatTable | null): DictionaryEncoding | null {
  if (table === null) return null;
  const index = table.table(6);
  const type: ArrowType =
    index === null ? { kind: "int", bits: 32, isSigned: true } : readInteger(index);
  return { id: table.int64(4), index: type };
}

function readInteger(table: FlatTable): ArrowType {
  const bits = table.int32(4);
  if (![8, 16, 32, 64].includes(bits)) throw new ProtocolError(`integers of ${bits} bits`);
  return { kind: "int", bits, isSigned: table.bool(6) };
}

function choice<T>(among: readonly T[], index: number): T {
  const chosen = among[index];
  if (chosen === undefined) throw new ProtocolError(`a type has the unit ${index}`);
  return chosen;
}

const UNITS: readonly TimeUnit[] = ["s", "ms", "us", "ns"];

function readUnion(table: FlatTable, children: readonly Field[]): ArrowType {
  const vector = table.vector(6, 4);
  const codes = children.map((_, i) => (vector === null ? i : vector.getInt32(4 * i, true)));
  return { kind: "union", isDense: table.int16(4) === 1, codes };
}

function needChildren(children: readonly Field[], count: number): void {
  if (children.length !== count) {
    throw new ProtocolError(`a type has ${children.length} children instead of ${count}`);
  }
}

/** Type numbers of the specification's union of types. */
function readType(number: number, table: FlatTable, children: readonly Field[]): ArrowType {
  switch (number) {
    case 1:
      return { kind: "null" };
    case 2:
      return readInteger(table);
    case 3:
      return { kind: "float", bits: choice([16, 32, 64], table.int16(4)) };
    case 4:
    case 19:
      return { kind: "binary", isLarge: number === 19 };
    case 5:
    case 20:
      return { kind: "text", isLarge: number === 20 };
    case 6:
      return { kind: "bool" };
    case 7:
      return readDecimal(table);
    case 8:
      return { kind: "date", unit: choice(["day", "ms"] as const, table.int16(4, 1)) };
    case 9:
      return { kind: "time", unit: choice(UNITS, table.int16(4, 1)), bits: table.int32(6, 32) };
    case 10:
      return { kind: "timestamp", unit: choice(UNITS, table.int16(4)), zone: table.text(6) };
    case 11:
      return {
        kind: "interval",
        unit: choice(["months", "days-ms", "months-days-ns"] as const, table.int16(4)),
      };
    case 15:
      return { kind: "fixed-binary", width: table.int32(4) };
    case 18:
      return { kind: "duration", unit: choice(UNITS, table.int16(4, 1)) };
    default:
      return readNested(number, table, children);
  }
}

function readDecimal(table: FlatTable): ArrowType {
  const bits = table.int32(8, 128);
  if (![32, 64, 128, 256].includes(bits)) throw new ProtocolError(`decimals of ${bits} bits`);
  return { kind: "decimal", bits, precision: table.int32(4), scale: table.int32(6) };
}

function readNested(number: number, table: FlatTable, children: readonly Field[]): ArrowType {
  switch (number) {
    case 12:
    case 21:
      needChildren(children, 1);
      return { kind: "list", isLarge: number === 21 };
    case 13:
      return { kind: "struct" };
    case 14:
      return readUnion(table, children);
    case 16:
      needChildren(children, 1);
      return { kind: "fixed-list", size: table.int32(4) };
    case 17:
      needChildren(children, 1);
      needChildren(children[0]!.children, 2);
      return { kind: "map" };
    case 22:
      needChildren(children, 2);
      return { kind: "run-end" };
    case 25:
    case 26:
      needChildren(children, 1);
      return { kind: "list-view", isLarge: number === 26 };
    default:
      throw new ProtocolError(`the Arrow type number ${number} is not supported`);
  }
}
