import type { Cell } from "../client/cells.ts";
import type { ViewRow } from "../client/view.ts";
import { alignsRight, type ColumnLayout, type PlacedColumn } from "./column_layout.ts";
import { element, setAttribute } from "./dom.ts";
import type { Flashes } from "./flashes.ts";
import { type CellFormat, shownText } from "./formats.ts";
import type { LiveRows } from "./live_rows.ts";
import type { RowWindow } from "./row_window.ts";
import type { Selection } from "./selection.ts";

export const ROW_HEIGHT = 24;

/** Everything a picture of the rows is made of. */
export interface Scene {
  readonly layout: ColumnLayout;
  readonly window: RowWindow;
  readonly rows: LiveRows;
  readonly flashes: Flashes;
  readonly selection: Selection;
  readonly scrollX: number;
  readonly width: number;
  readonly anchorRow: ViewRow | null;
  /** Number of header rows, which count as rows of the grid. */
  readonly headerRows: number;
  /** Changes with anything but rows and their values. */
  readonly version: number;
  format(name: string): CellFormat;
}

/** An element for a cell, and what it shows. */
class CellSlot {
  readonly element: HTMLElement;
  private readonly text = document.createTextNode("");
  private column: PlacedColumn | null = null;
  private version = -1;
  private value: Cell | undefined;
  private classes = "";

  constructor(id: string) {
    this.element = element("div", { role: "gridcell", id }, [this.text]);
  }

  place(column: PlacedColumn, version: number): void {
    if (this.column === column && this.version === version) return;
    this.column = column;
    this.version = version;
    this.value = undefined;
    this.text.data = "";
    this.element.hidden = false;
    const { style } = this.element;
    style.left = `${column.left}px`;
    style.width = `${column.width}px`;
    this.element.dir = column.field.type.kind === "text" ? "auto" : "ltr";
    setAttribute(this.element, "aria-colindex", String(column.place + 2));
  }

  hide(): void {
    if (this.column === null) return;
    this.column = null;
    this.element.hidden = true;
  }

  /** Write what is different from what stands there. */
  paint(value: Cell | undefined, classes: string, format: CellFormat): void {
    const column = this.column!;
    if (value === undefined || !Object.is(value, this.value)) {
      this.value = value;
      const text = value === undefined ? "" : shownText(value, column.field, format);
      if (text !== this.text.data) this.text.data = text;
    }
    if (classes !== this.classes) {
      this.classes = classes;
      this.element.className = classes;
    }
  }
}

function cellClasses(column: PlacedColumn, value: Cell | undefined, more: string): string {
  let classes = alignsRight(column.field) ? "cell number" : "cell";
  if (value === null) classes += " null";
  else if (value === undefined) classes += " unknown";
  return classes + more;
}

/** An element for a row of the page; it shows now this row of the table, now that one. */
class RowSlot {
  readonly element: HTMLElement;
  private readonly number = document.createTextNode("");
  private readonly frozen: HTMLElement;
  private readonly moving: HTMLElement;
  private readonly frozenCells: CellSlot[] = [];
  private readonly movingCells: CellSlot[] = [];
  private position = -1;
  private place = "";
  private classes = "";

  constructor(private readonly id: number) {
    const header = element("div", { role: "rowheader", "aria-colindex": "1", class: "rownumber" }, [this.number]);
    this.frozen = element("div", { class: "frozen" });
    this.moving = element("div", { class: "moving" });
    this.element = element("div", { role: "row" }, [header, this.frozen, this.moving]);
  }

  hide(): void {
    this.element.hidden = true;
    this.position = -1;
  }

  paint(scene: Scene, position: number, columns: readonly PlacedColumn[]): void {
    if (this.position !== position) {
      this.position = position;
      this.element.hidden = false;
      this.number.data = position.toLocaleString();
    }
    setAttribute(this.element, "aria-rowindex", String(position + 1 + scene.headerRows));
    const place = `translateY(${(position - scene.window.top) * ROW_HEIGHT}px)`;
    if (place !== this.place) {
      this.place = place;
      this.element.style.transform = place;
    }
    const shown = scene.rows.row(position);
    const row = shown?.row ?? null;
    let classes = position % 2 === 0 ? "row even" : "row";
    if (row === null) classes += " unseen";
    else if (shown!.isOld) classes += " old";
    if (row !== null && scene.flashes.isNew(row)) classes += " new";
    if (row !== null && row === scene.anchorRow) classes += " anchored";
    if (scene.selection.focus.row === position) classes += " current";
    if (classes !== this.classes) this.element.className = this.classes = classes;
    this.cells(this.frozen, this.frozenCells, { scene, position, row, columns: scene.layout.frozen });
    this.cells(this.moving, this.movingCells, { scene, position, row, columns });
  }

  private cells(
    parent: HTMLElement,
    slots: CellSlot[],
    { scene, position, row, columns }: { scene: Scene; position: number; row: ViewRow | null; columns: readonly PlacedColumn[] },
  ): void {
    const { selection, flashes } = scene;
    columns.forEach((column, i) => {
      let slot = slots[i];
      if (slot === undefined) {
        slot = new CellSlot(`cell-${this.id}-${parent.className}-${i}`);
        slots.push(slot);
        parent.append(slot.element);
      }
      slot.place(column, scene.version);
      const value = row?.cells[column.index];
      let more = "";
      const flash = row === null ? null : flashes.of(row, column.index);
      if (flash !== null) more += ` ${flash}`;
      if (selection.has(position, column.place)) more += " selected";
      if (selection.focus.row === position && selection.focus.column === column.place) more += " focused";
      slot.paint(value, cellClasses(column, value, more), scene.format(column.field.name));
    });
    for (let i = columns.length; i < slots.length; i++) slots[i]!.hide();
  }

  /** The element of the cell at a place of the grid; null when it is not there. */
  cellAt(column: PlacedColumn, columns: readonly PlacedColumn[]): HTMLElement | null {
    const [among, slots] = column.isFrozen
      ? [column.place, this.frozenCells]
      : [columns.findIndex(({ place }) => place === column.place), this.movingCells];
    return slots[among]?.element ?? null;
  }
}

/** Draws the rows in sight into as many elements as fit, and writes only what has changed. */
export class Painter {
  private readonly slots: RowSlot[] = [];

  constructor(private readonly body: HTMLElement) {}

  /** Draw; gives the element of the focused cell, where it is in sight. */
  paint(scene: Scene): HTMLElement | null {
    const { window, layout } = scene;
    const needed = Math.ceil(window.page) + 2;
    while (this.slots.length < needed) {
      const slot = new RowSlot(this.slots.length);
      this.slots.push(slot);
      this.body.append(slot.element);
    }
    const columns = layout.moving(scene.scrollX, scene.width - layout.frozenWidth);
    const count = this.slots.length;
    const painted = new Set<number>();
    let focused: HTMLElement | null = null;
    const focusColumn = layout.columns[scene.selection.focus.column];
    for (let position = window.first; position < window.stop; position++) {
      // A row keeps its element while it stays in sight.
      const index = position % count;
      const slot = this.slots[index]!;
      painted.add(index);
      slot.paint(scene, position, columns);
      if (position === scene.selection.focus.row && focusColumn !== undefined) {
        focused = slot.cellAt(focusColumn, columns);
      }
    }
    this.slots.forEach((slot, index) => {
      if (!painted.has(index)) slot.hide();
    });
    return focused;
  }
}
