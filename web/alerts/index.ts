/** Loaded with the first alert. */
import { styleSheet } from "../grid/dom.ts";
import css from "./alerts.css";

export { AlertsPanel } from "./alerts_panel.ts";

document.adoptedStyleSheets.push(styleSheet(css));
