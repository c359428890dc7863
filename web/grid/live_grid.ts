import { Connection } from "../client/connection.ts";
import type { Operation } from "../client/query.ts";
import { WIDTH_MAX, WIDTH_MIN } from "./column_layout.ts";
import { columnMenu, columnsMenu } from "./column_menus.ts";
import { setAttribute, styleSheet } from "./dom.ts";
import { blockText, fetchedBlock, type FileFormat, fileOf, save, selecting } from "./export.ts";
import { fittingWidths } from "./fitting.ts";
import { type EditedGrid, Editing } from "./editing.ts";
import { Frame } from "./frame.ts";
import css from "./grid.css";
import { GridCore } from "./grid_core.ts";
import { emptyState, type GridState, queryOf } from "./grid_state.ts";
import { Header } from "./header.ts";
import { History } from "./history.ts";
import { type Command, handleKey, KEY_HELP } from "./keys.ts";
import { Menu, type MenuEntry } from "./menu.ts";
import { pressed, turned } from "./pointer.ts";
import { Painter, ROW_HEIGHT } from "./painter.ts";
import { pillText } from "./pill.ts";
import { ScrollBars } from "./scroll_bars.ts";
import { movedBefore, movedBy, sortedBy, withFilter } from "./state_changes.ts";
import { figuresText } from "./statistics.ts";

const TYPING_MS = 250;
const TICK_MS = 250;
const sheet = styleSheet(css);
const lessMotion = matchMedia("(prefers-reduced-motion: reduce)");

/**
 * `<live-grid src="ws://host:port/socket" table="quotes">`: a table of a server, as it changes. A
 * page with several grids gives them one `connection` instead of `src`.
 *
 * Events: `statechange` when the user has changed what `state` says, `cellfocus` when another cell
 * has the focus.
 */
export class LiveGrid extends HTMLElement {
  static readonly observedAttributes = ["src", "table"];

  private readonly frame: Frame;
  private readonly header: Header;
  private readonly painter: Painter;
  private readonly bars: ScrollBars;
  private readonly menu = new Menu();
  private readonly editing: Editing;
  private readonly history: History;
  private readonly resizes = new ResizeObserver(() => this.resized());
  private core: GridCore | null = null;
  private given: Connection | null = null;
  private own: Connection | null = null;
  private wanted = emptyState("");
  private version = 0;
  private isScheduled = false;
  private typing: ReturnType<typeof setTimeout> | undefined;
  private ticking: ReturnType<typeof setInterval> | undefined;

  constructor() {
    super();
    const root = this.attachShadow({ mode: "open" });
    root.adoptedStyleSheets = [sheet];
    this.frame = new Frame({
      search: (text) => this.later(() => this.edit({ search: text })),
      toggleFilters: () => this.command("filters"),
      goTo: (row) => this.goTo(row),
      toggleFollow: () => this.command("follow"),
      toggleAnchor: () => this.command("anchor"),
      togglePause: () => this.command("pause"),
      openColumns: (at) => this.openColumns(at),
      togglePast: () => this.command("past"),
      openMore: (at) => this.openMore(at),
      retry: () => this.core?.retry(),
    });
    this.header = new Header({
      sort: (name, isAdded) => this.change(sortedBy(this.state, name, isAdded)),
      resize: (name, width) => this.edit({ widths: { ...this.state.widths, [name]: width } }),
      fit: (name) => this.fit([name]),
      move: (name, before) => this.change(movedBefore(this.state, this.fields, [name, before])),
      menu: (name, at) => this.openColumn(name, at),
      filter: (name, text) => this.later(() => this.change(withFilter(this.state, name, text))),
    });
    this.painter = new Painter(this.frame.body);
    this.bars = new ScrollBars(
      (top) => this.core?.scrollTo(top(this.core.window)),
      (share) => this.scrollColumns(share * (this.core?.layout.movingWidth ?? 0)),
    );
    const { grid } = this.frame;
    grid.prepend(this.header.element);
    grid.append(this.bars.vertical.element, this.bars.horizontal.element, this.frame.empty);
    root.append(this.frame.element, this.menu.element);
    this.editing = new Editing(this.edited(root));
    this.history = new History(root, this.frame.message, {
      core: () => this.core,
      show: (at) => this.core?.change({ ...this.state, at }),
      shown: () => this.change(this.state),
    });
    this.listen(grid);
  }

  /** The connection of the page; without one the attribute `src` says where to. */
  get connection(): Connection | null {
    return this.given ?? this.own;
  }

