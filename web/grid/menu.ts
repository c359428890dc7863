import { element } from "./dom.ts";

export interface MenuItem {
  readonly label: string;
  /** For an item that is on or off. */
  readonly isChecked?: boolean;
  readonly hint?: string;
  readonly isDisabled?: boolean;
  /** Whether the menu stays, for several choices in a row. */
  readonly stays?: boolean;
  act(): void;
}

export type MenuEntry = MenuItem | "line";

/** A menu that opens beside an element and goes with the next press anywhere else. */
export class Menu {
  readonly element = element("div", { role: "menu", popover: "auto", class: "menu", tabindex: "-1" });
  private opener: HTMLElement | null = null;

  constructor() {
    this.element.addEventListener("keydown", (event) => this.key(event));
    this.element.addEventListener("toggle", (event) => {
      if ((event).newState === "closed") this.opener?.setAttribute("aria-expanded", "false");
    });
  }

  /** `entries` is asked again when an item that stays was chosen. */
  open(opener: HTMLElement, label: string, entries: () => readonly MenuEntry[]): void {
    this.opener = opener;
    opener.setAttribute("aria-expanded", "true");
    this.element.setAttribute("aria-label", label);
    this.fill(entries, -1);
    this.element.showPopover();
    const from = opener.getBoundingClientRect();
    const { style } = this.element;
    style.left = `${Math.max(4, Math.min(from.left, innerWidth - this.element.offsetWidth - 8))}px`;
    const isBelow = from.bottom + this.element.offsetHeight + 8 < innerHeight;
    style.top = `${isBelow ? from.bottom + 4 : Math.max(4, from.top - this.element.offsetHeight - 4)}px`;
    this.items[0]?.focus();
  }

  close(): void {
    this.element.hidePopover();
  }

  private get items(): HTMLElement[] {
    return [...this.element.querySelectorAll<HTMLElement>("button:not([disabled])")];
  }

  private fill(entries: () => readonly MenuEntry[], focused: number): void {
    const made = entries().map((entry) => {
      if (entry === "line") return element("div", { role: "separator" });
      const role = entry.isChecked === undefined ? "menuitem" : "menuitemcheckbox";
      const item = element("button", { type: "button", role, tabindex: "-1" }, [
        element("span", { class: "check", "aria-hidden": "true" }, [entry.isChecked ? "✓" : ""]),
        element("span", { class: "itemlabel" }, [entry.label]),
        element("span", { class: "hint" }, [entry.hint ?? ""]),
      ]);
      if (entry.isChecked !== undefined) item.setAttribute("aria-checked", String(entry.isChecked));
      item.disabled = entry.isDisabled ?? false;
      item.addEventListener("click", () => {
        const at = this.items.indexOf(item);
        entry.act();
        if (entry.stays) this.fill(entries, at);
        else this.close();
      });
      return item;
    });
    this.element.replaceChildren(...made);
    if (focused >= 0) this.items[focused]?.focus();
  }

  private key(event: KeyboardEvent): void {
    const { items } = this;
    const root = this.element.getRootNode() as ShadowRoot | Document;
    const at = items.indexOf(root.activeElement as HTMLElement);
    const steps: Readonly<Record<string, number>> = {
      ArrowDown: (at + 1) % items.length,
      ArrowUp: (at - 1 + items.length) % items.length,
      Home: 0,
      End: items.length - 1,
    };
    const to = steps[event.key];
    event.stopPropagation();
    if (event.key === "Escape" || event.key === "Tab") {
      this.close();
      return;
    }
    if (to === undefined) return;
    event.preventDefault();
    items[to]?.focus();
  }
}
