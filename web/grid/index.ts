/** `<live-grid>`: a table of a server in a page, as it changes. */
import { defineLiveGrid } from "./live_grid.ts";

export type { GridState, SortKey } from "./grid_state.ts";
export { compactState, emptyState, readState } from "./grid_state.ts";
export { defineLiveGrid, LiveGrid } from "./live_grid.ts";

defineLiveGrid();
