import type { Field } from "../client/arrow_type.ts";
import { element } from "../grid/dom.ts";

/** An input for cells of one column, in which null is something else than nothing. */
export class CellInput {
  readonly element: HTMLElement;
  private readonly input: HTMLInputElement | HTMLSelectElement;
  private readonly nullButton: HTMLButtonElement | null;
  private isNull = false;

  constructor(
    readonly field: Field,
    label: string,
  ) {
    this.input = field.type.kind === "bool" ? truthSelect(field) : element("input", { type: "text", spellcheck: "false", autocomplete: "off" });
    this.input.className = "cellinput";
    this.input.setAttribute("aria-label", label);
    this.input.addEventListener("input", () => this.mark(false));
    this.nullButton = field.isNullable && field.type.kind !== "bool" ? element("button", { type: "button", class: "nullbutton", title: "null (Alt+N)", "aria-label": `${label} is null`, "aria-pressed": "false" }, ["∅"]) : null;
    this.nullButton?.addEventListener("click", () => {
      this.value = this.isNull ? "" : null;
      this.input.focus();
    });
    this.input.addEventListener("keydown", (event) => {
      if (!(event as KeyboardEvent).altKey || (event as KeyboardEvent).key.toLowerCase() !== "n") return;
      event.preventDefault();
      if (field.isNullable) this.value = null;
    });
    this.element = element("span", { class: "cellinputs" }, this.nullButton === null ? [this.input] : [this.input, this.nullButton]);
  }

  get value(): string | null {
    if (this.input instanceof HTMLSelectElement) return this.input.value === "null" ? null : this.input.value;
    return this.isNull ? null : this.input.value;
  }

  set value(text: string | null) {
    this.input.value = text ?? (this.input instanceof HTMLSelectElement ? "null" : "");
    this.mark(text === null);
  }

  set isBusy(isBusy: boolean) {
    this.input.toggleAttribute("readonly", isBusy);
    this.input.setAttribute("aria-busy", String(isBusy));
  }

  set isWrong(isWrong: boolean) {
    this.input.setAttribute("aria-invalid", String(isWrong));
  }

  focus(): void {
    this.input.focus();
    if (this.input instanceof HTMLInputElement) this.input.select();
  }

  private mark(isNull: boolean): void {
    this.isNull = isNull;
    this.nullButton?.setAttribute("aria-pressed", String(isNull));
    if (this.input instanceof HTMLInputElement) this.input.placeholder = isNull ? "null" : "";
  }
}

function truthSelect(field: Field): HTMLSelectElement {
  const values = ["true", "false", ...(field.isNullable ? ["null"] : [])];
  return element("select", {}, values.map((value) => element("option", { value }, [value])));
}
