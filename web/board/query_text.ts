import type { Argument, Operation } from "../client/query.ts";

/**
 * The line of the query bar: operators between bars, in the order in which they are applied.
 *
 *     where price > 3 | agg by venue n=count(), total=sum(size) | sort -total | head 10
 */
export interface OperatorForm {
  readonly name: string;
  readonly example: string;
  read(text: string): readonly Argument[];
  write(args: readonly Argument[]): string;
}

class QueryError extends Error {
  override name = "QueryError";
}

/** Split at a sign that stands in no quotes, backticks or brackets. */
export function splitOutside(text: string, sign: string): string[] {
  const parts: string[] = [];
  let depth = 0;
  let quote = "";
  let from = 0;
  for (let i = 0; i < text.length; i++) {
    const character = text[i]!;
    if (quote !== "") quote = character === quote ? "" : quote;
    else if ("'\"`".includes(character)) quote = character;
    else if (character === "(") depth++;
    else if (character === ")") depth--;
    else if (character === sign && depth === 0) {
      parts.push(text.slice(from, i));
      from = i + 1;
    }
  }
  return [...parts, text.slice(from)].map((part) => part.trim());
}

function listed(text: string): string[] {
  return splitOutside(text, ",").filter(Boolean);
}

function count(text: string): number {
  if (!/^\d{1,15}$/.test(text.trim())) throw new QueryError(`${text.trim() || "nothing"} is no number of rows`);
  return Number(text);
}

const texts = (args: Argument | undefined): readonly string[] => (Array.isArray(args) ? (args as string[]) : []);

function pairs(text: string): Record<string, string> {
  const entries = listed(text).map((part) => {
    const at = part.indexOf("=");
    if (at < 1) throw new QueryError(`${part} is no name=function(column)`);
    return [part.slice(0, at).trim(), part.slice(at + 1).trim()] as const;
  });
  if (entries.length === 0) throw new QueryError("agg needs at least one name=function(column)");
  return Object.fromEntries(entries);
}

const list = (name: string, example: string): OperatorForm => ({
  name,
  example,
  read: (text) => [listed(text)],
  write: ([items]) => texts(items).join(", "),
});

const rows = (name: string, example: string): OperatorForm => ({
  name,
  example,
  read: (text) => [count(text)],
  write: ([number]) => JSON.stringify(number),
});

const some = (form: OperatorForm): OperatorForm => ({
  ...form,
  read: (text) => {
    if (listed(text).length === 0) throw new QueryError(`${form.name} needs columns, such as ${form.example}`);
    return form.read(text);
  },
});

export const OPERATORS: readonly OperatorForm[] = [
  {
    name: "where",
    example: "where price > 3 and venue in ('A', 'B')",
    read: (text) => {
      if (text === "") throw new QueryError("where needs a condition, such as price > 3");
      return [text];
    },
    write: ([condition]) => condition as string,
  },
  some(list("sort", "sort -price, name")),
  some(list("select", "select name, total = price * size")),
  some(list("drop", "drop note")),
  rows("head", "head 100"),
  rows("tail", "tail 100"),
  {
    name: "agg",
    example: "agg by venue n=count(), total=sum(size)",
    read: (text) => {
      const by = /^by\s+(.*?)(?=(?:\s|,)+[A-Za-z_]\w*\s*=)/s.exec(text);
      const rest = by === null ? text : text.slice(by[0].length).replace(/^[\s,]+/, "");
      return [by === null ? [] : listed(by[1]!), pairs(rest)];
    },
    write: ([by, aggregations]) => {
      const made = Object.entries(aggregations as Record<string, string>).map(([name, what]) => `${name}=${what}`);
      const keys = texts(by);
      return `${keys.length > 0 ? `by ${keys.join(", ")} ` : ""}${made.join(", ")}`;
    },
  },
  list("distinct", "distinct venue"),
  some(list("last", "last by name")),
];

/** Names in the bar that are others in a query. */
const NAMES: Readonly<Record<string, string>> = { agg: "agg_by", distinct: "select_distinct", last: "last_by" };

export type Parsed = { readonly operations: readonly Operation[] } | { readonly problem: string };

export function parseQuery(text: string): Parsed {
  const operations: Operation[] = [];
  for (const part of splitOutside(text, "|").filter(Boolean)) {
    const [, word = "", rest = ""] = /^(\S+)\s*(.*)$/s.exec(part) ?? [];
    const form = OPERATORS.find(({ name }) => name === word.toLowerCase());
    if (form === undefined) {
      return { problem: `there is no operator ${word}; there are ${OPERATORS.map(({ name }) => name).join(", ")}` };
    }
    try {
      const content = form.name === "last" ? rest.replace(/^by\s+/, "") : rest;
      operations.push([NAMES[form.name] ?? form.name, ...form.read(content)]);
    } catch (error) {
      if (!(error instanceof QueryError)) throw error;
      return { problem: error.message };
    }
  }
  return { operations };
}

/** The line that reads as these operations; what the bar has no form for is left out. */
export function writeQuery(operations: readonly Operation[]): string {
  return operations
    .flatMap(([name, ...args]) => {
      const form = OPERATORS.find((one) => (NAMES[one.name] ?? one.name) === name);
      return form === undefined ? [] : [`${form.name}${form.name === "last" ? " by" : ""} ${form.write(args)}`];
    })
    .join(" | ");
}

const FUNCTIONS = ["isnull(", "isnotnull(", "startswith(", "endswith(", "contains(", "lower(", "upper(", "length(", "abs(", "round("];
const AGGREGATES = ["count()", "sum(", "avg(", "min(", "max(", "first(", "last(", "std(", "var("];

export interface Completion {
  /** Where the word begins that it takes the place of. */
  readonly from: number;
  readonly words: readonly string[];
}

const COMPLETIONS_MAX = 12;

/** What may stand where somebody is writing. */
export function complete(text: string, at: number, columns: readonly string[]): Completion {
  const before = text.slice(0, at);
  const word = /[\w`]*$/.exec(before)![0];
  const from = at - word.length;
  const part = splitOutside(before, "|").pop() ?? "";
  const isFirst = !/\s/.test(part) && part.length <= word.length;
  const operator = /^\w+/.exec(part)?.[0] ?? "";
  const names = columns.map((name) => (/^[A-Za-z_]\w*$/.test(name) ? name : `\`${name}\``));
  let known = OPERATORS.map(({ name }) => name);
  if (!isFirst) {
    known = operator === "agg" ? [...names, ...AGGREGATES] : names;
    if (operator === "where" || operator === "select") known = [...known, ...FUNCTIONS];
  }
  const start = word.toLowerCase().replace(/^`/, "");
  const words = known.filter((one) => {
    const plain = one.toLowerCase().replace(/^`/, "");
    return plain.startsWith(start) && plain !== start;
  });
  return { from, words: words.slice(0, COMPLETIONS_MAX) };
}
