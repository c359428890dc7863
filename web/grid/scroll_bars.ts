import { element } from "./dom.ts";
import { drag } from "./header.ts";
import type { RowWindow } from "./row_window.ts";

const THUMB_MIN = 28;

/** A track with a thumb; positions are told in pixels of the track. */
class ScrollBar {
  readonly element: HTMLElement;
  private readonly thumb = element("div", { class: "thumb" });

  constructor(
    private readonly axis: "x" | "y",
    private readonly moved: (start: number, track: number) => void,
  ) {
    // The grid says where it is by its rows; for those who see, this is a picture of it.
    this.element = element("div", { class: `bar bar-${axis}`, "aria-hidden": "true" }, [this.thumb]);
    this.element.addEventListener("pointerdown", (event) => this.start(event));
  }

  get track(): number {
    return this.axis === "y" ? this.element.clientHeight : this.element.clientWidth;
  }

  paint(start: number, length: number, isNeeded: boolean): void {
    this.element.classList.toggle("idle", !isNeeded);
    const { style } = this.thumb;
    style[this.axis === "y" ? "height" : "width"] = `${length}px`;
    style.transform = this.axis === "y" ? `translateY(${start}px)` : `translateX(${start}px)`;
  }

  private start(event: PointerEvent): void {
    event.preventDefault();
    const box = this.element.getBoundingClientRect();
    const thumb = this.thumb.getBoundingClientRect();
    const along = (at: { clientX: number; clientY: number }): number =>
      this.axis === "y" ? at.clientY - box.top : at.clientX - box.left;
    const thumbStart = this.axis === "y" ? thumb.top - box.top : thumb.left - box.left;
    const thumbLength = this.axis === "y" ? thumb.height : thumb.width;
    const isOnThumb = along(event) >= thumbStart && along(event) < thumbStart + thumbLength;
    const grip = isOnThumb ? along(event) - thumbStart : thumbLength / 2;
    const move = (at: PointerEvent): void => this.moved(along(at) - grip, this.track);
    if (!isOnThumb) move(event);
    drag(event, this.element, move);
  }
}

export interface HorizontalScroll {
  readonly at: number;
  readonly inSight: number;
  readonly whole: number;
}

/** The two bars at the edges of a grid. */
export class ScrollBars {
  readonly vertical: ScrollBar;
  readonly horizontal: ScrollBar;

  constructor(rowMoved: (top: (window: RowWindow) => number) => void, columnMoved: (share: number) => void) {
    this.vertical = new ScrollBar("y", (start, track) =>
      rowMoved((window) => window.topAt(start, track, THUMB_MIN)),
    );
    this.horizontal = new ScrollBar("x", (start, track) => columnMoved(start / track));
  }

  paint(window: RowWindow, { at, inSight, whole }: HorizontalScroll): void {
    const { start, length } = window.thumb(this.vertical.track, THUMB_MIN);
    this.vertical.paint(start, length, window.size > window.page);
    const { track } = this.horizontal;
    const isNeeded = whole > inSight + 0.5;
    const share = isNeeded ? inSight / whole : 1;
    this.horizontal.paint(isNeeded ? (track * at) / whole : 0, track * share, isNeeded);
  }
}
