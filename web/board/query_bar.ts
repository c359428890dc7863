import type { Operation } from "../client/query.ts";
import { element, setAttribute } from "../grid/dom.ts";
import { complete, OPERATORS, parseQuery, writeQuery } from "./query_text.ts";

/** A line for operators, with completion. */
export class QueryBar {
  readonly element: HTMLElement;
  private readonly input = element("input", {
    type: "text",
    role: "combobox",
    "aria-label": "Query",
    "aria-autocomplete": "list",
    "aria-expanded": "false",
    "aria-controls": "completions",
    placeholder: "where price > 3 | agg by venue n=count() | sort -n",
    autocomplete: "off",
    spellcheck: "false",
  });
  private readonly list = element("div", { role: "listbox", id: "completions", "aria-label": "Completions", class: "completions", hidden: "" });
  private readonly problem = element("span", { class: "problem", role: "alert" });
  private chosen = -1;

  constructor(
    private readonly columns: () => readonly string[],
    private readonly run: (operations: readonly Operation[]) => void,
  ) {
    this.element = element("form", { class: "querybar" }, [this.input, this.list, this.problem]);
    this.element.addEventListener("submit", (event) => {
      event.preventDefault();
      this.submit();
    });
    this.input.addEventListener("input", () => this.suggest());
    this.input.addEventListener("keydown", (event) => this.key(event));
    this.input.addEventListener("blur", () => setTimeout(() => this.hide(), 150));
    this.input.title = OPERATORS.map(({ example }) => example).join("\n");
  }

  show(operations: readonly Operation[]): void {
    this.input.value = writeQuery(operations);
    this.problem.textContent = "";
  }

  focus(): void {
    this.input.focus();
  }

  private submit(): void {
    this.hide();
    const parsed = parseQuery(this.input.value);
    const problem = "problem" in parsed ? parsed.problem : "";
    this.problem.textContent = problem;
    setAttribute(this.input, "aria-invalid", String(problem !== ""));
    if ("operations" in parsed) this.run(parsed.operations);
  }

  private get options(): HTMLElement[] {
    return [...this.list.children] as HTMLElement[];
  }

  private suggest(): void {
    const { from, words } = complete(this.input.value, this.input.selectionStart ?? 0, this.columns());
    this.chosen = -1;
    this.list.replaceChildren(
      ...words.map((word, i) => {
        const option = element("div", { role: "option", id: `completion-${i}`, "aria-selected": "false" }, [word]);
        option.addEventListener("pointerdown", (event) => {
          event.preventDefault();
          this.take(from, word);
        });
        return option;
      }),
    );
    this.list.hidden = words.length === 0;
    setAttribute(this.input, "aria-expanded", String(words.length > 0));
  }

  private hide(): void {
    this.list.hidden = true;
    this.input.removeAttribute("aria-activedescendant");
    setAttribute(this.input, "aria-expanded", "false");
  }

  private take(from: number, word: string): void {
    const { value, selectionStart } = this.input;
    const after = value.slice(selectionStart ?? value.length);
    const space = word.endsWith("(") ? "" : " ";
    this.input.value = `${value.slice(0, from)}${word}${space}${after}`;
    const at = from + word.length + space.length;
    this.input.setSelectionRange(at, at);
    this.suggest();
  }

  private key(event: KeyboardEvent): void {
    if (event.key === "Escape") this.hide();
    if (this.list.hidden) return;
    const { options } = this;
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      const step = event.key === "ArrowDown" ? 1 : -1;
      this.chosen = (this.chosen + step + options.length) % options.length;
      options.forEach((option, i) => setAttribute(option, "aria-selected", String(i === this.chosen)));
      setAttribute(this.input, "aria-activedescendant", `completion-${this.chosen}`);
      event.preventDefault();
    } else if ((event.key === "Tab" && !event.shiftKey) || (event.key === "Enter" && this.chosen >= 0)) {
      const option = options[Math.max(0, this.chosen)];
      const { from } = complete(this.input.value, this.input.selectionStart ?? 0, this.columns());
      if (option?.textContent) this.take(from, option.textContent);
      event.preventDefault();
    }
  }
}
