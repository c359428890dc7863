import type { Connection } from "../client/connection.ts";
import { listTables, type TableEntry } from "../client/description.ts";
import { button, element } from "../grid/dom.ts";

const AGAIN_MS = 10_000;

/** The tables of the server, with a search over names, descriptions and columns. */
export class TablesList {
  readonly element: HTMLElement;
  private readonly search = element("input", { type: "search", placeholder: "Search tables", "aria-label": "Search tables", spellcheck: "false", autocomplete: "off" });
  private readonly list = element("ul", { class: "tables" });
  private readonly note = element("p", { class: "note", role: "status" });
  private entries: readonly TableEntry[] = [];
  private shown = "";

  constructor(
    private readonly connection: Connection,
    private readonly open: (table: string, isAdded: boolean) => void,
  ) {
    this.element = element("nav", { class: "side", "aria-label": "Tables" }, [this.search, this.list, this.note]);
    this.search.addEventListener("input", () => this.fill());
    connection.changed.add(({ state }) => {
      if (state === "live") void this.load();
    });
    setInterval(() => {
      if (!document.hidden && connection.isOpen) void this.load();
    }, AGAIN_MS);
  }

  get first(): string | null {
    return this.entries.find(({ name }) => !name.startsWith("_"))?.name ?? this.entries[0]?.name ?? null;
  }

  async load(): Promise<void> {
    try {
      this.entries = await listTables(this.connection);
      this.fill();
    } catch (error) {
      this.note.textContent = (error as Error).message;
    }
  }

  private fill(): void {
    const wish = this.search.value.trim().toLowerCase();
    const fits = ({ name, columns, description }: TableEntry): boolean =>
      name.toLowerCase().includes(wish) ||
      (wish.length > 1 && [description, ...columns].some((text) => text.toLowerCase().includes(wish)));
    const found = this.entries.filter(fits);
    const shown = JSON.stringify(found);
    this.note.textContent = this.entries.length === 0 ? "No tables yet." : found.length === 0 ? "No table fits." : "";
    if (shown === this.shown) return;
    this.shown = shown;
    this.list.replaceChildren(...found.map((entry) => this.item(entry)));
  }

  private item({ name, kind, rows, columns, isTicking, description }: TableEntry): HTMLElement {
    const count = rows < 0 ? "" : `${rows.toLocaleString()} rows · `;
    const about = [description, `${kind}${isTicking ? ", ticking" : ""}`, columns.join(", ")];
    const opener = button("", about.filter(Boolean).join("\n"), (event) => {
      this.open(name, event.ctrlKey || event.metaKey);
    });
    opener.className = "table";
    opener.append(
      element("span", { class: "name" }, [name]),
      element("span", { class: "about" }, [`${count}${columns.length} columns`]),
    );
    if (description !== "") opener.append(element("span", { class: "about description" }, [description]));
    const add = button("+", `Show ${name} beside the others`, () => this.open(name, true));
    add.className = "add";
    add.setAttribute("aria-label", `Show ${name} beside the others`);
    return element("li", {}, [opener, add]);
  }
}
