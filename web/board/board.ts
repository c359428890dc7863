import type { Connection } from "../client/connection.ts";
import type { Operation } from "../client/query.ts";
import { button, element } from "../grid/dom.ts";
import { emptyState, queryOf } from "../grid/grid_state.ts";
import { drag } from "../grid/header.ts";
import { emptyPerspective } from "../perspective/perspective_state.ts";
import { BoardAlerts } from "./alerts.ts";
import { chartChoices } from "./chart_choices.ts";
import {
  type BoardState,
  type Layout,
  PANELS_MAX,
  type Side,
  type Sized,
  type Spot,
  withMoved,
  withoutPanel,
  withPanel,
} from "./layout.ts";
import { pageMenu } from "./page_menu.ts";
import { chartBody, GridBody, type PanelBody, type PanelContent, perspectiveBody } from "./panel.ts";

/** A panel that is there. Elements never change their place in the document: that would end them. */
interface Panel extends Sized {
  readonly element: HTMLElement;
  readonly body: PanelBody;
}

const GAP = 6;
const SHARE_MIN = 0.15;

/** The panels of the page. */
export class Board {
  readonly element = element("main", { class: "board", id: "board" });
  readonly alerts: BoardAlerts;
  private layout: Layout<Panel> = { rows: [] };
  private focused: PanelBody | null = null;
  private readonly splitters: HTMLElement[] = [];
  private readonly mark = element("div", { class: "dropmark", hidden: "" });
  private readonly menu = pageMenu();

  constructor(
    private readonly connection: Connection,
    private readonly listener: { changed(): void; focused(body: PanelBody | null): void },
  ) {
    this.element.append(this.mark, this.menu.shell);
    this.alerts = new BoardAlerts(connection, { table: () => this.focused?.table ?? "", changed: () => listener.changed() });
  }

  get state(): BoardState {
    return {
      alerts: this.alerts.rules,
      rows: this.layout.rows.map(({ height, panels }) => ({
        height,
        panels: panels.map(({ body, width }) => ({ ...body.content, width })),
      })),
    };
  }

  set state(state: BoardState) {
    for (const { panels } of this.layout.rows) for (const panel of panels) panel.element.remove();
    this.layout = {
      rows: state.rows.map(({ height, panels }) => ({
        height,
        panels: panels.map((panel) => this.newPanel(panel, panel.width)),
      })),
    };
    this.alerts.rules = state.alerts;
    this.place();
    this.focus(this.layout.rows[0]?.panels[0]?.body ?? null);
  }

  get panels(): PanelBody[] {
    return this.layout.rows.flatMap(({ panels }) => panels.map(({ body }) => body));
  }

  get current(): PanelBody | null {
    return this.focused;
  }

  /** Show a table in the current panel, or in one of its own. */
  open(table: string, isAdded: boolean): void {
    if (this.focused instanceof GridBody && !isAdded) {
      this.focused.show(table);
      this.listener.focused(this.focused);
      this.listener.changed();
    } else {
      this.add({ grid: emptyState(table) });
    }
  }

  /** A panel more, beside the current one. */
  private add(content: PanelContent): void {
    if (this.panels.length >= PANELS_MAX) return;
    const panel = this.newPanel(content, 1);
    const spot = this.spotOf(this.focused) ?? { row: this.layout.rows.length, column: 0 };
    const isWide = (this.layout.rows[spot.row]?.panels.length ?? 0) >= 2;
    this.layout = withPanel(this.layout, panel, { ...spot, side: isWide ? "below" : "right" });
    this.place();
    this.focus(panel.body);
    this.listener.changed();
  }

  runQuery(operations: readonly Operation[]): void {
    const { focused } = this;
    if (focused === null) return;
    focused.run(operations);
    this.listener.changed();
  }

  private newPanel(content: PanelContent, width: number): Panel {
    const body = this.newBody(content);
    body.element.addEventListener("statechange", () => this.listener.changed());
    const shell = element("div", { class: "panel" }, [body.element]);
    const handle = button("⠿", "Move this panel: drag, or Alt and arrows", () => undefined);
    handle.slot = "tools";
    handle.className = "panelbutton handle";
    handle.setAttribute("aria-label", "Move panel");
    handle.addEventListener("pointerdown", (event) => this.startMove(event, body));
    handle.addEventListener("keydown", (event) => this.key(event, body));
    const close = button("✕", "Close this panel", () => this.close(body));
    close.slot = "tools";
    close.className = "panelbutton";
    close.setAttribute("aria-label", "Close panel");
    body.addTools(handle, close);
    shell.addEventListener("focusin", () => this.focus(body));
    shell.addEventListener("pointerdown", () => this.focus(body));
    this.element.append(shell);
    return { element: shell, body, width };
  }

