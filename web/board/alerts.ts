import type { AlertRule } from "../alerts/alert_rule.ts";
import type { AlertsPanel } from "../alerts/index.ts";
import type { Connection } from "../client/connection.ts";
import { button } from "../grid/dom.ts";

/** The alerts of the board that is shown; their code comes with the first of them. */
export class BoardAlerts {
  readonly element: HTMLElement;
  private panel: AlertsPanel | null = null;
  private wanted: readonly AlertRule[] = [];

  constructor(
    private readonly connection: Connection,
    private readonly page: { table(): string; changed(): void },
  ) {
    const opener = button("Alerts", "Tell me when a row comes to fulfil a condition", () => void this.open());
    opener.className = "tool";
    opener.setAttribute("aria-haspopup", "dialog");
    this.element = opener;
  }

  get rules(): readonly AlertRule[] {
    return this.wanted;
  }

  set rules(rules: readonly AlertRule[]) {
    const isSame = JSON.stringify(rules) === JSON.stringify(this.wanted);
    this.wanted = rules;
    if (isSame) return;
    if (this.panel !== null) this.panel.rules = rules;
    else void this.load();
  }

  private async open(): Promise<void> {
    (await this.load()).open(this.page.table());
  }

  private async load(): Promise<AlertsPanel> {
    const module = await import("../alerts/index.ts");
    if (this.panel === null) {
      this.panel = new module.AlertsPanel(this.connection, (rules) => {
        this.wanted = rules;
        this.page.changed();
      });
      document.body.append(this.panel.element);
      this.panel.rules = this.wanted;
    }
    return this.panel;
  }
}
