import { type Field, isNumeric } from "../client/arrow_type.ts";

/** A column in the language of expressions; null for a name that cannot be written there. */
export function columnName(name: string): string | null {
  if (/^[A-Za-z_]\w*$/.test(name) && !RESERVED.has(name.toLowerCase())) return name;
  return name.includes("`") ? null : `\`${name}\``;
}

const RESERVED: ReadonlySet<string> = new Set(["and", "or", "not", "in", "is", "null", "true", "false"]);

function textLiteral(text: string): string {
  return `'${text.replace(/'/g, "''")}'`;
}

const NUMBER = /^[+-]?(\d[\d_,]*(\.\d*)?|\.\d+)(e[+-]?\d+)?$/i;

/** A constant of the column's type; null when the text is none. */
function literal(field: Field, text: string): string | null {
  const { kind } = field.type;
  if (isNumeric(field.type)) return NUMBER.test(text) ? text.replace(/[_,]|^\+/g, "") : null;
  if (kind === "bool") {
    const known: Readonly<Record<string, string>> = { true: "true", yes: "true", false: "false", no: "false" };
    return known[text.toLowerCase()] ?? null;
  }
  return textLiteral(/^'.*'$|^".*"$/.test(text) ? text.slice(1, -1) : text);
}

export type FilterResult = { readonly where: string } | { readonly problem: string } | null;

const COMPARISON = /^(<=|>=|<>|!=|==|=|<|>)\s*(.*)$/s;

/** Parts between commas that stand in no quotes. */
function listParts(text: string): string[] {
  return (text.match(/('[^']*'|"[^"]*"|[^,])+/g) ?? []).map((part) => part.trim()).filter(Boolean);
}

/**
 * The condition a filter of one column says: `> 3`, `1..5`, `in a, b`, `null`, `!null`; other text is
 * looked for inside texts, and compared with anything else. Null when it says nothing.
 */
export function filterCondition(field: Field, text: string): FilterResult {
  const wish = text.trim();
  if (wish === "") return null;
  const column = columnName(field.name);
  if (column === null) return { problem: `a column with a backtick in its name cannot be filtered` };
  if (/^null$/i.test(wish)) return { where: `isnull(${column})` };
  if (/^!\s*null$/i.test(wish)) return { where: `isnotnull(${column})` };
  const comparison = COMPARISON.exec(wish);
  if (comparison !== null) return compared(field, column, [comparison[1]!, comparison[2]!.trim()]);
  const list = /^(not\s+)?in\s+\(?(.*?)\)?$/is.exec(wish);
  if (list !== null) return listed(field, `${column} ${list[1] ? "not in" : "in"}`, listParts(list[2]!));
  const range = /^(.+?)\s*\.\.\s*(.+)$/s.exec(wish);
  if (range !== null) return ranged(field, column, [range[1]!, range[2]!]);
  if (field.type.kind === "text") {
    return { where: `contains(lower(${column}), ${textLiteral(wish.toLowerCase())})` };
  }
  return compared(field, column, ["=", wish]);
}

function compared(field: Field, column: string, [sign, text]: readonly [string, string]): FilterResult {
  if (text === "") return null; // still being written
  const value = literal(field, text);
  if (value === null) return { problem: `${text} is no value of ${field.name}` };
  return { where: `${column} ${sign === "==" ? "=" : sign} ${value}` };
}

function listed(field: Field, start: string, parts: readonly string[]): FilterResult {
  const values = parts.map((part) => literal(field, part));
  const bad = values.indexOf(null);
  if (bad >= 0) return { problem: `${parts[bad]} is no value of ${field.name}` };
  return values.length === 0 ? null : { where: `${start} (${values.join(", ")})` };
}

function ranged(field: Field, column: string, ends: readonly [string, string]): FilterResult {
  const [low, high] = ends.map((end) => literal(field, end.trim()));
  if (low === null || high === null) return { problem: `${ends.join("..")} is no range of ${field.name}` };
  return { where: `${column} >= ${low} and ${column} <= ${high}` };
}

/** Rows in which any text or number of the table contains this; null when there is nothing to do. */
export function searchCondition(fields: readonly Field[], text: string): string | null {
  const wish = text.trim();
  if (wish === "") return null;
  const pattern = textLiteral(wish.toLowerCase());
  const conditions = fields.slice(0, SEARCHED_COLUMNS_MAX).flatMap((field) => {
    const column = columnName(field.name);
    if (column === null) return [];
    if (field.type.kind === "text") return [`contains(lower(${column}), ${pattern})`];
    const isPart = isNumeric(field.type) && /^[-+.\de]+$/i.test(wish);
    return isPart ? [`contains(text(${column}), ${pattern})`] : [];
  });
  return conditions.length > 0 ? conditions.join(" or ") : "false";
}

/** Expressions have a longest text and a deepest nesting. */
const SEARCHED_COLUMNS_MAX = 50;
