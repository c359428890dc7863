import type { Field } from "../client/arrow_type.ts";
import { element } from "../grid/dom.ts";
import { CellInput } from "./edit_parts.ts";
import { inputProblem } from "./cell_input.ts";

/** Where the focus goes when an editor is left. */
export type Leaving = "stay" | "down" | "right" | "left";

export interface CellEditing {
  readonly field: Field;
  /** What the cell holds. */
  readonly before: string | null;
  /** Have the server write it; rejected with what it says. */
  write(text: string | null): Promise<void>;
  /** The editor is gone; with a refusal its text. */
  done(leaving: Leaving, refusal: string | null): void;
}

const ENDS: Readonly<Record<string, Leaving>> = { Enter: "down", Tab: "right" };

/** An input over a cell. Nothing that happens in it is the grid's. */
export class CellEditor {
  readonly element: HTMLElement;
  private readonly input: CellInput;
  private readonly problem = element("span", { class: "cellproblem", role: "alert", hidden: "" });
  private state: "open" | "writing" | "closed" = "open";

  constructor(private readonly editing: CellEditing) {
    this.input = new CellInput(editing.field, editing.field.name);
    this.input.value = editing.before;
    this.element = element("div", { class: "editor" }, [this.input.element, this.problem]);
    for (const name of ["pointerdown", "wheel", "dblclick", "copy"]) this.element.addEventListener(name, (event) => event.stopPropagation());
    this.element.addEventListener("keydown", (event) => this.key(event));
    this.element.addEventListener("focusout", ({ relatedTarget }) => {
      if (!this.element.contains(relatedTarget as Node | null)) void this.commit("stay");
    });
  }

  focus(): void {
    this.input.focus();
  }

  close(): void {
    this.end("stay", null);
  }

  private key(event: KeyboardEvent): void {
    event.stopPropagation();
    if (event.key === "Escape") {
      event.preventDefault();
      if (this.state === "open") this.end("stay", null);
      return;
    }
    const leaving = ENDS[event.key];
    if (leaving === undefined || event.isComposing || event.target instanceof HTMLButtonElement) return;
    event.preventDefault();
    void this.commit(event.shiftKey && leaving === "right" ? "left" : leaving);
  }

  private async commit(leaving: Leaving): Promise<void> {
    if (this.state !== "open") return;
    const { value } = this.input;
    if (value === this.editing.before) {
      this.end(leaving, null);
      return;
    }
    const wrong = value === null ? null : inputProblem(this.editing.field, value);
    this.say(wrong);
    if (wrong !== null) return;
    this.state = "writing";
    this.input.isBusy = true;
    try {
      await this.editing.write(value);
      this.end(leaving, null);
    } catch (error) {
      this.end("stay", (error as Error).message);
    }
  }

  private say(problem: string | null): void {
    this.problem.textContent = problem ?? "";
    this.problem.hidden = problem === null;
    this.input.isWrong = problem !== null;
  }

  private end(leaving: Leaving, refusal: string | null): void {
    if (this.state === "closed") return;
    this.state = "closed";
    this.element.remove();
    this.editing.done(leaving, refusal);
  }
}

/** What the server said of a cell, beside it. */
export function cellNote(text: string): HTMLElement {
  const note = element("div", { class: "editor note" }, [element("span", { class: "cellproblem", role: "alert" }, [text])]);
  note.addEventListener("pointerdown", (event) => event.stopPropagation());
  return note;
}
