import { typeName } from "../client/arrow_type.ts";
import { alignsRight, type ColumnLayout, type PlacedColumn, WIDTH_MAX, WIDTH_MIN } from "./column_layout.ts";
import { element, setAttribute } from "./dom.ts";
import type { GridState } from "./grid_state.ts";

/** What a user does with the head of the columns. */
export interface HeaderActions {
  sort(name: string, isAdded: boolean): void;
  resize(name: string, width: number): void;
  fit(name: string): void;
  /** Put a column before another one. */
  move(name: string, before: string): void;
  menu(name: string, at: HTMLElement): void;
  filter(name: string, text: string): void;
}

export interface HeaderScene {
  readonly layout: ColumnLayout;
  readonly state: GridState;
  readonly scrollX: number;
  readonly width: number;
  readonly version: number;
  readonly problems: ReadonlyMap<string, string>;
  readonly descriptions: ReadonlyMap<string, string>;
  /** Place of the column whose head has the focus; -1 when none has. */
  readonly focused: number;
}

/** A line of cells: those that stay and those that move. */
class Line {
  readonly frozen = element("div", { class: "frozen" });
  readonly moving = element("div", { class: "moving" });
  readonly element: HTMLElement;

  constructor(index: number, corner: string, className: string) {
    const role = index === 1 ? "columnheader" : "gridcell";
    this.element = element("div", { role: "row", class: className, "aria-rowindex": String(index) }, [
      element("div", { role, class: "rownumber", "aria-colindex": "1" }, [corner]),
      this.frozen,
      this.moving,
    ]);
  }

  fill(columns: readonly (readonly [PlacedColumn, HTMLElement])[]): void {
    for (const part of [this.frozen, this.moving]) {
      const cells = columns.filter(([{ isFrozen }]) => isFrozen === (part === this.frozen)).map(([, cell]) => cell);
      // What stays is left alone: moving an input would take the focus from it.
      const kept = new Set<Element>(cells);
      for (const child of [...part.children]) if (!kept.has(child)) child.remove();
      cells.forEach((cell, i) => {
        if (part.children[i] !== cell) part.insertBefore(cell, part.children[i] ?? null);
      });
    }
  }
}

export class Header {
  readonly element = element("div", { role: "rowgroup", class: "head" });
  private readonly titles = new Line(1, "#", "row titles");
  private readonly filters = new Line(2, "", "row filters");
  private readonly heads = new Map<string, HTMLElement>();
  private readonly inputs = new Map<string, HTMLElement>();
  private painted = "";

  constructor(private readonly actions: HeaderActions) {
    this.element.append(this.titles.element, this.filters.element);
  }

  paint(scene: HeaderScene): HTMLElement | null {
    const { layout, state } = scene;
    const columns = [...layout.frozen, ...layout.moving(scene.scrollX, scene.width - layout.frozenWidth)];
    const focused = columns.find(({ place }) => place === scene.focused);
    const painted = `${scene.version}:${scene.focused}:${columns.map(({ place }) => place).join()}`;
    if (painted !== this.painted) {
      this.painted = painted;
      this.titles.fill(columns.map((column) => [column, this.head(column, scene)]));
      this.filters.element.hidden = !state.showsFilters;
      if (state.showsFilters) this.filters.fill(columns.map((column) => [column, this.input(column, scene)]));
    }
    return focused === undefined ? null : this.heads.get(focused.field.name)!;
  }

  /** Forget all cells: the table has other columns. */
  reset(): void {
    this.heads.clear();
    this.inputs.clear();
    this.painted = "";
  }

  focusFilter(name: string): void {
    this.inputs.get(name)?.querySelector("input")?.focus();
  }

  private head(column: PlacedColumn, scene: HeaderScene): HTMLElement {
    const { field } = column;
    let head = this.heads.get(field.name);
    if (head === undefined) {
      head = this.newHead(field.name);
      this.heads.set(field.name, head);
    }
    placeCell(head, column);
    const rank = scene.state.sort.findIndex(({ name }) => name === field.name);
    const key = scene.state.sort[rank];
    setAttribute(head, "aria-sort", key === undefined ? "none" : key.isDescending ? "descending" : "ascending");
    const order = scene.state.sort.length > 1 ? String(rank + 1) : "";
    head.querySelector(".order")!.textContent = key === undefined ? "" : `${key.isDescending ? "▼" : "▲"}${order}`;
    const description = scene.descriptions.get(field.name);
    head.title = `${field.name} · ${typeName(field)}${description ? `\n${description}` : ""}`;
    const isFocused = scene.focused === column.place ? " focused" : "";
    head.className = `cell headcell${alignsRight(field) ? " number" : ""}${isFocused}`;
    return head;
  }

