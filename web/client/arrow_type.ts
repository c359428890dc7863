export type TimeUnit = "s" | "ms" | "us" | "ns";

/** A type of the Arrow columnar format. Children are those of the field. */
export type ArrowType =
  | { readonly kind: "null" | "bool" | "struct" | "map" | "run-end" }
  | { readonly kind: "int"; readonly bits: number; readonly isSigned: boolean }
  | { readonly kind: "float"; readonly bits: number }
  | { readonly kind: "text" | "binary" | "list" | "list-view"; readonly isLarge: boolean }
  | { readonly kind: "decimal"; readonly bits: number; readonly precision: number; readonly scale: number }
  | { readonly kind: "date"; readonly unit: "day" | "ms" }
  | { readonly kind: "time"; readonly unit: TimeUnit; readonly bits: number }
  | { readonly kind: "timestamp"; readonly unit: TimeUnit; readonly zone: string | null }
  | { readonly kind: "duration"; readonly unit: TimeUnit }
  | { readonly kind: "interval"; readonly unit: "months" | "days-ms" | "months-days-ns" }
  | { readonly kind: "fixed-binary"; readonly width: number }
  | { readonly kind: "fixed-list"; readonly size: number }
  | { readonly kind: "union"; readonly isDense: boolean; readonly codes: readonly number[] };

/** How a column's values stand in a dictionary. */
export interface DictionaryEncoding {
  readonly id: bigint;
  readonly index: ArrowType;
}

/** A column, or a child of one. */
export interface Field {
  readonly name: string;
  readonly type: ArrowType;
  readonly isNullable: boolean;
  readonly children: readonly Field[];
  readonly dictionary: DictionaryEncoding | null;
  readonly metadata: ReadonlyMap<string, string>;
}

export interface Schema {
  readonly fields: readonly Field[];
  readonly metadata: ReadonlyMap<string, string>;
}

const NANOS: Readonly<Record<TimeUnit, bigint>> = {
  s: 1_000_000_000n,
  ms: 1_000_000n,
  us: 1_000n,
  ns: 1n,
};

/** How many nanoseconds one of a unit is. */
export function nanosOf(unit: TimeUnit): bigint {
  return NANOS[unit];
}

/** The type as people write it, such as `timestamp[ns, UTC]`. */
export function typeName(field: Field): string {
  const { type } = field;
  switch (type.kind) {
    case "int":
      return `${type.isSigned ? "" : "u"}int${type.bits}`;
    case "float":
      return `float${type.bits}`;
    case "text":
      return "string";
    case "decimal":
      return `decimal(${type.precision}, ${type.scale})`;
    case "timestamp":
      return `timestamp[${type.unit}${type.zone === null ? "" : `, ${type.zone}`}]`;
    case "time":
    case "duration":
      return `${type.kind}[${type.unit}]`;
    case "list":
    case "list-view":
    case "fixed-list":
      return `list<${field.children[0] ? typeName(field.children[0]) : ""}>`;
    default:
      return type.kind;
  }
}

/** Whether values are numbers, and stand at the right of their cells. */
export function isNumeric(type: ArrowType): boolean {
  return type.kind === "int" || type.kind === "float" || type.kind === "decimal";
}
