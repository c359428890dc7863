import { type Field, typeName } from "../client/arrow_type.ts";
import type { CellTexts } from "../client/row_edits.ts";
import { button, element } from "../grid/dom.ts";
import { inputProblem, isWritten } from "./cell_input.ts";
import { CellInput } from "./edit_parts.ts";

interface Asked {
  readonly title: string;
  readonly content: readonly HTMLElement[];
  readonly act: string;
  /** Rejected with what is to be shown. */
  submit(): Promise<void>;
  closed(): void;
}

function showDialog(root: ShadowRoot, asked: Asked): HTMLDialogElement {
  const problem = element("p", { class: "formproblem", role: "alert" });
  const act = element("button", { type: "submit", class: "main" }, [asked.act]);
  const form = element("form", {}, [
    element("h3", { id: "rowtitle" }, [asked.title]),
    ...asked.content,
    problem,
    element("div", { class: "formbuttons" }, [button("Cancel", "Leave it as it is", () => dialog.close()), act]),
  ]);
  const dialog = element("dialog", { class: "rowform", "aria-labelledby": "rowtitle" }, [form]);
  dialog.addEventListener("keydown", (event) => event.stopPropagation());
  dialog.addEventListener("close", () => {
    dialog.remove();
    asked.closed();
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    act.disabled = true;
    problem.textContent = "";
    asked
      .submit()
      .then(() => dialog.close())
      .catch((error: unknown) => {
        problem.textContent = (error as Error).message;
      })
      .finally(() => {
        act.disabled = false;
      });
  });
  root.append(dialog);
  dialog.showModal();
  return dialog;
}

export interface NewRow {
  readonly fields: readonly Field[];
  readonly key: readonly string[];
  add(cells: CellTexts): Promise<void>;
  closed(): void;
}

/** A form with an input for each column. */
export function askForRow(root: ShadowRoot, { fields, key, add, closed }: NewRow): void {
  const inputs = fields.filter(isWritten).map((field) => {
    const input = new CellInput(field, field.name);
    input.value = field.isNullable && !key.includes(field.name) ? null : field.type.kind === "bool" ? "false" : "";
    return input;
  });
  const lines = inputs.map((input) =>
    element("div", { class: "formline" }, [
      element("span", { class: "formlabel" }, [
        element("b", {}, [input.field.name]),
        element("small", {}, [` ${typeName(input.field)}${key.includes(input.field.name) ? " · key" : ""}`]),
      ]),
      input.element,
    ]),
  );
  const submit = async (): Promise<void> => {
    for (const input of inputs) {
      const { value, field } = input;
      const wrong = value === null ? null : inputProblem(field, value);
      input.isWrong = wrong !== null;
      if (wrong === null) continue;
      input.focus();
      throw new Error(`${field.name}: ${wrong}`);
    }
    await add(Object.fromEntries(inputs.map(({ field, value }) => [field.name, value])));
  };
  const content = [element("div", { class: "formlines" }, lines)];
  showDialog(root, { title: "Add a row", content, act: "Add", submit, closed });
  inputs[0]?.focus();
}

/** Asks whether a row is to go. */
export function askToRemove(root: ShadowRoot, wish: { key: CellTexts; remove(): Promise<void>; closed(): void }): void {
  const names = Object.entries(wish.key).map(([name, text]) => `${name} ${text ?? "null"}`);
  const content = [element("p", {}, [`Remove the row with ${names.join(", ")}?`])];
  const dialog = showDialog(root, { title: "Remove a row", content, act: "Remove", submit: () => wish.remove(), closed: wish.closed });
  dialog.querySelector<HTMLElement>("button.main")?.focus();
}