  private newBody(content: PanelContent): PanelBody {
    if ("chart" in content) return chartBody(this.connection, content.chart);
    if ("perspective" in content) return perspectiveBody(this.connection, content.perspective);
    const body = new GridBody(this.connection, content.grid);
    const charts = button("◔", "Charts of the focused cell and its column", () => this.openCharts(charts, body));
    charts.slot = "tools";
    charts.className = "panelbutton";
    charts.setAttribute("aria-label", "Charts");
    charts.setAttribute("aria-haspopup", "menu");
    body.addTools(charts);
    return body;
  }

  private openCharts(at: HTMLElement, { element: grid }: GridBody): void {
    const choices = chartChoices(grid).map(({ label, state }) => ({ label, act: () => this.add({ chart: state }) }));
    const none = { label: "No column has numbers", isDisabled: true, act: () => undefined };
    const { table } = grid.state;
    const { operations } = queryOf(grid.state, grid.fields);
    const pivots = {
      label: "Pivots and charts of Perspective",
      act: () => this.add({ perspective: { ...emptyPerspective(table), operations } }),
    };
    this.menu.menu.open(at, "Charts", () => [...(choices.length > 0 ? choices : [none]), "line", pivots]);
  }

  private focus(body: PanelBody | null): void {
    if (this.focused === body) return;
    this.focused = body;
    for (const { panels } of this.layout.rows) {
      for (const panel of panels) panel.element.classList.toggle("current", panel.body === body);
    }
    this.listener.focused(body);
  }

  private spotOf(body: PanelBody | null): Spot | null {
    for (const [row, { panels }] of this.layout.rows.entries()) {
      const column = panels.findIndex((panel) => panel.body === body);
      if (column >= 0) return { row, column };
    }
    return null;
  }

  close(body: PanelBody): void {
    const spot = this.spotOf(body);
    if (spot === null) return;
    this.layout.rows[spot.row]!.panels[spot.column]!.element.remove();
    this.layout = withoutPanel(this.layout, spot);
    this.place();
    if (this.focused === body) {
      this.focused = null;
      this.focus(this.panels[0] ?? null);
      if (this.panels.length === 0) this.listener.focused(null);
    }
    this.listener.changed();
  }

  private key(event: KeyboardEvent, body: PanelBody): void {
    const sides: Readonly<Record<string, readonly [Side, number, number]>> = {
      ArrowLeft: ["left", 0, -1],
      ArrowRight: ["right", 0, 1],
      ArrowUp: ["above", -1, 0],
      ArrowDown: ["below", 1, 0],
    };
    const wish = sides[event.key];
    const spot = this.spotOf(body);
    if (wish === undefined || spot === null) return;
    event.preventDefault();
    const [side, rows, columns] = wish;
    const row = Math.max(0, Math.min(spot.row + rows, this.layout.rows.length - 1));
    const last = this.layout.rows[row]!.panels.length - 1;
    const column = Math.max(0, Math.min(spot.column + columns, last));
    this.move(spot, { row, column, side });
  }

  private move(from: Spot, to: Spot & { side: Side }): void {
    const moved = withMoved(this.layout, from, to);
    if (moved === this.layout) return;
    this.layout = moved;
    this.place();
    this.listener.changed();
  }

  private startMove(event: PointerEvent, body: PanelBody): void {
    const from = this.spotOf(body);
    if (from === null) return;
    let target: (Spot & { side: Side }) | null = null;
    const moved = (at: PointerEvent): void => {
      target = this.targetAt(at);
      this.showMark(target);
    };
    this.dragging(event, event.currentTarget as HTMLElement, moved, () => {
      this.showMark(null);
      if (target !== null) this.move(from, target);
    });
  }

  /** What is in a frame takes the pointer whoever has captured it; while something is dragged it must not. */
  private dragging(start: PointerEvent, target: HTMLElement, ...[moved, ended]: readonly [(event: PointerEvent) => void, () => void]): void {
    this.element.classList.add("dragging");
    drag(start, target, moved, () => {
      this.element.classList.remove("dragging");
      ended();
    });
  }

  private targetAt({ clientX, clientY }: PointerEvent): (Spot & { side: Side }) | null {
    for (const [row, { panels }] of this.layout.rows.entries()) {
      for (const [column, panel] of panels.entries()) {
        const { left, right, top, bottom, width, height } = panel.element.getBoundingClientRect();
        if (clientX < left || clientX >= right || clientY < top || clientY >= bottom) continue;
        const x = (clientX - left) / width - 0.5;
        const y = (clientY - top) / height - 0.5;
        const side = Math.abs(x) > Math.abs(y) ? (x < 0 ? "left" : "right") : y < 0 ? "above" : "below";
        return { row, column, side };
      }
    }
    return null;
  }