  set connection(connection: Connection | null) {
    this.given = connection;
    if (this.isConnected) this.start();
  }

  /** What the user has made of the table. */
  get state(): GridState {
    return this.core?.state ?? this.wanted;
  }

  set state(state: GridState) {
    this.wanted = state;
    this.version++;
    if (this.core === null && this.isConnected) this.start();
    else this.core?.change(state);
    this.frame.search.value = state.search;
  }

  get fields(): GridCore["fields"] {
    return this.core?.fields ?? [];
  }

  /** The focused cell: its row in the table and the name of its column. */
  get focusedCell(): { row: number; column: string } | null {
    const place = this.core?.selection.focus;
    const column = this.core?.layout.columns[place?.column ?? -1];
    return place === undefined || column === undefined ? null : { row: place.row, column: column.field.name };
  }

  /** Names of the columns that tell rows apart; none where nothing does. */
  get keyColumns(): readonly string[] {
    return this.core?.description?.key ?? [];
  }

  /** The operators that leave nothing but the focused row; null when none has the focus. */
  get focusedRow(): readonly Operation[] | null {
    const place = this.core?.selection.focus;
    return place === undefined || place.row < 0 ? null : this.core!.operationsOfRow(place.row);
  }

  attributeChangedCallback(name: string): void {
    if (name === "table") this.state = emptyState(this.getAttribute("table") ?? "");
    else if (this.isConnected) this.start();
  }

  connectedCallback(): void {
    this.resizes.observe(this.frame.body);
    this.ticking = setInterval(() => this.tick(), TICK_MS);
    this.start();
  }

  disconnectedCallback(): void {
    this.resizes.disconnect();
    clearInterval(this.ticking);
    clearTimeout(this.typing);
    this.wanted = this.state; // for when it is put into the page again
    this.editing.close();
    this.history.close();
    this.core?.close();
    this.core = null;
    this.own?.close();
    this.own = null;
  }

  private start(): void {
    const src = this.getAttribute("src");
    this.wanted = this.core?.state ?? this.wanted;
    this.core?.close();
    this.core = null;
    this.own?.close();
    this.own = null;
    if (this.given === null && src !== null) {
      this.own = new Connection(new URL(src, location.href).href.replace(/^http/, "ws"));
      this.own.open();
    }
    const { connection } = this;
    if (connection === null || this.wanted.table === "") return;
    this.core = new GridCore(connection, this.wanted, {
      dirty: () => this.schedule(),
      columnsChanged: () => {
        this.version++;
        this.schedule();
      },
    });
    this.core.hasFlashes = !lessMotion.matches;
    this.frame.search.value = this.wanted.search;
    this.resized();
  }

  /** Show the table in another way, and tell whoever keeps the state. */
  private change(state: GridState): void {
    if (this.core === null) return;
    this.version++;
    this.core.change(state);
    this.dispatchEvent(new CustomEvent("statechange", { bubbles: true, composed: true }));
  }

  private edit(part: Partial<GridState>): void {
    this.change({ ...this.state, ...part });
  }

  /** After the user has stopped typing. */
  private later(act: () => void): void {
    clearTimeout(this.typing);
    this.typing = setTimeout(act, TYPING_MS);
  }

  /** Scroll to a row and put the focus there. */
  goTo(row: number): void {
    const { core } = this;
    if (core === null) return;
    const target = Math.max(0, Math.min(Math.floor(row), core.window.size - 1));
    core.selection.moveTo({ row: target, column: core.selection.focus.column }, false);
    core.scrollTo(target - Math.floor(core.window.page / 3));
    this.focusMoved();
  }

  // Events of the page.

  private listen(grid: HTMLElement): void {
    grid.addEventListener("wheel", (event) => this.core !== null && turned(event, this.core), { passive: false });
    grid.addEventListener("keydown", (event) => this.key(event));
    grid.addEventListener("copy", (event) => this.copied(event));
    this.frame.body.addEventListener("dblclick", () => void this.editing.editCell());
    this.frame.body.addEventListener("pointerdown", (event) => {
      this.editing.forgetNote();
      if (this.core === null) return;
      const { numberWidth } = this;
      pressed(event, { core: this.core, body: this.frame.body, numberWidth, focusMoved: (isRevealed) => this.focusMoved(isRevealed) });
    });
  }

