import type { Field } from "../client/arrow_type.ts";
import { addRow, type CellTexts, removeRow, setCells } from "../client/row_edits.ts";
import type { ViewRow } from "../client/view.ts";
import type { Leaving } from "../edit/index.ts";
import type { GridCore } from "./grid_core.ts";
import type { MenuEntry } from "./menu.ts";
import { ROW_HEIGHT } from "./painter.ts";

/** The grid whose cells are edited. */
export interface EditedGrid {
  readonly core: GridCore | null;
  readonly root: ShadowRoot;
  readonly body: HTMLElement;
  /** Around the grid: inputs are no part of what has rows and cells. */
  readonly layer: HTMLElement;
  readonly numberWidth: number;
  schedule(): void;
  /** An editor was left: the grid has the focus again, on a cell this far away. */
  left(rows: number, columns: number): void;
}

/** A cell something stands over, wherever its row goes. */
interface Held {
  readonly core: GridCore;
  readonly row: ViewRow;
  readonly column: string;
  readonly element: HTMLElement;
  close(): void;
}

const STEPS: Readonly<Record<Leaving, readonly [number, number]>> = { stay: [0, 0], down: [1, 0], right: [0, 1], left: [0, -1] };

/** Loads what edits a table when it is needed, and keeps it over its cell. */
export class Editing {
  private held: Held | null = null;

  constructor(private readonly grid: EditedGrid) {}

  get isPossible(): boolean {
    return (this.grid.core?.writableKey ?? null) !== null;
  }

  /** Entries for a menu; none where nothing can be changed. */
  get entries(): MenuEntry[] {
    if (!this.isPossible) return [];
    return [
      { label: "Edit the cell", hint: "Enter", act: () => void this.editCell() },
      { label: "Add a row …", hint: "Insert", act: () => void this.addRow() },
      { label: "Remove the row …", hint: "Delete", act: () => void this.removeRow() },
      "line",
    ];
  }

  close(): void {
    this.held?.close();
  }

  /** The texts of the key of a row; null where the row is not known. */
  private keyOf(core: GridCore, row: ViewRow, text: (cell: NonNullable<ViewRow["cells"][number]>, field: Field) => string | null): CellTexts | null {
    const key: Record<string, string | null> = {};
    for (const name of core.writableKey ?? []) {
      const at = core.fields.findIndex((field) => field.name === name);
      const cell = row.cells[at];
      if (cell === undefined || cell === null) return null;
      key[name] = text(cell, core.fields[at]!);
    }
    return key;
  }

  async editCell(): Promise<void> {
    const { core, root } = this.grid;
    if (!core?.writableKey) return;
    const place = core.selection.focus;
    const column = core.layout.columns[place.column];
    const shown = core.rows.row(place.row);
    if (column === undefined || shown === null || shown.isOld) return;
    const { field, index } = column;
    const { row } = shown;
    const parts = await import("../edit/index.ts");
    const cell = row.cells[index];
    const key = this.keyOf(core, row, parts.inputText);
    if (this.grid.core !== core || cell === undefined || key === null) return;
    this.close();
    parts.wearEditing(root);
    const at = { core, row, column: field.name };
    if (core.writableKey.includes(field.name) || !parts.isWritten(field)) {
      this.note(at, parts.cellNote(parts.isWritten(field) ? "A key does not change. Add a row with the other key and remove this one." : "Cells of this type are not written here."));
      return;
    }
    const before = parts.inputText(cell, field);
    const { connection, state } = core;
    const editor = new parts.CellEditor({
      field,
      before,
      write: (text) => setCells(connection, state.table, { key, cells: { [field.name]: text }, expected: { [field.name]: before } }),
      done: (leaving, refusal) => {
        this.held = null;
        this.grid.left(...STEPS[leaving]);
        if (refusal !== null) this.note(at, parts.cellNote(refusal));
      },
    });
    this.hold({ ...at, element: editor.element, close: () => editor.close() });
    editor.focus();
  }

  async addRow(): Promise<void> {
    const { core, root } = this.grid;
    if (!core?.writableKey) return;
    const parts = await import("../edit/index.ts");
    const key = core.writableKey;
    const { connection, state, tableFields } = core;
    parts.wearEditing(root);
    parts.askForRow(root, {
      fields: tableFields,
      key,
      add: (cells) => addRow(connection, state.table, cells),
      closed: () => this.grid.left(0, 0),
    });
  }

  async removeRow(): Promise<void> {
    const { core, root } = this.grid;
    const row = core?.rows.row(core.selection.focus.row)?.row ?? null;
    if (!core?.writableKey || row === null) return;
    const parts = await import("../edit/index.ts");
    const key = this.keyOf(core, row, parts.inputText);
    if (key === null) return;
    const { connection, state } = core;
    parts.wearEditing(root);
    parts.askToRemove(root, {
      key,
      remove: () => removeRow(connection, state.table, key),
      closed: () => this.grid.left(0, 0),
    });
  }

  /** What was said of a cell goes when something else is done. */
  forgetNote(): void {
    if (this.held?.element.querySelector("input, select") === null) this.close();
  }

  private note(at: Pick<Held, "core" | "row" | "column">, element: HTMLElement): void {
    this.close();
    const close = (): void => {
      element.remove();
      this.held = null;
    };
    this.hold({ ...at, element, close });
  }

  private hold(held: Held): void {
    this.held = held;
    this.grid.layer.append(held.element);
    this.paint();
    this.grid.schedule();
  }

  /** Keep it over its cell; where the row is not in sight any more, at the edge. */
  paint(): void {
    const { held } = this;
    const { core, body, layer, numberWidth } = this.grid;
    if (held === null) return;
    const column = core?.layout.columns.find(({ field }) => field.name === held.column);
    if (core !== held.core || column === undefined) {
      held.close();
      return;
    }
    const position = core.rows.find(held.row, core.keyIndices);
    const bottom = Math.max(0, body.clientHeight - ROW_HEIGHT);
    const { style } = held.element;
    const [box, around] = [body.getBoundingClientRect(), layer.getBoundingClientRect()];
    if (position !== null) {
      const top = Math.max(0, Math.min(bottom, (position - core.window.top) * ROW_HEIGHT));
      style.top = `${box.top - around.top + top}px`;
      held.element.classList.toggle("above", top > bottom / 2);
    }
    const left = numberWidth + (column.isFrozen ? column.left : core.layout.frozenWidth + column.left - core.scrollX);
    style.left = `${box.left - around.left + Math.max(0, Math.min(left, body.clientWidth - 80))}px`;
    style.width = `${Math.max(column.width, 80)}px`;
  }
}