  private showMark(target: (Spot & { side: Side }) | null): void {
    this.mark.hidden = target === null;
    if (target === null) return;
    const { style } = this.layout.rows[target.row]!.panels[target.column]!.element;
    const half = (length: string): string => `calc((${length}) / 2)`;
    const isAcross = target.side === "left" || target.side === "right";
    const mark = this.mark.style;
    mark.left = target.side === "right" ? `calc(${style.left} + ${half(style.width)})` : style.left;
    mark.top = target.side === "below" ? `calc(${style.top} + ${half(style.height)})` : style.top;
    mark.width = isAcross ? half(style.width) : style.width;
    mark.height = isAcross ? style.height : half(style.height);
  }

  /** Put every panel where the layout has it, and something to drag between them. */
  private place(): void {
    for (const splitter of this.splitters.splice(0)) splitter.remove();
    const heights = this.layout.rows.reduce((sum, { height }) => sum + height, 0);
    let top = 0;
    this.layout.rows.forEach(({ panels, height }, row) => {
      const tall = (height / heights) * 100;
      const widths = panels.reduce((sum, { width }) => sum + width, 0);
      let left = 0;
      panels.forEach((panel, column) => {
        const wide = (panel.width / widths) * 100;
        const { style } = panel.element;
        style.left = `${left}%`;
        style.top = `${top}%`;
        style.width = `calc(${wide}% - ${column < panels.length - 1 ? GAP : 0}px)`;
        style.height = `calc(${tall}% - ${row < this.layout.rows.length - 1 ? GAP : 0}px)`;
        left += wide;
        if (column < panels.length - 1) this.addSplitter({ row, column }, { left, top, length: tall });
      });
      top += tall;
      if (row < this.layout.rows.length - 1) this.addSplitter({ row, column: -1 }, { left: 0, top, length: 100 });
    });
  }

  private addSplitter(spot: Spot, at: { left: number; top: number; length: number }): void {
    const isAcross = spot.column < 0;
    const made = element("div", { class: `splitter ${isAcross ? "across" : "along"}`, "aria-hidden": "true" });
    made.style.left = isAcross ? "0" : `calc(${at.left}% - ${GAP}px)`;
    made.style.top = isAcross ? `calc(${at.top}% - ${GAP}px)` : `${at.top}%`;
    made.style[isAcross ? "width" : "height"] = `${at.length}%`;
    made.addEventListener("pointerdown", (event) => {
      this.dragging(event, made, (move) => this.split(spot, move), () => this.listener.changed());
    });
    this.splitters.push(made);
    this.element.append(made);
  }

  private split(spot: Spot, { clientX, clientY }: PointerEvent): void {
    const box = this.element.getBoundingClientRect();
    const among = spot.column < 0 ? this.layout.rows.map(({ height }) => height) : this.layout.rows[spot.row]!.panels.map(({ width }) => width);
    const at = spot.column < 0 ? spot.row : spot.column;
    const whole = among.reduce((sum, one) => sum + one, 0);
    const before = among.slice(0, at).reduce((sum, one) => sum + one, 0);
    const wish = (spot.column < 0 ? (clientY - box.top) / box.height : (clientX - box.left) / box.width) * whole;
    const both = among[at]! + among[at + 1]!;
    const least = Math.min(SHARE_MIN * both, both / 2);
    const first = Math.max(least, Math.min(both - least, wish - before));
    const shares = among.map((one, i) => (i === at ? first : i === at + 1 ? both - first : one));
    this.layout = {
      rows: this.layout.rows.map((row, i) =>
        spot.column < 0
          ? { ...row, height: shares[i]! }
          : i === spot.row
            ? { ...row, panels: row.panels.map((panel, j) => ({ ...panel, width: shares[j]! })) }
            : row,
      ),
    };
    this.placeOnly();
  }

  /** While a splitter is held it must stay in the document. */
  private placeOnly(): void {
    const kept = this.splitters.splice(0);
    this.place();
    const fresh = this.splitters.splice(0);
    fresh.forEach((splitter, i) => {
      const old = kept[i]!;
      for (const name of ["left", "top", "width", "height"] as const) old.style[name] = splitter.style[name];
      splitter.remove();
    });
    this.splitters.push(...kept);
  }
}