  private edited(root: ShadowRoot): EditedGrid {
    const core = (): GridCore | null => this.core;
    const numberWidth = (): number => this.numberWidth;
    return {
      root,
      body: this.frame.body,
      layer: this.frame.element,
      get core() {
        return core();
      },
      get numberWidth() {
        return numberWidth();
      },
      schedule: () => this.schedule(),
      left: (rows, columns) => {
        this.frame.grid.focus({ preventScroll: true });
        if (rows !== 0 || columns !== 0) this.moveFocus(rows, columns);
      },
    };
  }

  private moveFocus(rows: number, columns: number): void {
    const { core } = this;
    if (core === null) return;
    const { row, column } = core.selection.focus;
    const to = { row: Math.max(0, Math.min(row + rows, core.window.size - 1)), column: Math.max(0, Math.min(column + columns, core.layout.columns.length - 1)) };
    core.selection.moveTo(to, false);
    this.focusMoved();
  }

  private scrollColumns(to: number): void {
    this.core?.scrollColumns(to);
    this.core?.moved();
  }

  private key(event: KeyboardEvent): void {
    const { core } = this;
    if (core === null || event.target instanceof HTMLInputElement) return;
    this.editing.forgetNote();
    const { selection, window, layout } = core;
    const last = layout.columns.length - 1;
    const go = (row: number, column: number, extends_: boolean): void => {
      const top = extends_ ? 0 : -1;
      selection.moveTo(
        { row: Math.max(top, Math.min(row, window.size - 1)), column: Math.max(0, Math.min(column, last)) },
        extends_,
      );
      this.focusMoved();
    };
    const { row, column } = selection.focus;
    const name = layout.columns[column]?.field.name;
    const isHandled = handleKey(event, {
      move: (rows, columns, extends_) => go(row + rows, column + columns, extends_),
      page: (pages, extends_) => {
        core.scrollTo(window.top + pages * Math.max(1, Math.floor(window.page) - 1));
        go(Math.max(0, row + pages * Math.max(1, Math.floor(window.page) - 1)), column, extends_);
      },
      columnEdge: (isEnd, extends_) => go(row, isEnd ? last : 0, extends_),
      tableEdge: (isEnd, extends_) => go(isEnd ? window.size - 1 : 0, column, extends_),
      selectAll: () => {
        selection.selectAll(window.size, layout.columns.length);
        this.schedule();
      },
      escape: () => {
        selection.clear();
        this.schedule();
      },
      activate: (isAdded) => {
        if (row >= 0) void this.editing.editCell();
        else if (name !== undefined) this.change(sortedBy(this.state, name, isAdded));
      },
      edit: () => void this.editing.editCell(),
      addRow: () => void this.editing.addRow(),
      removeRow: () => void this.editing.removeRow(),
      moveColumn: (by) => {
        if (name === undefined) return;
        this.change(movedBy(this.state, this.fields, { name, by }));
        const now = core.layout.columns.findIndex(({ field }) => field.name === name);
        go(row, now, false);
      },
      widen: (by) => {
        const width = layout.columns[column]?.width;
        if (name === undefined || width === undefined) return;
        this.edit({ widths: { ...this.state.widths, [name]: Math.max(WIDTH_MIN, Math.min(WIDTH_MAX, width + by)) } });
      },
      columnMenu: () => {
        if (name !== undefined) this.openColumn(name, this.frame.grid);
      },
      copy: (hasNames) => void this.copy(hasNames),
      command: (command) => this.command(command),
    });
    if (isHandled) event.preventDefault();
  }

  /** The focus is elsewhere: have it in sight. */
  private focusMoved(isRevealed = true): void {
    const { core } = this;
    if (core === null) return;
    const { row, column } = core.selection.focus;
    if (isRevealed && row >= 0) {
      const { top } = core.window;
      core.window.reveal(row);
      if (core.window.top !== top) core.scrollTo(core.window.top);
    }
    const placed = core.layout.columns[column];
    if (isRevealed && placed !== undefined && !placed.isFrozen) {
      const inSight = core.width - core.layout.frozenWidth;
      if (placed.left < core.scrollX) core.scrollColumns(placed.left);
      else if (placed.left + placed.width > core.scrollX + inSight) core.scrollColumns(placed.left + placed.width - inSight);
    }
    core.moved();
    this.dispatchEvent(new CustomEvent("cellfocus", { bubbles: true, composed: true }));
  }

