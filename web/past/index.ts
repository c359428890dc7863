/** Loaded when somebody looks at a table as it was. */
import { styleSheet } from "../grid/dom.ts";
import css from "./past.css";

export { TimeBar } from "./time_bar.ts";

const sheet = styleSheet(css);

export function wearPast(root: ShadowRoot): void {
  if (!root.adoptedStyleSheets.includes(sheet)) root.adoptedStyleSheets.push(sheet);
}
