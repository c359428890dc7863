/** Loaded when somebody changes a table. */
import { styleSheet } from "../grid/dom.ts";
import css from "./edit.css";

export { CellEditor, cellNote, type Leaving } from "./cell_editor.ts";
export { inputText, isWritten } from "./cell_input.ts";
export { askForRow, askToRemove } from "./row_forms.ts";

const sheet = styleSheet(css);

/** Have what stands here look as it should in a shadow root. */
export function wearEditing(root: ShadowRoot): void {
  if (!root.adoptedStyleSheets.includes(sheet)) root.adoptedStyleSheets.push(sheet);
}
