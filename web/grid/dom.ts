/** An element with attributes and children. Attributes are set one by one, texts are texts. */
export function element<Name extends keyof HTMLElementTagNameMap>(
  name: Name,
  attributes: Readonly<Record<string, string>> = {},
  children: readonly (Node | string)[] = [],
): HTMLElementTagNameMap[Name] {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

export function button(label: string, title: string, act: (event: MouseEvent) => void): HTMLButtonElement {
  const made = element("button", { type: "button", title }, [label]);
  made.addEventListener("click", act);
  return made;
}

/** Set an attribute that is not that already. */
export function setAttribute(target: Element, name: string, value: string): void {
  if (target.getAttribute(name) !== value) target.setAttribute(name, value);
}

/** A style sheet for shadow roots: inline styles are forbidden where no `unsafe-inline` is. */
export function styleSheet(css: string): CSSStyleSheet {
  const sheet = new CSSStyleSheet();
  sheet.replaceSync(css);
  return sheet;
}
