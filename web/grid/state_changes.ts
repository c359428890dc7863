import type { Field } from "../client/arrow_type.ts";
import { shownFields } from "./column_layout.ts";
import type { GridState, SortKey } from "./grid_state.ts";

/** Ascending, descending, not at all; an added key keeps those that are there. */
export function sortedBy(state: GridState, name: string, isAdded: boolean): GridState {
  const before = state.sort.find((key) => key.name === name);
  const next: SortKey | null =
    before === undefined ? { name, isDescending: false } : before.isDescending ? null : { name, isDescending: true };
  if (!isAdded) return { ...state, sort: next === null ? [] : [next] };
  if (before === undefined) return { ...state, sort: [...state.sort, next!] };
  const sort = state.sort.flatMap((key) => (key.name === name ? (next === null ? [] : [next]) : [key]));
  return { ...state, sort };
}

/** A column before another one; the order of all is written down. */
export function movedBefore(state: GridState, fields: readonly Field[], names: readonly [string, string]): GridState {
  const [name, before] = names;
  const all = shownFields(fields, { ...state, hidden: [] }).map(({ field }) => field.name);
  const from = all.indexOf(name);
  const to = all.indexOf(before);
  if (from < 0 || to < 0 || from === to) return state;
  all.splice(from, 1);
  all.splice(to, 0, name); // to the right of its old place it comes to stand behind the other
  return { ...state, order: all };
}

/** A column some places further among those that are shown. */
export function movedBy(state: GridState, fields: readonly Field[], move: { name: string; by: number }): GridState {
  const shown = shownFields(fields, state).map(({ field }) => field.name);
  const at = shown.indexOf(move.name);
  const target = shown[at + move.by];
  return target === undefined || at < 0 ? state : movedBefore(state, fields, [move.name, target]);
}

export function withHidden(state: GridState, name: string, isHidden: boolean): GridState {
  const others = state.hidden.filter((hidden) => hidden !== name);
  return { ...state, hidden: isHidden ? [...others, name] : others };
}

export function withFilter(state: GridState, name: string, text: string): GridState {
  const filters = { ...state.filters, [name]: text };
  return { ...state, filters: Object.fromEntries(Object.entries(filters).filter(([, value]) => value !== "")) };
}
