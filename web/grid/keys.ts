/** What the keys of a grid do. */
export interface KeyActions {
  /** Move the focus; `extends_` keeps the cells in between selected. */
  move(rows: number, columns: number, extends_: boolean): void;
  page(pages: number, extends_: boolean): void;
  columnEdge(isEnd: boolean, extends_: boolean): void;
  tableEdge(isEnd: boolean, extends_: boolean): void;
  selectAll(): void;
  escape(): void;
  /** On the head of a column, or on a cell. */
  activate(isAdded: boolean): void;
  edit(): void;
  addRow(): void;
  removeRow(): void;
  moveColumn(by: number): void;
  widen(by: number): void;
  columnMenu(): void;
  copy(hasNames: boolean): void;
  command(name: Command): void;
}

export type Command = "follow" | "anchor" | "pause" | "goTo" | "search" | "columns" | "more" | "filters" | "past" | "help";

const COMMANDS: Readonly<Record<string, Command>> = {
  f: "follow",
  a: "anchor",
  " ": "pause",
  g: "goTo",
  "/": "search",
  c: "columns",
  e: "more",
  l: "filters",
  h: "past",
  "?": "help",
};

export const KEY_HELP: readonly (readonly [string, string])[] = [
  ["Arrows, Page Up, Page Down", "move; with Shift select"],
  ["Home, End", "first, last column; with Ctrl first, last row"],
  ["Arrow up in the first row", "to the heads of the columns"],
  ["Enter on a head", "sort; with Shift as a further key"],
  ["Enter or F2 on a cell", "edit; Escape leaves it, Alt+N is null"],
  ["Insert, Delete", "add a row, remove the row"],
  ["Alt + left, right", "move the column; with Shift its width"],
  ["M or Shift+F10", "menu of the column"],
  ["Ctrl+C", "copy cells; with Shift and names"],
  ["Ctrl+A", "select all"],
  ["F, A, Space", "follow the end, anchor the row, pause"],
  ["G, /, L", "go to a row, search, filters"],
  ["C, E, H", "columns, more, the history"],
];

function arrow(event: KeyboardEvent, actions: KeyActions): boolean {
  const steps: Readonly<Record<string, readonly [number, number]>> = {
    ArrowUp: [-1, 0],
    ArrowDown: [1, 0],
    ArrowLeft: [0, -1],
    ArrowRight: [0, 1],
  };
  const step = steps[event.key];
  if (step === undefined) return false;
  const [rows, columns] = step;
  if (event.altKey && columns !== 0) {
    if (event.shiftKey) actions.widen(columns * 10);
    else actions.moveColumn(columns);
  } else if (event.ctrlKey || event.metaKey) {
    if (rows !== 0) actions.tableEdge(rows > 0, event.shiftKey);
    else actions.columnEdge(columns > 0, event.shiftKey);
  } else actions.move(rows, columns, event.shiftKey);
  return true;
}

function jump(event: KeyboardEvent, actions: KeyActions): boolean {
  const isEnd = event.key === "End";
  switch (event.key) {
    case "PageUp":
    case "PageDown":
      actions.page(event.key === "PageDown" ? 1 : -1, event.shiftKey);
      return true;
    case "Home":
    case "End":
      if (event.ctrlKey || event.metaKey) actions.tableEdge(isEnd, event.shiftKey);
      else actions.columnEdge(isEnd, event.shiftKey);
      return true;
    case "Enter":
      actions.activate(event.shiftKey);
      return true;
    case "F2":
      actions.edit();
      return true;
    case "Insert":
      actions.addRow();
      return true;
    case "Delete":
      actions.removeRow();
      return true;
    case "Escape":
      actions.escape();
      return true;
    case "ContextMenu":
      actions.columnMenu();
      return true;
    default:
      return false;
  }
}

/** Do what a key says; whether it says anything. */
export function handleKey(event: KeyboardEvent, actions: KeyActions): boolean {
  if (arrow(event, actions) || jump(event, actions)) return true;
  const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  if (event.ctrlKey || event.metaKey) {
    if (key === "a") actions.selectAll();
    else if (key === "c") actions.copy(event.shiftKey);
    else return false;
    return true;
  }
  if ((event.key === "F10" && event.shiftKey) || key === "m") {
    actions.columnMenu();
    return true;
  }
  const command = event.altKey ? undefined : COMMANDS[key];
  if (command === undefined) return false;
  actions.command(command);
  return true;
}

