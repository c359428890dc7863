import type { ArrowType, Field } from "../client/arrow_type.ts";
import { nanosOf } from "../client/arrow_type.ts";
import type { CalendarSpan, Cell } from "../client/cells.ts";

/** How the numbers of a column are written. */
export type NumberStyle = "auto" | "plain" | "thousands" | "percent" | "scientific" | `fixed${0 | 1 | 2 | 3 | 4 | 6}`;

export const NUMBER_STYLES: readonly NumberStyle[] = [
  "auto",
  "plain",
  "thousands",
  "percent",
  "scientific",
  "fixed0",
  "fixed2",
  "fixed4",
  "fixed6",
];

export interface CellFormat {
  readonly numbers: NumberStyle;
  readonly zone: "UTC" | "local";
}

export const DEFAULT_FORMAT: CellFormat = { numbers: "auto", zone: "UTC" };

/** Longest text put into a cell of the page; the whole is copied and downloaded. */
const SHOWN_LENGTH_MAX = 500;

const numberFormats = new Map<string, Intl.NumberFormat>();

/** Making one of these costs more than a thousand uses. */
function numberFormat(key: string, options: Intl.NumberFormatOptions): Intl.NumberFormat {
  let format = numberFormats.get(key);
  if (format === undefined) {
    format = new Intl.NumberFormat(undefined, options);
    numberFormats.set(key, format);
  }
  return format;
}

function formatNumber(value: number | bigint, style: NumberStyle, isName: boolean): string {
  if (typeof value === "number" && !Number.isFinite(value)) {
    return Number.isNaN(value) ? "NaN" : value > 0 ? "∞" : "−∞";
  }
  switch (style) {
    case "plain":
      return String(value);
    case "percent":
      return numberFormat(style, { style: "percent", maximumFractionDigits: 4 }).format(value);
    case "scientific":
      return numberFormat(style, { notation: "scientific", maximumFractionDigits: 12 }).format(value);
    case "thousands":
      return numberFormat(style, { maximumFractionDigits: 20 }).format(value);
    case "auto": {
      if (isName) return String(value);
      const size = typeof value === "number" ? Math.abs(value) : 1;
      if (size !== 0 && (size >= 1e15 || size < 1e-6)) return String(value);
      return numberFormat("thousands", { maximumFractionDigits: 20 }).format(value);
    }
    default: {
      const digits = Number(style.slice(5));
      const options = { minimumFractionDigits: digits, maximumFractionDigits: digits };
      return numberFormat(style, options).format(value);
    }
  }
}

/** Whether whole numbers of this column name things, so that nobody wants them grouped. */
function isNaming(field: Field): boolean {
  return field.type.kind === "int" && /(^|_)(id|pid|key|year|port|no)$|[a-z]Id$/i.test(field.name);
}

export function decimalText(unscaled: bigint, scale: number): string {
  const digits = (unscaled < 0n ? -unscaled : unscaled).toString().padStart(scale + 1, "0");
  const sign = unscaled < 0n ? "-" : "";
  if (scale <= 0) return `${sign}${digits}${"0".repeat(-scale)}`;
  return `${sign}${digits.slice(0, -scale)}.${digits.slice(-scale)}`;
}

function floorDivide(value: bigint, divisor: bigint): bigint {
  const quotient = value / divisor;
  return value % divisor < 0n ? quotient - 1n : quotient;
}

const two = (value: number): string => String(value).padStart(2, "0");

/** The fraction of a second: no digits, or three, six or nine, as many as say something. */
function fraction(nanos: number, least: number): string {
  const digits = String(nanos).padStart(9, "0");
  if (digits.endsWith("000000")) return least > 0 || nanos > 0 ? `.${digits.slice(0, 3)}` : "";
  return digits.endsWith("000") ? `.${digits.slice(0, 6)}` : `.${digits}`;
}

const SECOND = 1_000_000_000n;

function dateText(date: Date): string {
  const year = date.getUTCFullYear();
  const years = year < 0 || year > 9999 ? String(year) : String(year).padStart(4, "0");
  return `${years}-${two(date.getUTCMonth() + 1)}-${two(date.getUTCDate())}`;
}

/** A moment to its last digit, in UTC or as the clocks of the reader show it. */
function momentText(nanos: bigint, zone: "UTC" | "local" | "none", separator: string): string {
  const seconds = floorDivide(nanos, SECOND);
  const rest = Number(nanos - seconds * SECOND);
  let ms = Number(seconds) * 1000;
  let suffix = zone === "none" ? "" : "Z";
  if (zone === "local") {
    const minutes = -new Date(ms).getTimezoneOffset();
    ms += minutes * 60_000;
    const ahead = Math.abs(minutes);
    suffix = `${minutes < 0 ? "−" : "+"}${two(Math.floor(ahead / 60))}:${two(ahead % 60)}`;
  }
  const date = new Date(ms);
  if (Number.isNaN(date.getTime())) return `${seconds}${fraction(rest, 3)} s`;
  const time = `${two(date.getUTCHours())}:${two(date.getUTCMinutes())}:${two(date.getUTCSeconds())}`;
  return `${dateText(date)}${separator}${time}${fraction(rest, 3)}${suffix}`;
}