  private command(command: Command): void {
    const { core, state } = this;
    if (core === null) return;
    switch (command) {
      case "follow":
        this.edit({ follows: !state.follows });
        break;
      case "anchor":
        core.setAnchor(core.anchor === null ? Math.max(0, core.selection.focus.row) : null);
        break;
      case "pause":
        core.setPaused(!core.isPaused);
        break;
      case "filters":
        this.edit({ showsFilters: !state.showsFilters });
        break;
      case "past":
        void this.history.toggle();
        break;
      case "search":
      case "goTo":
        this.frame[command].focus();
        break;
      case "columns":
        this.openColumns(this.frame.grid);
        break;
      default:
        this.openMore(this.frame.grid);
    }
  }

  // Menus.

  private get holder(): { readonly state: GridState; change(state: GridState): void } {
    const state = (): GridState => this.state;
    return {
      get state() {
        return state();
      },
      change: (changed) => this.change(changed),
    };
  }

  private openColumn(name: string, at: HTMLElement): void {
    const field = this.fields.find((one) => one.name === name);
    if (field === undefined) return;
    const more = { fields: this.fields, fit: () => this.fit([name]) };
    this.menu.open(at, `Column ${name}`, () => columnMenu(this.holder, field, more));
  }

  private openColumns(at: HTMLElement): void {
    const fitAll = (): void => this.fit(this.core?.layout.columns.map(({ field }) => field.name) ?? []);
    this.menu.open(at, "Columns", () => columnsMenu(this.holder, this.fields, fitAll));
  }

  private openMore(at: HTMLElement): void {
    const { state } = this;
    const entries: MenuEntry[] = [
      ...this.editing.entries,
      { label: "Copy cells", hint: "Ctrl C", act: () => void this.copy(false) },
      { label: "Copy cells with names", hint: "Ctrl Shift C", act: () => void this.copy(true) },
      "line",
      { label: "Download all rows as CSV", act: () => void this.download("csv") },
      { label: "Download all rows as Arrow", act: () => void this.download("arrow") },
      { label: "Download all rows as Parquet", act: () => void this.download("parquet") },
      "line",
      { label: "Times in UTC", isChecked: state.zone === "UTC", act: () => this.edit({ zone: "UTC" }) },
      { label: "Times as on this machine", isChecked: state.zone === "local", act: () => this.edit({ zone: "local" }) },
      "line",
      ...KEY_HELP.map(([keys, what]) => ({ label: keys, hint: what, isDisabled: true, act: () => undefined })),
    ];
    this.menu.open(at, "More", () => entries);
  }

  /** Give columns the width of what stands in them now. */
  private fit(names: readonly string[]): void {
    const { core } = this;
    if (core === null) return;
    const widths = fittingWidths(core, names, { family: getComputedStyle(this).fontFamily, format: (name) => this.format(name) });
    this.edit({ widths: { ...this.state.widths, ...widths } });
  }

  private format(name: string): { numbers: NonNullable<GridState["numbers"][string]>; zone: GridState["zone"] } {
    const { numbers, zone } = this.state;
    return { numbers: numbers[name] ?? "auto", zone };
  }

  // Out of the grid.

  private copied(event: ClipboardEvent): void {
    const { core } = this;
    if (core === null || event.target instanceof HTMLInputElement) return;
    const text = blockText(core.rows, core.layout.columns, { block: core.selection.block, hasNames: false });
    if (text === null || event.clipboardData === null) return;
    event.clipboardData.setData("text/plain", text);
    event.preventDefault();
  }

  /** Put the selected cells on the clipboard; those that are not here are fetched. */
  async copy(hasNames: boolean): Promise<void> {
    const { core } = this;
    if (core === null) return;
    await this.noticing(core, "Not copied", async () => {
      const { block } = core.selection;
      const here = blockText(core.rows, core.layout.columns, { block, hasNames });
      await navigator.clipboard.writeText(here ?? (await fetchedBlock(core, hasNames)));
    });
  }

  /** All rows as they are now, of the columns that are shown, as a file. */
  async download(format: FileFormat): Promise<void> {
    const { core } = this;
    if (core === null) return;
    core.notice = "The file is being made …";
    this.schedule();
    await this.noticing(core, "No file", async () => {
      const query = selecting(queryOf(core.state, core.fields), core.layout.columns.map(({ field }) => field));
      const file = await fileOf(core.connection, query, format);
      save(file, `${core.state.table}.${format === "arrow" ? "arrows" : format}`);
    });
  }

  private async noticing(core: GridCore, failure: string, act: () => Promise<void>): Promise<void> {
    try {
      await act();
      core.notice = "";
    } catch (error) {
      core.notice = `${failure}: ${(error as Error).message}`;
    }
    this.schedule();
  }

  // Drawing.

