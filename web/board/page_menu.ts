import { element, styleSheet } from "../grid/dom.ts";
import css from "../grid/grid.css";
import { Menu } from "../grid/menu.ts";

/** A menu of the page, which wears what those of the grids wear, and the element it is in. */
export function pageMenu(): { readonly menu: Menu; readonly shell: HTMLElement } {
  const menu = new Menu();
  const shell = element("span", {});
  const root = shell.attachShadow({ mode: "open" });
  root.adoptedStyleSheets = [styleSheet(`${css} :host { display: contents; }`)];
  root.append(menu.element);
  return { menu, shell };
}