function clockText(nanos: bigint): string {
  const seconds = Number(nanos / SECOND);
  const hours = Math.floor(seconds / 3600);
  const rest = Number(nanos % SECOND);
  return `${two(hours)}:${two(Math.floor(seconds / 60) % 60)}:${two(seconds % 60)}${fraction(rest, 0)}`;
}

function durationText(nanos: bigint): string {
  const size = nanos < 0n ? -nanos : nanos;
  const days = size / (86_400n * SECOND);
  const clock = clockText(size % (86_400n * SECOND));
  return `${nanos < 0n ? "−" : ""}${days > 0n ? `${days}d ` : ""}${clock}`;
}

function calendarText({ months, days, nanoseconds }: CalendarSpan): string {
  const parts = [
    months === 0 ? "" : `${months}mo`,
    days === 0 ? "" : `${days}d`,
    nanoseconds === 0n ? "" : durationText(nanoseconds),
  ];
  return parts.filter(Boolean).join(" ") || "0d";
}

function hex(bytes: Uint8Array, countMax: number): string {
  const shown = Array.from(bytes.subarray(0, countMax), (byte) => byte.toString(16).padStart(2, "0"));
  return `0x${shown.join("")}${bytes.length > countMax ? `… (${bytes.length} bytes)` : ""}`;
}

interface Writing extends CellFormat {
  readonly separator: string;
  readonly bytesMax: number;
  readonly isNumberPlain: boolean;
}

function temporalText(cell: number | bigint, type: ArrowType, writing: Writing): string | null {
  switch (type.kind) {
    case "timestamp": {
      const zone = type.zone === null ? "none" : writing.zone;
      return momentText(BigInt(cell) * nanosOf(type.unit), zone, writing.separator);
    }
    case "date": {
      const ms = type.unit === "day" ? Number(cell) * 86_400_000 : Number(cell);
      return dateText(new Date(ms));
    }
    case "time":
      return clockText(BigInt(cell) * nanosOf(type.unit));
    case "duration":
      return durationText(BigInt(cell) * nanosOf(type.unit));
    case "interval":
      return `${cell}mo`;
    default:
      return null;
  }
}

function write(cell: Cell, field: Field, writing: Writing): string {
  if (cell === null) return "null";
  const { type } = field;
  if (typeof cell === "string") return cell;
  if (typeof cell === "boolean") return String(cell);
  if (typeof cell === "number" || typeof cell === "bigint") {
    if (type.kind === "decimal") return decimalText(BigInt(cell), type.scale);
    const temporal = temporalText(cell, type, writing);
    if (temporal !== null) return temporal;
    if (writing.isNumberPlain) return String(cell);
    return formatNumber(cell, writing.numbers, isNaming(field));
  }
  if (cell instanceof Uint8Array) return hex(cell, writing.bytesMax);
  if (Array.isArray(cell)) {
    const child = field.children[0] ?? field;
    const parts = (cell as readonly Cell[]).map((item) => quoted(item, child, writing));
    return `[${parts.join(", ")}]`;
  }
  if ("nanoseconds" in cell) return calendarText(cell as unknown as CalendarSpan);
  const members = Object.entries(cell).map(([name, value]) => {
    const child = field.children.find((one) => one.name === name) ?? field;
    return `${name}: ${quoted(value, child, writing)}`;
  });
  return `{${members.join(", ")}}`;
}

function quoted(cell: Cell, field: Field, writing: Writing): string {
  return typeof cell === "string" ? JSON.stringify(cell) : write(cell, field, writing);
}

/** What a cell shows: one line of bounded length. */
export function shownText(cell: Cell, field: Field, format: CellFormat): string {
  const writing = { ...format, separator: " ", bytesMax: 16, isNumberPlain: false };
  // Of a text that is too long no more is looked at than is shown.
  const part = typeof cell === "string" ? cell.slice(0, SHOWN_LENGTH_MAX + 1) : cell;
  const text = write(part, field, writing);
  const short = text.length > SHOWN_LENGTH_MAX ? `${text.slice(0, SHOWN_LENGTH_MAX)}…` : text;
  return /[\n\r\t]/.test(short) ? short.replace(/\r?\n|\r/g, "↵").replace(/\t/g, "⇥") : short;
}

/** A cell in full, as files and the clipboard get it: nothing rounded, null empty. */
export function exactText(cell: Cell | undefined, field: Field): string {
  if (cell === null || cell === undefined) return "";
  const writing = { ...DEFAULT_FORMAT, separator: "T", bytesMax: Infinity, isNumberPlain: true };
  return write(cell, field, writing);
}
