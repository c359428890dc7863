import type { TimeBar } from "../past/index.ts";
import type { GridCore } from "./grid_core.ts";

export interface PastGrid {
  core(): GridCore | null;
  /** Show a version; with an empty text the table as it changes. */
  show(at: string): void;
  /** The version that is shown has been shown for a while: links may name it. */
  shown(): void;
}

/** Browsers let a page change its address a few times a second and no more. */
const SHOWN_MS = 400;

/** Loads the bar that goes through a table's past when somebody looks back. */
export class History {
  private bar: TimeBar | null = null;
  private isLoading = false;
  private timer: ReturnType<typeof setTimeout> | undefined;

  constructor(
    private readonly root: ShadowRoot,
    private readonly before: HTMLElement,
    private readonly grid: PastGrid,
  ) {}

  get isOpen(): boolean {
    return this.bar !== null;
  }

  async toggle(): Promise<void> {
    if (this.bar !== null) {
      this.close();
      if (this.grid.core()?.state.at !== "") this.show("");
    } else await this.open();
  }

  private show(at: string): void {
    this.grid.show(at);
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.grid.shown(), SHOWN_MS);
  }

  close(): void {
    this.bar?.close();
    this.bar = null;
  }

  /** What is shown may be a version that a link named, and another table than before. */
  paint(core: GridCore): void {
    if (this.bar === null && core.state.at !== "") void this.open();
    if (this.bar?.isOf(core) === false) {
      this.close();
      if (core.state.at !== "") void this.open();
    }
    this.bar?.paint(core);
  }

  private async open(): Promise<void> {
    const core = this.grid.core();
    if (core === null || this.isLoading) return;
    this.isLoading = true;
    const { TimeBar, wearPast } = await import("../past/index.ts");
    this.isLoading = false;
    if (this.grid.core() !== core) return;
    wearPast(this.root);
    this.bar = new TimeBar(core, { show: (at) => this.show(at), leave: () => void this.toggle() });
    this.before.after(this.bar.element);
    await this.bar.load();
  }
}
