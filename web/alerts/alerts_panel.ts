import type { Connection } from "../client/connection.ts";
import { button, element } from "../grid/dom.ts";
import { type AlertRule, ALERTS_MAX } from "./alert_rule.ts";
import type { Crossing } from "./crossings.ts";
import { Watch } from "./watch.ts";

const NOTES_MAX = 30;
const TEXTS_MAX = 3;
/** A rule does not tell the desktop more often than that. */
const NOTIFY_MS = 1_000;

/** The alerts of a board: what is watched, what came true, and the form for more. */
export class AlertsPanel {
  readonly element: HTMLElement;
  private readonly list = element("ul", { class: "alertrules" });
  private readonly log = element("div", { class: "alertlog", role: "log", "aria-label": "Alerts that came" });
  private readonly table = element("input", { type: "text", id: "alert-table", required: "", autocomplete: "off" });
  private readonly where = element("input", { type: "text", id: "alert-where", required: "", autocomplete: "off", spellcheck: "false", placeholder: "price > 100" });
  private readonly allow = button("Notify me on this machine too", "Let the browser show notifications", () => void this.askForNotifications());
  private readonly dialog: HTMLDialogElement;
  private watches: { watch: Watch; line: HTMLElement }[] = [];
  private readonly notified = new Map<string, number>();

  constructor(
    private readonly connection: Connection,
    private readonly changed: (rules: readonly AlertRule[]) => void,
  ) {
    const form = element("form", {}, [
      element("h2", { id: "alerts-title" }, ["Alerts"]),
      this.list,
      element("label", { for: "alert-table" }, ["Table"]),
      this.table,
      element("label", { for: "alert-where" }, ["When a row comes to fulfil"]),
      this.where,
      element("button", { type: "submit", class: "main" }, ["Watch"]),
      this.allow,
      button("Close", "Close this window; alerts go on", () => this.dialog.close()),
    ]);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.add({ table: this.table.value.trim(), where: this.where.value.trim() });
      this.where.value = "";
    });
    this.dialog = element("dialog", { class: "signin alerts", "aria-labelledby": "alerts-title" }, [form]);
    this.element = element("div", { class: "alertslayer" }, [this.log, this.dialog]);
  }

  get rules(): AlertRule[] {
    return this.watches.map(({ watch }) => watch.rule);
  }

  /** Another board: watch what it says, and nothing else. */
  set rules(rules: readonly AlertRule[]) {
    for (const { watch } of this.watches) watch.close();
    this.watches = [];
    this.list.replaceChildren();
    for (const rule of rules) this.begin(rule);
  }

  open(table: string): void {
    if (table !== "") this.table.value = table;
    this.allow.hidden = !("Notification" in window) || Notification.permission !== "default";
    this.dialog.showModal();
    this.where.focus();
  }

  private add(rule: AlertRule): void {
    if (rule.table === "" || rule.where === "" || this.watches.length >= ALERTS_MAX) return;
    this.begin(rule);
    this.changed(this.rules);
  }

  private begin(rule: AlertRule): void {
    const state = element("small", { role: "status" }, ["…"]);
    const watch = new Watch(this.connection, rule, {
      crossed: (crossing) => this.tell(rule, crossing),
      told: (text) => {
        if (state.textContent !== text) state.textContent = text;
      },
    });
    const remove = button("✕", "Watch this no more", () => {
      watch.close();
      line.remove();
      this.watches = this.watches.filter((one) => one.watch !== watch);
      this.changed(this.rules);
    });
    remove.setAttribute("aria-label", `Remove the alert ${rule.table}: ${rule.where}`);
    const line = element("li", {}, [element("span", {}, [`${rule.table}: ${rule.where}`]), state, remove]);
    this.watches.push({ watch, line });
    this.list.append(line);
  }

  private tell(rule: AlertRule, { texts, further }: Crossing): void {
    const shown = texts.slice(0, TEXTS_MAX);
    const more = texts.length - shown.length + further;
    const lines = [...shown, ...(more > 0 ? [`${shown.length > 0 ? "and " : ""}${more.toLocaleString()} more rows`] : [])];
    const close = button("✕", "Put this away", () => note.remove());
    close.setAttribute("aria-label", "Put this alert away");
    const note = element("div", { class: "alertnote", role: "group" }, [
      element("b", {}, [`${rule.table}: ${rule.where}`]),
      close,
      ...lines.map((line) => element("div", {}, [line])),
      element("time", {}, [new Date().toLocaleTimeString()]),
    ]);
    this.log.prepend(note);
    while (this.log.children.length > NOTES_MAX) this.log.lastElementChild!.remove();
    this.notify(rule, lines.join("\n"));
  }

  private notify(rule: AlertRule, body: string): void {
    if (!("Notification" in window) || Notification.permission !== "granted") return;
    const name = `${rule.table}: ${rule.where}`;
    const now = Date.now();
    if (now - (this.notified.get(name) ?? -Infinity) < NOTIFY_MS) return;
    this.notified.set(name, now);
    new Notification(name, { body, tag: name });
  }

  private async askForNotifications(): Promise<void> {
    await Notification.requestPermission();
    this.allow.hidden = Notification.permission !== "default";
  }
}
