import type { Connection } from "../client/connection.ts";
import { ServerError } from "../client/errors.ts";
import { button, element } from "../grid/dom.ts";
import { save } from "../grid/export.ts";
import type { MenuEntry } from "../grid/menu.ts";
import type { Board } from "./board.ts";
import { type BoardState, readBoard } from "./layout.ts";
import { compactBoard } from "./link.ts";
import { pageMenu } from "./page_menu.ts";

interface Entry {
  readonly name: string;
  readonly owner: string;
}

function readEntries(value: unknown): Entry[] {
  return (Array.isArray(value) ? value : []).flatMap((item) => {
    const { name, owner } = (item ?? {}) as { name?: unknown; owner?: unknown };
    return typeof name === "string" ? [{ name, owner: typeof owner === "string" ? owner : "" }] : [];
  });
}

const FILE_BYTES_MAX = 1_000_000;

function parsedBoard(text: string): BoardState | null {
  try {
    return readBoard(JSON.parse(text));
  } catch {
    return null;
  }
}

/** Boards that lie on the server under a name. */
export class SavedBoards {
  readonly element: HTMLElement;
  private readonly menu;
  private readonly dialog = element("dialog", { class: "signin", "aria-label": "Save board" });
  private readonly name = element("input", { type: "text", id: "board-name", required: "", maxlength: "100" });
  private readonly file = element("input", { type: "file", accept: ".json,application/json", hidden: "", "aria-label": "File of a board" });
  private readonly problem = element("p", { class: "problem", role: "alert" });
  /** The board that was opened, and the version that a save takes the place of. */
  private opened: { name: string; version: number } | null = null;

  constructor(
    private readonly connection: Connection,
    private readonly board: Board,
  ) {
    const opener = button("Boards", "Open and save boards", () => void this.open(opener));
    opener.className = "tool";
    opener.setAttribute("aria-haspopup", "menu");
    const form = element("form", {}, [
      element("h2", {}, ["Save board"]),
      element("label", { for: "board-name" }, ["Name"]),
      this.name,
      this.problem,
      element("button", { type: "submit", class: "main" }, ["Save"]),
    ]);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      void this.save();
    });
    this.dialog.append(form);
    const { menu, shell } = pageMenu();
    this.menu = menu;
    this.element = element("span", { class: "boards" }, [opener, shell, this.dialog, this.file]);
    this.file.addEventListener("change", () => void this.openFile());
  }

  private async open(at: HTMLElement): Promise<void> {
    let saved: MenuEntry[] = [];
    try {
      const entries = readEntries(await this.connection.call("barrage.boards"));
      saved = entries.map(({ name, owner }) => ({ label: name, hint: owner, act: () => void this.load(name) }));
    } catch (error) {
      saved = [{ label: (error as Error).message, isDisabled: true, act: () => undefined }];
    }
    if (saved.length === 0) saved = [{ label: "No boards yet", isDisabled: true, act: () => undefined }];
    this.menu.open(at, "Boards", () => [
      { label: "Save …", act: () => this.ask() },
      { label: "Open a file …", act: () => this.file.click() },
      { label: "Download as a file", act: () => this.download() },
      { label: "Copy link", act: () => void navigator.clipboard.writeText(location.href) },
      "line",
      ...saved,
    ]);
  }

  private async load(name: string): Promise<void> {
    const answer = (await this.connection.call("barrage.board", { name })) as { content?: unknown; version?: unknown };
    const state = readBoard(answer.content);
    if (state === null) return;
    this.opened = { name, version: typeof answer.version === "number" ? answer.version : 0 };
    this.board.state = state;
  }

  private async openFile(): Promise<void> {
    const file = this.file.files?.[0];
    this.file.value = "";
    if (file === undefined) return;
    const state = parsedBoard(file.size > FILE_BYTES_MAX ? "" : await file.text());
    if (state === null) this.ask(`${file.name} is no board.`);
    else {
      this.opened = null;
      this.board.state = state;
    }
  }

  private download(): void {
    const text = JSON.stringify(compactBoard(this.board.state), null, 2);
    save(new Blob([text], { type: "application/json" }), `${this.opened?.name ?? "board"}.json`);
  }

  private ask(problem = ""): void {
    this.name.value = this.opened?.name ?? "";
    this.problem.textContent = problem;
    this.dialog.showModal();
  }

  private async save(): Promise<void> {
    const name = this.name.value.trim();
    const version = this.opened?.name === name ? this.opened.version : 0;
    const body = { name, content: compactBoard(this.board.state), version };
    try {
      const answer = (await this.connection.call("barrage.save_board", body)) as { version?: unknown };
      this.opened = { name, version: typeof answer.version === "number" ? answer.version : version + 1 };
      this.dialog.close();
    } catch (error) {
      if (!(error instanceof ServerError)) throw error;
      this.problem.textContent = error.message;
    }
  }
}