  private get numberWidth(): number {
    const digits = String(Math.max(0, (this.core?.window.size ?? 1) - 1)).length;
    return Math.max(44, Math.round(digits * 7.6 + Math.floor((digits - 1) / 3) * 4 + 18));
  }

  private resized(): void {
    const { core } = this;
    if (core === null) return;
    core.window.page = Math.max(1, this.frame.body.clientHeight / ROW_HEIGHT);
    core.width = Math.max(0, this.frame.body.clientWidth - this.numberWidth);
    core.scrollColumns(core.scrollX);
    core.moved();
  }

  private schedule(): void {
    if (this.isScheduled) return;
    this.isScheduled = true;
    requestAnimationFrame(() => {
      this.isScheduled = false;
      if (this.core !== null) this.paint(this.core);
    });
  }

  private tick(): void {
    const { core } = this;
    if (core === null || document.hidden) return;
    core.hasFlashes = !lessMotion.matches;
    if (core.flashes.sweep(Date.now())) this.schedule();
    this.paintStatus(core);
  }

  private paint(core: GridCore): void {
    core.settle();
    const { numberWidth, version } = this;
    const width = Math.max(0, this.frame.body.clientWidth - numberWidth);
    if (width !== core.width) {
      core.width = width;
      core.scrollColumns(core.scrollX);
    }
    core.ask();
    const { layout, window, selection, scrollX } = core;
    const { style } = this.frame.grid;
    style.setProperty("--numberwidth", `${numberWidth}px`);
    style.setProperty("--frozenwidth", `${layout.frozenWidth}px`);
    style.setProperty("--scrolled", `${-scrollX}px`);
    const { state } = this;
    const headerRows = state.showsFilters ? 2 : 1;
    const head = this.header.paint({
      layout, state, scrollX, width, version,
      problems: core.problems,
      descriptions: core.description?.columns ?? new Map<string, string>(),
      focused: selection.focus.row < 0 ? selection.focus.column : -1,
    });
    const cell = this.painter.paint({
      layout, window, selection, scrollX, width, version, headerRows,
      rows: core.rows,
      flashes: core.flashes,
      anchorRow: core.anchor?.row ?? null,
      format: (name) => this.format(name),
    });
    this.bars.paint(window, { at: scrollX, inSight: width - layout.frozenWidth, whole: layout.movingWidth });
    this.editing.paint();
    this.history.paint(core);
    this.frame.describe(core, headerRows, head ?? cell);
    this.paintStatus(core);
    core.painted(performance.timeOrigin + performance.now());
  }

  private paintStatus(core: GridCore): void {
    const { frame } = this;
    const { connection, state, window, layout } = core;
    const now = Date.now();
    if (frame.title.textContent !== state.table) frame.title.textContent = state.table;
    frame.title.title = core.description?.description ?? "";
    frame.setPressed({ filters: state.showsFilters, follows: core.follows, anchored: core.anchor !== null, paused: core.isPaused, past: this.history.isOpen });
    const pill = pillText({
      state: connection.state,
      reason: connection.reason,
      recovery: core.recovery,
      recoveredAgo: now - core.recoveredAt,
      isPaused: core.isPaused,
      isLoading: core.rows.view === null && core.error === null,
      hasFailed: core.error !== null,
    });
    setAttribute(frame.pill, "class", `pill ${pill.kind}`);
    if (frame.pill.textContent !== pill.text) frame.pill.textContent = pill.text;
    frame.pill.title = pill.title;
    const isOver = connection.state === "refused" || connection.state === "ended";
    const refusal = isOver ? connection.reason : "";
    frame.say([...core.problems.values()][0] ?? [core.error?.message, refusal, core.notice].find(Boolean) ?? "");
    const rows = core.rows.view === null ? "" : `${window.size.toLocaleString()} rows × ${layout.columns.length} columns`;
    const range = window.size === 0 ? "" : ` · ${window.first.toLocaleString()}–${(window.stop - 1).toLocaleString()}`;
    if (frame.rowsText.textContent !== rows + range) frame.rowsText.textContent = rows + range;
    const figures = figuresText(core.statistics.figures(now));
    if (frame.figures.textContent !== figures) frame.figures.textContent = figures;
  }
}

declare global {
  interface HTMLElementTagNameMap {
    "live-grid": LiveGrid;
  }
}

/** Make the element known to the page. */
export function defineLiveGrid(): void {
  if (customElements.get("live-grid") === undefined) customElements.define("live-grid", LiveGrid);
}

