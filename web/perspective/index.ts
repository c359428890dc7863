/** A table in Perspective's viewer; loaded when the first is opened. */
export { defineLivePerspective, LivePerspective } from "./live_perspective.ts";

import { defineLivePerspective } from "./live_perspective.ts";

defineLivePerspective();
