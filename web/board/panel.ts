import type { ChartState } from "../chart/chart_state.ts";
import type { LiveChart } from "../chart/live_chart.ts";
import type { Connection } from "../client/connection.ts";
import type { Operation } from "../client/query.ts";
import { element } from "../grid/dom.ts";
import { emptyState, type GridState } from "../grid/grid_state.ts";
import { LiveGrid } from "../grid/live_grid.ts";

/** What a panel shows, as links and saved boards have it. */
export type PanelContent = { readonly grid: GridState } | { readonly chart: ChartState };

/** What stands in a panel, a grid or a chart. */
export interface PanelBody {
  readonly element: HTMLElement;
  readonly content: PanelContent;
  readonly table: string;
  readonly operations: readonly Operation[];
  /** Names of the columns, for completion. */
  readonly columns: readonly string[];
  /** Show what operators make of the table. */
  run(operations: readonly Operation[]): void;
  /** Elements that belong into its line of tools. */
  addTools(...tools: readonly HTMLElement[]): void;
}

export class GridBody implements PanelBody {
  readonly element = new LiveGrid();

  constructor(connection: Connection, state: GridState) {
    this.element.connection = connection;
    this.element.state = state;
  }

  get content(): PanelContent {
    return { grid: this.element.state };
  }

  get table(): string {
    return this.element.state.table;
  }

  get operations(): readonly Operation[] {
    return this.element.state.operations;
  }

  get columns(): readonly string[] {
    return this.element.fields.map(({ name }) => name);
  }

  run(operations: readonly Operation[]): void {
    this.element.state = { ...this.element.state, operations, sort: [], filters: {}, search: "" };
  }

  show(table: string): void {
    this.element.state = emptyState(table);
  }

  addTools(...tools: readonly HTMLElement[]): void {
    this.element.append(...tools);
  }
}

/** A chart, whose code is loaded when the first of them is shown. */
export class ChartBody implements PanelBody {
  readonly element = element("div", { class: "chart" });
  private chart: LiveChart | null = null;
  private readonly tools: HTMLElement[] = [];

  constructor(
    private readonly connection: Connection,
    private wanted: ChartState,
    changed: () => void,
  ) {
    this.element.addEventListener("statechange", changed);
    void this.load();
  }

  private async load(): Promise<void> {
    const module = await import("../chart/index.ts");
    this.chart = new module.LiveChart();
    this.chart.connection = this.connection;
    this.chart.state = this.wanted;
    this.chart.append(...this.tools);
    this.element.append(this.chart);
  }

  private get state(): ChartState {
    return this.chart?.state ?? this.wanted;
  }

  get content(): PanelContent {
    return { chart: this.state };
  }

  get table(): string {
    return this.state.table;
  }

  get operations(): readonly Operation[] {
    return this.state.operations;
  }

  get columns(): readonly string[] {
    return this.chart?.fields.map(({ name }) => name) ?? [];
  }

  run(operations: readonly Operation[]): void {
    this.wanted = { ...this.state, operations };
    if (this.chart !== null) this.chart.state = this.wanted;
  }

  addTools(...tools: readonly HTMLElement[]): void {
    this.tools.push(...tools);
    this.chart?.append(...tools);
  }
}
