import type { Field } from "../client/arrow_type.ts";
import { isNumeric } from "../client/arrow_type.ts";
import { shownFields } from "./column_layout.ts";
import { NUMBER_STYLES, type NumberStyle } from "./formats.ts";
import type { GridState } from "./grid_state.ts";
import type { MenuEntry } from "./menu.ts";
import { movedBy, withHidden } from "./state_changes.ts";

/** What a menu changes: the state as it is when an item is chosen. */
export interface StateHolder {
  readonly state: GridState;
  change(state: GridState): void;
}

const STYLE_LABELS: Readonly<Record<NumberStyle, string>> = {
  auto: "As they are",
  plain: "Digits alone",
  thousands: "With thousands",
  percent: "Percent",
  scientific: "Scientific",
  fixed0: "No decimals",
  fixed1: "1 decimal",
  fixed2: "2 decimals",
  fixed3: "3 decimals",
  fixed4: "4 decimals",
  fixed6: "6 decimals",
};

/** The menu of the head of a column. */
export function columnMenu(holder: StateHolder, field: Field, more: { fields: readonly Field[]; fit(): void }): MenuEntry[] {
  const { state } = holder;
  const { name } = field;
  const key = state.sort.find((one) => one.name === name);
  const sort = (isDescending: boolean): void => holder.change({ ...holder.state, sort: [{ name, isDescending }] });
  const place = shownFields(more.fields, state).findIndex((one) => one.field.name === name);
  const isFrozen = place < state.frozen;
  const entries: MenuEntry[] = [
    { label: "Sort ascending", isChecked: key?.isDescending === false, act: () => sort(false) },
    { label: "Sort descending", isChecked: key?.isDescending === true, act: () => sort(true) },
    { label: "Do not sort", isDisabled: state.sort.length === 0, act: () => holder.change({ ...holder.state, sort: [] }) },
    "line",
    { label: "Fit width", act: more.fit },
    { label: "Move left", hint: "Alt ←", act: () => holder.change(movedBy(holder.state, more.fields, { name, by: -1 })) },
    { label: "Move right", hint: "Alt →", act: () => holder.change(movedBy(holder.state, more.fields, { name, by: 1 })) },
    {
      label: isFrozen ? "Freeze no columns" : "Freeze up to here",
      act: () => holder.change({ ...holder.state, frozen: isFrozen ? 0 : place + 1 }),
    },
    { label: "Hide", act: () => holder.change(withHidden(holder.state, name, true)) },
  ];
  if (!isNumeric(field.type)) return entries;
  const chosen = state.numbers[name] ?? "auto";
  return [
    ...entries,
    "line",
    ...NUMBER_STYLES.map((style) => ({
      label: STYLE_LABELS[style],
      isChecked: style === chosen,
      act: () => holder.change({ ...holder.state, numbers: { ...holder.state.numbers, [name]: style } }),
    })),
  ];
}

const LISTED_MAX = 500;

/** The list of all columns. */
export function columnsMenu(holder: StateHolder, fields: readonly Field[], fitAll: () => void): MenuEntry[] {
  const { state } = holder;
  const hidden = new Set(state.hidden);
  const all = shownFields(fields, { ...state, hidden: [] });
  return [
    { label: "Show all", stays: true, act: () => holder.change({ ...holder.state, hidden: [] }) },
    { label: "Fit all", act: fitAll },
    { label: "Order of the table", act: () => holder.change({ ...holder.state, order: [], frozen: 0 }) },
    "line",
    ...all.slice(0, LISTED_MAX).map(({ field: { name } }) => ({
      label: name,
      isChecked: !hidden.has(name),
      stays: true,
      act: () => holder.change(withHidden(holder.state, name, !holder.state.hidden.includes(name))),
    })),
  ];
}
