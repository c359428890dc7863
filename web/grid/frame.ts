import { button, element, setAttribute } from "./dom.ts";
import type { GridCore } from "./grid_core.ts";

export interface FrameActions {
  search(text: string): void;
  toggleFilters(): void;
  goTo(row: number): void;
  toggleFollow(): void;
  toggleAnchor(): void;
  togglePause(): void;
  openColumns(at: HTMLElement): void;
  openMore(at: HTMLElement): void;
  togglePast(): void;
  retry(): void;
}

/** A part of a name that a screen reader reads in full and a button shows short. */
function tool(label: string, title: string, act: (event: MouseEvent) => void): HTMLButtonElement {
  const made = button(label, title, act);
  made.className = "tool";
  return made;
}

/** What stands around the rows: tools above, a line of figures below. */
export class Frame {
  readonly search = element("input", { type: "search", placeholder: "Search", "aria-label": "Search in all columns", spellcheck: "false", autocomplete: "off" });
  readonly goTo = element("input", { type: "text", inputmode: "numeric", placeholder: "Go to row", "aria-label": "Go to row", autocomplete: "off" });
  readonly title = element("h2", { class: "title" });
  readonly pill = element("span", { class: "pill", role: "status" });
  readonly message = element("div", { class: "message", role: "alert", hidden: "" });
  readonly rowsText = element("span", { class: "rowstext" });
  readonly figures = element("span", { class: "figures" });
  readonly grid = element("div", { role: "grid", tabindex: "0", class: "grid", "aria-multiselectable": "true", "aria-readonly": "true" });
  readonly body = element("div", { role: "rowgroup", class: "body" });
  readonly empty = element("div", { class: "empty", hidden: "" });
  readonly element: HTMLElement;
  private readonly filters: HTMLButtonElement;
  private readonly follow: HTMLButtonElement;
  private readonly anchor: HTMLButtonElement;
  private readonly pause: HTMLButtonElement;
  private readonly past: HTMLButtonElement;
  private readonly messageText = element("span");

  constructor(actions: FrameActions) {
    this.filters = tool("Filter", "Show a filter for each column", () => actions.toggleFilters());
    this.follow = tool("Follow", "Stay at the last row (F)", () => actions.toggleFollow());
    this.anchor = tool("Anchor", "Keep this row where it is on the screen (A)", () => actions.toggleAnchor());
    this.pause = tool("Pause", "Stop and go on (Space)", () => actions.togglePause());
    const columns = tool("Columns", "Show, hide and order columns (C)", () => actions.openColumns(columns));
    const more = tool("More", "Download, time zone, keys (E)", () => actions.openMore(more));
    this.past = tool("History", "Show the table as it was (H)", () => actions.togglePast());
    for (const opener of [columns, more]) opener.setAttribute("aria-haspopup", "menu");
    this.search.addEventListener("input", () => actions.search(this.search.value));
    this.goTo.addEventListener("change", () => {
      const row = Number(this.goTo.value.replace(/[\s,._']/g, ""));
      if (this.goTo.value.trim() !== "" && Number.isFinite(row)) actions.goTo(row);
      this.goTo.value = "";
      this.grid.focus();
    });
    const retry = button("Try again", "Ask the server again", () => actions.retry());
    this.message.append(this.messageText, retry);
    const tools = element("div", { class: "tools", role: "toolbar", "aria-label": "Table" }, [
      this.title, this.search, this.filters, this.goTo, this.follow, this.anchor, this.pause, this.past, columns, more, this.pill,
      element("slot", { name: "tools" }),
    ]);
    this.grid.append(this.body);
    const status = element("div", { class: "status" }, [this.rowsText, this.figures]);
    this.element = element("section", { class: "frame" }, [tools, this.message, this.grid, status]);
  }

  setPressed(state: { filters: boolean; follows: boolean; anchored: boolean; paused: boolean; past: boolean }): void {
    setAttribute(this.filters, "aria-pressed", String(state.filters));
    setAttribute(this.follow, "aria-pressed", String(state.follows));
    setAttribute(this.anchor, "aria-pressed", String(state.anchored));
    setAttribute(this.pause, "aria-pressed", String(state.paused));
    setAttribute(this.past, "aria-pressed", String(state.past));
  }

  get anchorButton(): HTMLButtonElement {
    return this.anchor;
  }

  /** Tell a screen reader what the rows are and where the focus is, and everybody why there are none. */
  describe(core: GridCore, headerRows: number, active: HTMLElement | null): void {
    const { grid, empty } = this;
    setAttribute(grid, "aria-rowcount", String(core.window.size + headerRows));
    setAttribute(grid, "aria-colcount", String(core.layout.columns.length + 1));
    setAttribute(grid, "aria-label", core.state.table);
    setAttribute(grid, "aria-readonly", String(core.writableKey === null));
    setAttribute(grid, "aria-busy", String(!core.rows.isCurrent && core.error === null));
    if (active === null) grid.removeAttribute("aria-activedescendant");
    else setAttribute(grid, "aria-activedescendant", active.id);
    const { view } = core.rows;
    const why = view === null ? "" : core.layout.columns.length === 0 ? "No columns" : view.tableSize === 0 ? "No rows" : "";
    empty.hidden = why === "";
    if (empty.textContent !== why) empty.textContent = why;
  }

  /** Say what is wrong, or with an empty text that nothing is. */
  say(text: string): void {
    if (this.messageText.textContent !== text) this.messageText.textContent = text;
    this.message.hidden = text === "";
  }
}
