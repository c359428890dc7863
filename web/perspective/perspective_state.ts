import type { Operation } from "../client/query.ts";

/** A table or query in Perspective's viewer: everything that a link brings back. */
export interface PerspectiveState {
  readonly table: string;
  readonly operations: readonly Operation[];
  /** What the viewer has been made to show, as it says it itself; null for what it shows at first. */
  readonly view: ViewerState | null;
}

export type ViewerState = Readonly<Record<string, unknown>>;

/** A view that is longer as JSON is not kept: links have an end. */
export const VIEW_LENGTH_MAX = 20_000;

export function emptyPerspective(table: string): PerspectiveState {
  return { table, operations: [], view: null };
}

export function compactPerspective({ table, operations, view }: PerspectiveState): Partial<PerspectiveState> {
  return { table, ...(operations.length === 0 ? {} : { operations }), ...(view === null ? {} : { view }) };
}

function isObject(value: unknown): value is Readonly<Record<string, unknown>> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** A state from a link or a saved board, of which anybody may have written anything. */
export function readPerspective(value: unknown): PerspectiveState | null {
  if (!isObject(value) || typeof value.table !== "string" || value.table === "") return null;
  const operations = (Array.isArray(value.operations) ? value.operations : []).filter(
    (operation): operation is Operation => Array.isArray(operation) && typeof operation[0] === "string",
  );
  const isView = isObject(value.view) && JSON.stringify(value.view).length <= VIEW_LENGTH_MAX;
  return { table: value.table, operations, view: isView ? (value.view as ViewerState) : null };
}
