import type { ChartState } from "../chart/chart_state.ts";
import type { Field } from "../client/arrow_type.ts";
import type { Connection } from "../client/connection.ts";
import type { Operation, Query } from "../client/query.ts";
import { element } from "../grid/dom.ts";
import { emptyState, type GridState } from "../grid/grid_state.ts";
import { LiveGrid } from "../grid/live_grid.ts";
import type { PerspectiveState } from "../perspective/perspective_state.ts";

/** What a panel shows, as links and saved boards have it. */
export type PanelContent =
  | { readonly grid: GridState }
  | { readonly chart: ChartState }
  | { readonly perspective: PerspectiveState };

/** What stands in a panel: a grid, a chart, or Perspective's viewer. */
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

/** What is loaded when the first of its kind is shown. */
interface LaterElement<State> extends HTMLElement {
  connection: Connection | null;
  state: State;
  readonly fields: readonly Field[];
}

/** A panel whose element comes later. */
class LaterBody<State extends Query> implements PanelBody {
  readonly element = element("div", { class: "later" });
  private inside: LaterElement<State> | null = null;
  private readonly tools: HTMLElement[] = [];

  constructor(
    private wanted: State,
    private readonly contentOf: (state: State) => PanelContent,
    private readonly load: () => Promise<LaterElement<State>>,
  ) {
    void this.fill();
  }

  private async fill(): Promise<void> {
    const inside = await this.load();
    this.inside = inside;
    inside.state = this.wanted;
    inside.append(...this.tools);
    this.element.append(inside);
  }

  private get state(): State {
    return this.inside?.state ?? this.wanted;
  }

  get content(): PanelContent {
    return this.contentOf(this.state);
  }

  get table(): string {
    return this.state.table;
  }

  get operations(): readonly Operation[] {
    return this.state.operations;
  }

  get columns(): readonly string[] {
    return this.inside?.fields.map(({ name }) => name) ?? [];
  }

  run(operations: readonly Operation[]): void {
    this.wanted = { ...this.state, operations };
    if (this.inside !== null) this.inside.state = this.wanted;
  }

  addTools(...tools: readonly HTMLElement[]): void {
    this.tools.push(...tools);
    this.inside?.append(...tools);
  }
}

export function chartBody(connection: Connection, chart: ChartState): PanelBody {
  return new LaterBody(chart, (state) => ({ chart: state }), async () => {
    const { LiveChart } = await import("../chart/index.ts");
    return Object.assign(new LiveChart(), { connection });
  });
}

export function perspectiveBody(connection: Connection, perspective: PerspectiveState): PanelBody {
  return new LaterBody(perspective, (state) => ({ perspective: state }), async () => {
    const { LivePerspective } = await import("../perspective/index.ts");
    return Object.assign(new LivePerspective(), { connection });
  });
}
