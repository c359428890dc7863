import type { Field } from "../client/arrow_type.ts";
import type { Operation, Query } from "../client/query.ts";
import { filterCondition, searchCondition } from "./filters.ts";
import type { NumberStyle } from "./formats.ts";

export interface SortKey {
  readonly name: string;
  readonly isDescending: boolean;
}

/** What a user has made of a table: everything that a link brings back. */
export interface GridState {
  readonly table: string;
  /** Operators of the query bar, before filters and sorting. */
  readonly operations: readonly Operation[];
  readonly sort: readonly SortKey[];
  readonly filters: Readonly<Record<string, string>>;
  readonly search: string;
  readonly hidden: readonly string[];
  /** Columns that come first, in this order; the others follow as the table has them. */
  readonly order: readonly string[];
  readonly widths: Readonly<Record<string, number>>;
  readonly numbers: Readonly<Record<string, NumberStyle>>;
  /** How many columns stay at the left. */
  readonly frozen: number;
  readonly zone: "UTC" | "local";
  readonly follows: boolean;
  readonly showsFilters: boolean;
  /** The version of the table that is shown, as `epoch:version`; nothing for the table as it changes. */
  readonly at: string;
}

export function emptyState(table: string): GridState {
  return {
    table,
    operations: [],
    sort: [],
    filters: {},
    search: "",
    hidden: [],
    order: [],
    widths: {},
    numbers: {},
    frozen: 0,
    zone: "UTC",
    follows: false,
    showsFilters: false,
    at: "",
  };
}

/** Only what differs from a table that nobody touched. */
export function compactState(state: GridState): Partial<GridState> {
  const empty = emptyState(state.table);
  const differing = Object.entries(state).filter(
    ([name, value]) =>
      name === "table" || JSON.stringify(value) !== JSON.stringify(empty[name as keyof GridState]),
  );
  return Object.fromEntries(differing);
}

type Unchecked = Readonly<Record<string, unknown>>;

const isText = (value: unknown): value is string => typeof value === "string";

const texts = (value: unknown): string[] => (Array.isArray(value) ? value.filter(isText) : []);

function record<T>(value: unknown, isFit: (item: unknown) => item is T): Record<string, T> {
  if (typeof value !== "object" || value === null || Array.isArray(value)) return {};
  const entries = Object.entries(value).filter((entry): entry is [string, T] => isFit(entry[1]));
  return Object.fromEntries(entries);
}

/** A state from a link or a saved board, of which anybody may have written anything. */
export function readState(value: unknown): GridState | null {
  if (typeof value !== "object" || value === null) return null;
  const given = value as Unchecked;
  if (!isText(given.table) || given.table === "") return null;
  const sort = Array.isArray(given.sort) ? (given.sort as Unchecked[]) : [];
  return {
    table: given.table,
    operations: (Array.isArray(given.operations) ? given.operations : []).filter(
      (operation): operation is Operation => Array.isArray(operation) && isText(operation[0]),
    ),
    sort: sort
      .filter((key) => typeof key === "object" && isText(key.name))
      .map((key) => ({ name: key.name as string, isDescending: key.isDescending === true })),
    filters: record(given.filters, isText),
    search: isText(given.search) ? given.search : "",
    hidden: texts(given.hidden),
    order: texts(given.order),
    widths: record(given.widths, (width): width is number => typeof width === "number" && width >= 30 && width <= 2000),
    numbers: record(given.numbers, isText) as Record<string, NumberStyle>,
    frozen: Number.isInteger(given.frozen) ? Math.max(0, Math.min(20, given.frozen as number)) : 0,
    zone: given.zone === "local" ? "local" : "UTC",
    follows: given.follows === true,
    showsFilters: given.showsFilters === true,
    at: isText(given.at) ? given.at : "",
  };
}

/** The filters of a state as conditions, and what is wrong with others, by column. */
export function gridConditions(
  state: GridState,
  fields: readonly Field[],
): { conditions: string[]; problems: Map<string, string> } {
  const conditions: string[] = [];
  const problems = new Map<string, string>();
  for (const field of fields) {
    const result = filterCondition(field, state.filters[field.name] ?? "");
    if (result === null) continue;
    if ("where" in result) conditions.push(result.where);
    else problems.set(field.name, result.problem);
  }
  const search = searchCondition(fields, state.search);
  if (search !== null) conditions.push(search);
  return { conditions, problems };
}

/** The query whose rows a state shows; columns are needed as soon as it filters. */
export function queryOf(state: GridState, fields: readonly Field[]): Query {
  const { conditions } = gridConditions(state, fields);
  const keys = state.sort.map(({ name, isDescending }) => `${isDescending ? "-" : ""}${name}`);
  const operations: Operation[] = [
    ...state.operations,
    ...conditions.map((condition): Operation => ["where", condition]),
  ];
  if (keys.length > 0) operations.push(["sort", keys]);
  return { table: state.table, operations, ...(state.at === "" ? {} : { at: state.at }) };
}