  private newHead(name: string): HTMLElement {
    const handle = element("span", { class: "handle", "aria-hidden": "true" });
    const label = element("span", { class: "label" }, [name]);
    const order = element("span", { class: "order" });
    const head = element("div", { role: "columnheader", id: `head-${this.heads.size}-${Date.now()}` }, [label, order, handle]);
    head.addEventListener("contextmenu", (event) => {
      event.preventDefault();
      this.actions.menu(name, head);
    });
    handle.addEventListener("pointerdown", (event) => this.startResize(event, name, head));
    handle.addEventListener("dblclick", (event) => {
      event.stopPropagation();
      this.actions.fit(name);
    });
    head.addEventListener("pointerdown", (event) => this.startMove(event, name, head));
    return head;
  }

  private startResize(event: PointerEvent, name: string, head: HTMLElement): void {
    event.preventDefault();
    event.stopPropagation();
    const width = head.offsetWidth;
    const from = event.clientX;
    drag(event, head, (move) => {
      const wanted = width + move.clientX - from;
      this.actions.resize(name, Math.round(Math.min(WIDTH_MAX, Math.max(WIDTH_MIN, wanted))));
    });
  }

  /** A press and release sorts; a press that is moved away takes the column along. */
  private startMove(event: PointerEvent, name: string, head: HTMLElement): void {
    if (event.button !== 0) return;
    const from = event.clientX;
    let isMoving = false;
    let target: string | null = null;
    const mark = (to: HTMLElement | null): void => {
      for (const [, other] of this.heads) other.classList.toggle("target", other === to);
    };
    const moved = (move: PointerEvent): void => {
      isMoving ||= Math.abs(move.clientX - from) > 6;
      if (!isMoving) return;
      head.classList.add("dragged");
      const over = [...this.heads].find(([, other]) => {
        const { left, right } = other.getBoundingClientRect();
        return other.isConnected && move.clientX >= left && move.clientX < right;
      });
      target = over?.[0] ?? null;
      mark(over?.[1] ?? null);
    };
    drag(event, head, moved, () => {
      head.classList.remove("dragged");
      mark(null);
      if (!isMoving) this.actions.sort(name, event.shiftKey);
      else if (target !== null && target !== name) this.actions.move(name, target);
    });
  }

  private input(column: PlacedColumn, scene: HeaderScene): HTMLElement {
    const { field } = column;
    let cell = this.inputs.get(field.name);
    if (cell === undefined) {
      const input = element("input", {
        type: "text",
        "aria-label": `Filter ${field.name}`,
        placeholder: field.type.kind === "text" ? "contains" : "= < > ..",
        autocomplete: "off",
        spellcheck: "false",
      });
      input.addEventListener("input", () => this.actions.filter(field.name, input.value));
      cell = element("div", { role: "gridcell", class: "cell filtercell" }, [input]);
      this.inputs.set(field.name, cell);
    }
    placeCell(cell, column);
    const input = cell.querySelector("input")!;
    const text = scene.state.filters[field.name] ?? "";
    if (input.value !== text) input.value = text;
    const problem = scene.problems.get(field.name);
    setAttribute(input, "aria-invalid", problem === undefined ? "false" : "true");
    input.title = problem ?? "text, = != < <= > >=, 1..5, in a, b, null, !null";
    return cell;
  }
}

function placeCell(cell: HTMLElement, column: PlacedColumn): void {
  cell.style.left = `${column.left}px`;
  cell.style.width = `${column.width}px`;
  setAttribute(cell, "aria-colindex", String(column.place + 2));
}

/** Follow the pointer until it is let go. */
export function drag(
  start: PointerEvent,
  target: HTMLElement,
  ...[moved, ended]: readonly [(event: PointerEvent) => void, (() => void)?]
): void {
  target.setPointerCapture(start.pointerId);
  const end = (): void => {
    target.removeEventListener("pointermove", moved);
    target.removeEventListener("pointerup", end);
    target.removeEventListener("pointercancel", end);
    ended?.();
  };
  target.addEventListener("pointermove", moved);
  target.addEventListener("pointerup", end);
  target.addEventListener("pointercancel", end);
}
