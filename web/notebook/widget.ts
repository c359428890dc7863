/** The widget of a notebook: `<live-grid>`, whose server is reached by way of the kernel. */
import { Connection } from "../client/connection.ts";
import type { Operation } from "../client/query.ts";
import { element } from "../grid/dom.ts";
import { emptyState } from "../grid/grid_state.ts";
import { defineLiveGrid } from "../grid/live_grid.ts";
import { followScheme } from "./host_theme.ts";
import { KernelSocket, type Model } from "./kernel_socket.ts";

interface Shown {
  readonly table: string;
  readonly operations: readonly Operation[];
}

function render({ model, el }: { model: Model; el: HTMLElement }): () => void {
  defineLiveGrid();
  const { table, operations } = model.get("shown") as Shown;
  const connection = new Connection("kernel:", { openSocket: () => new KernelSocket(model) });
  // Keys are the grid's own, while it has the focus: the notebook has some for cells.
  const frame = element("div", { "data-lm-suppress-shortcuts": "true" });
  frame.style.height = `${Number(model.get("height"))}px`;
  const unfollow = followScheme(frame);
  for (const name of ["keydown", "keyup", "keypress", "contextmenu"]) {
    frame.addEventListener(name, (event) => event.stopPropagation());
  }

  // Each widget brings this module anew, and the first of them has named the element.
  const grid = document.createElement("live-grid");
  grid.connection = connection;
  grid.state = { ...emptyState(table), operations };
  frame.append(grid);
  el.replaceChildren(frame);

  let isInSight = true;
  let isSeen = true;
  const look = (): void => {
    const isNow = !document.hidden && isInSight;
    if (isNow === isSeen) return;
    isSeen = isNow;
    if (isSeen) connection.resume();
    else connection.pause();
  };
  const sight = new IntersectionObserver((entries) => {
    isInSight = entries[entries.length - 1]?.isIntersecting ?? true;
    look();
  });
  sight.observe(frame);
  document.addEventListener("visibilitychange", look);
  connection.open();
  return () => {
    document.removeEventListener("visibilitychange", look);
    sight.disconnect();
    unfollow();
    connection.close();
    grid.remove();
  };
}

export default { render };
