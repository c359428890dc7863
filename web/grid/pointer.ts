import type { GridCore } from "./grid_core.ts";
import { ROW_HEIGHT } from "./painter.ts";
import type { Place } from "./selection.ts";

/** The wheel: rows by height, so that a notch is as many rows at any depth. */
export function turned(event: WheelEvent, core: GridCore): void {
  if (event.ctrlKey) return; // Ctrl zooms the page
  const units: Readonly<Record<number, number>> = {
    [WheelEvent.DOM_DELTA_PIXEL]: 1 / ROW_HEIGHT,
    [WheelEvent.DOM_DELTA_LINE]: 1,
    [WheelEvent.DOM_DELTA_PAGE]: core.window.page,
  };
  const sideways = event.shiftKey && event.deltaX === 0 ? event.deltaY : event.deltaX;
  const { top } = core.window;
  const x = core.scrollX;
  if (sideways !== 0) {
    core.scrollColumns(core.scrollX + sideways);
    core.moved();
  }
  if (!event.shiftKey && event.deltaY !== 0) core.scrollTo(top + event.deltaY * (units[event.deltaMode] ?? 0));
  if (core.window.top !== top || core.scrollX !== x) event.preventDefault();
}

export interface Pressed {
  readonly core: GridCore;
  readonly body: HTMLElement;
  readonly numberWidth: number;
  focusMoved(isRevealed: boolean): void;
}

function placeAt({ core, body, numberWidth }: Pressed, event: PointerEvent): Place | null {
  const { layout, window } = core;
  const last = window.size - 1;
  if (last < 0 || layout.columns.length === 0) return null;
  const box = body.getBoundingClientRect();
  const row = Math.floor(window.top + (event.clientY - box.top) / ROW_HEIGHT);
  const x = event.clientX - box.left - numberWidth;
  const isFrozen = x < layout.frozenWidth;
  const at = isFrozen ? x : x - layout.frozenWidth + core.scrollX;
  const column = layout.columns.find(
    (one) => one.isFrozen === isFrozen && at >= one.left && at < one.left + one.width,
  );
  const place = column?.place ?? (x < 0 ? 0 : layout.columns.length - 1);
  return { row: Math.max(0, Math.min(row, last)), column: place };
}

/** A press puts the focus on a cell, and drags a selection from there; a finger drags the rows. */
export function pressed(event: PointerEvent, on: Pressed): void {
  const place = placeAt(on, event);
  if (place === null || event.button !== 0) return;
  const { selection } = on.core;
  let { clientX, clientY } = event;
  const scroll = (at: PointerEvent): void => {
    on.core.scrollColumns(on.core.scrollX + clientX - at.clientX);
    on.core.scrollTo(on.core.window.top + (clientY - at.clientY) / ROW_HEIGHT);
    ({ clientX, clientY } = at);
  };
  const select = (at: PointerEvent): void => {
    const to = placeAt(on, at);
    if (to === null || (to.row === selection.focus.row && to.column === selection.focus.column)) return;
    selection.moveTo(to, true);
    on.focusMoved(true);
  };
  const isTouch = event.pointerType === "touch";
  if (!isTouch) {
    selection.moveTo(place, event.shiftKey);
    on.focusMoved(false);
  }
  const move = isTouch ? scroll : select;
  on.body.setPointerCapture(event.pointerId);
  on.body.addEventListener("pointermove", move);
  const end = (): void => on.body.removeEventListener("pointermove", move);
  for (const name of ["pointerup", "pointercancel"]) on.body.addEventListener(name, end, { once: true });
}
