/** What the page and the frame in which Perspective runs say to each other. */
import type { ViewerState } from "./perspective_state.ts";

/** The first message of the frame, to its page, which answers it with a port. */
export const FRAME_IS_THERE = "perspective-frame";

/** Rows travel as Arrow streams, whole, with their number in the column `index`. */
export type ToFrame =
  | {
      /** A table with other columns than before. */
      readonly kind: "begin";
      readonly rows: Uint8Array<ArrayBuffer>;
      readonly index: string;
      /** Names of the other columns. */
      readonly columns: readonly string[];
      readonly title: string;
      readonly view: ViewerState | null;
      readonly isDark: boolean;
    }
  | { readonly kind: "replace"; readonly rows: Uint8Array<ArrayBuffer> }
  | { readonly kind: "update"; readonly removed: readonly number[]; readonly rows: Uint8Array<ArrayBuffer> | null }
  | { readonly kind: "theme"; readonly isDark: boolean };

export type FromFrame =
  /** The rows of one message are in the table. */
  | { readonly kind: "applied" }
  /** The user has changed what is shown. */
  | { readonly kind: "view"; readonly view: ViewerState }
  | { readonly kind: "failed"; readonly message: string };
