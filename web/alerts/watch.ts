import type { Field } from "../client/arrow_type.ts";
import type { Connection } from "../client/connection.ts";
import { describeTable } from "../client/description.ts";
import { ServerError } from "../client/errors.ts";
import { type Query, ticketOf } from "../client/query.ts";
import { ViewSubscription } from "../client/subscription.ts";
import type { View } from "../client/view.ts";
import { DEFAULT_FORMAT, exactText, shownText } from "../grid/formats.ts";
import type { AlertRule } from "./alert_rule.ts";
import { type Crossing, Crossings, type Fulfilled, ROWS_MAX } from "./crossings.ts";

const COLUMNS_MAX = 6;
const INTERVAL_MS = 250;
const AGAIN_MS = 5_000;

export interface WatchListener {
  crossed(crossing: Crossing): void;
  /** How many rows fulfil the condition, or what is wrong with it. */
  told(state: string): void;
}

/** Watches the rows that fulfil one rule. */
export class Watch {
  private readonly crossings = new Crossings();
  private subscription: ViewSubscription | null = null;
  private columns: readonly number[] = [];
  private key: readonly number[] = [];
  private timer: ReturnType<typeof setTimeout> | undefined;
  private isClosed = false;
  private readonly detach: () => void;

  constructor(
    private readonly connection: Connection,
    readonly rule: AlertRule,
    private readonly listener: WatchListener,
  ) {
    this.detach = connection.attach({ connected: () => void this.begin(), lost: () => listener.told("not connected") });
  }

  close(): void {
    this.isClosed = true;
    clearTimeout(this.timer);
    this.detach();
    this.subscription?.close();
  }

  private isWanted(): boolean {
    return this.subscription === null && !this.isClosed;
  }

  private async begin(): Promise<void> {
    if (!this.isWanted()) return;
    const { table, where } = this.rule;
    const query: Query = { table, operations: [["where", where]] };
    try {
      const { schema, key } = await describeTable(this.connection, query);
      if (!this.isWanted()) return;
      const place = (name: string): number => schema.fields.findIndex((field) => field.name === name);
      this.key = key.map(place).filter((index) => index >= 0);
      const others = schema.fields.map((_, index) => index).filter((index) => !this.key.includes(index));
      this.columns = [...this.key, ...others].slice(0, Math.max(COLUMNS_MAX, this.key.length));
      this.subscribe(query);
    } catch (error) {
      this.failed(error instanceof ServerError ? error : new ServerError("DATA_LOSS", String(error)));
    }
  }

  private subscribe(query: Query): void {
    const request = { first: 0, count: ROWS_MAX, isReverse: false, columns: [...this.columns].sort((a, b) => a - b) };
    const subscription = new ViewSubscription(this.connection, ticketOf(query), { request, intervalMs: INTERVAL_MS, staysAwake: true });
    this.subscription = subscription;
    subscription.updated.add(() => this.updated(subscription.view!));
    subscription.failed.add((error) => this.failed(error));
  }

  private failed(error: ServerError): void {
    if (this.isClosed || error.status === "UNAVAILABLE") return;
    this.listener.told(error.message);
    this.subscription?.close();
    this.subscription = null;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => void (this.connection.isOpen && this.begin()), AGAIN_MS);
  }

  private updated(view: View): void {
    const rows = new Map<string, string>();
    view.rows.forEach((row, i) => {
      const cell = (index: number): [Field, (typeof row.cells)[number]] => [view.schema.fields[index]!, row.cells[index]];
      const names = this.key.map((index) => exactText(cell(index)[1], cell(index)[0]));
      const text = this.columns.map((index) => {
        const [field, value] = cell(index);
        return `${field.name} ${value === undefined ? "" : shownText(value, field, DEFAULT_FORMAT)}`;
      });
      // Without a key a row is its place.
      rows.set(names.length > 0 ? JSON.stringify(names) : `${i}`, text.join(", "));
    });
    const now: Fulfilled = { rows, count: view.tableSize };
    this.listener.told(now.count === 0 ? "no row" : now.count === 1 ? "1 row" : `${now.count.toLocaleString()} rows`);
    const crossing = this.crossings.see(now);
    if (crossing !== null) this.listener.crossed(crossing);
  }
}
