import uplotCss from "uplot/dist/uPlot.min.css";
import type { Field } from "../client/arrow_type.ts";
import { Connection } from "../client/connection.ts";
import type { Cell } from "../client/cells.ts";
import { button, element, setAttribute, styleSheet } from "../grid/dom.ts";
import { DEFAULT_FORMAT, shownText } from "../grid/formats.ts";
import gridCss from "../grid/grid.css";
import { pillText } from "../grid/pill.ts";
import css from "./chart.css";
import { ChartCore, type ChartRow } from "./chart_core.ts";
import { type ChartState, emptyChart, levelOf, readChart } from "./chart_state.ts";
import { Plot, type PlotColours, type PlotInput } from "./plot.ts";
import { Settings } from "./settings.ts";
import type { PlotData } from "./time_line.ts";

const TICK_MS = 250;
const COLOURS = 8;
/** Bars and values that the text for those who do not see the picture tells. */
const SPOKEN_MAX = 20;
/** From so many characters on a big number is smaller, and smaller still. */
const LONG = 9;
const VERY_LONG = 18;
const sheet = styleSheet(`${gridCss}${uplotCss}${css}`);

type Query = Pick<ChartState, "table" | "operations" | "kind" | "values" | "label" | "along" | "rows" | "isFromEnd" | "seconds">;

/** What other rows are needed for. */
function queryText({ table, operations, kind, values, label, along, rows, isFromEnd, seconds }: Query): string {
  return JSON.stringify([table, operations, kind, values, label, along, rows, isFromEnd, seconds]);
}

/**
 * `<live-chart src="ws://host:port/socket" table="quotes" kind="bars">`: a chart of a table of a
 * server, as it changes. What else there is to say is in `state`; `statechange` tells that the user
 * has changed it.
 */
export class LiveChart extends HTMLElement {
  static readonly observedAttributes = ["src", "table", "kind"];

  private readonly title_ = element("h2", { class: "title" });
  private readonly pill = element("span", { class: "pill", role: "status" });
  private readonly message = element("div", { class: "message", role: "alert", hidden: "" });
  private readonly messageText = element("span");
  private readonly figure = element("div", { class: "figure" });
  private readonly plotHost = element("div", { class: "plot", role: "img" });
  private readonly big = element("div", { class: "big", hidden: "" });
  private readonly bigValue = element("div", { class: "value" });
  private readonly caption = element("div", { class: "caption" });
  private readonly none = element("div", { class: "none", hidden: "" }, ["No rows"]);
  private readonly legend = element("ul", { class: "legend", tabindex: "0", "aria-label": "Lines" });
  private readonly about = element("span");
  private readonly settings = new Settings(
    () => ({ ...this.state, values: this.core?.shownValues ?? this.state.values }),
    (state) => this.change(state),
  );
  private readonly plot = new Plot(this.plotHost, (index) => this.pointedAt(index));
  private readonly resizes = new ResizeObserver(() => this.schedule());
  private readonly seen = (): void => {
    if (document.hidden) this.core?.interrupt();
  };
  private core: ChartCore | null = null;
  private given: Connection | null = null;
  private own: Connection | null = null;
  private wanted = emptyChart("", "line");
  private isScheduled = false;
  private ticking: ReturnType<typeof setInterval> | undefined;
  private pointed: number | null = null;
  private colours: PlotColours | null = null;
  private theme = "";
  private data: PlotData = { names: [], xs: [], series: [] };

  constructor() {
    super();
    const root = this.attachShadow({ mode: "open" });
    root.adoptedStyleSheets = [sheet];
    const settings = button("Settings", "What is shown and how", () => this.settings.open(settings, this.fields));
    settings.className = "tool";
    settings.setAttribute("aria-haspopup", "dialog");
    const retry = button("Try again", "Ask the server again", () => this.core?.retry());
    this.message.append(this.messageText, retry);
    this.big.append(this.bigValue, this.caption);
    this.figure.append(this.plotHost, this.big, this.none);
    root.append(
      element("section", { class: "frame" }, [
        element("div", { class: "tools", role: "toolbar", "aria-label": "Chart" }, [
          this.title_, settings, this.pill, element("slot", { name: "tools" }),
        ]),
        this.message,
        this.figure,
        this.legend,
        element("div", { class: "status" }, [this.about]),
      ]),
      this.settings.element,
    );
  }

  get connection(): Connection | null {
    return this.given ?? this.own;
  }

  set connection(connection: Connection | null) {
    this.given = connection;
    if (this.isConnected) this.start();
  }

  /** What the user has made of the chart. */
  get state(): ChartState {
    return this.wanted;
  }

  set state(state: ChartState) {
    const isOther = queryText(state) !== queryText(this.wanted);
    this.wanted = state;
    if (this.isConnected && (isOther || this.core === null)) this.start();
    this.schedule();
  }

  get fields(): readonly Field[] {
    return this.core?.fields ?? [];
  }

  /** The lines or bars that are shown, as numbers. */
  get shown(): PlotData {
    return this.data;
  }

  attributeChangedCallback(name: string): void {
    if (name === "src") {
      if (this.isConnected) this.start();
      return;
    }
    const table = this.getAttribute("table") ?? "";
    const state = readChart({ table, kind: this.getAttribute("kind") ?? "line" });
    if (state !== null) this.state = state;
  }

  connectedCallback(): void {
    this.resizes.observe(this.figure);
    this.ticking = setInterval(() => this.tick(), TICK_MS);
    document.addEventListener("visibilitychange", this.seen);
    this.start();
  }

  disconnectedCallback(): void {
    this.resizes.disconnect();
    clearInterval(this.ticking);
    document.removeEventListener("visibilitychange", this.seen);
    this.core?.close();
    this.core = null;
    this.own?.close();
    this.own = null;
    this.plot.close();
  }

  private start(): void {
    const src = this.getAttribute("src");
    this.core?.close();
    this.core = null;
    if (this.given === null && src !== null) {
      const url = new URL(src, location.href).href.replace(/^http/, "ws");
      if (this.own?.url !== url) {
        this.own?.close();
        this.own = new Connection(url);
        this.own.open();
      }
    }
    const { connection } = this;
    if (connection === null || this.wanted.table === "") return;
    this.core = new ChartCore(connection, this.wanted, () => this.schedule());
    this.schedule();
  }

  private change(state: ChartState): void {
    this.state = state;
    this.dispatchEvent(new CustomEvent("statechange", { bubbles: true, composed: true }));
  }

  private schedule(): void {
    if (this.isScheduled || !this.isConnected) return;
    this.isScheduled = true;
    requestAnimationFrame(() => {
      this.isScheduled = false;
      if (this.core !== null && this.isConnected) this.paint(this.core);
    });
  }

  /** Time goes on where nothing changes, and themes are changed by others. */
  private tick(): void {
    const { core } = this;
    if (core === null || document.hidden) return;
    if (core.isOverTime || getComputedStyle(this).color !== this.theme) this.schedule();
    else this.paintStatus(core);
  }

  private paint(core: ChartCore): void {
    const { state } = this;
    const isNumber = state.kind === "number";
    this.big.hidden = !isNumber;
    this.plotHost.hidden = isNumber;
    const rows = core.isOverTime ? [] : core.chartRows();
    if (isNumber) this.paintNumber(core, rows[0]);
    else this.paintPlot(core, rows);
    this.none.hidden = !core.hasRows || (core.isOverTime ? this.data.names.length > 0 : rows.length > 0);
    this.paintStatus(core);
    core.painted();
  }

  private paintNumber(core: ChartCore, row: ChartRow | undefined): void {
    const { state } = this;
    const name = core.shownValues[0] ?? "";
    const field = core.field(name);
    const cell: Cell | undefined = row?.cells[0];
    const value = row?.values[0] ?? null;
    this.data = { names: [name], xs: [0], series: [[value]] };
    const text = field === undefined || cell === undefined ? "" : shownText(cell, field, { ...DEFAULT_FORMAT, numbers: state.numbers });
    const level = cell === null ? "null" : value === null ? "" : (levelOf(value, state.thresholds) ?? "");
    const size = text.length >= VERY_LONG ? "verylong" : text.length >= LONG ? "long" : "";
    setAttribute(this.bigValue, "class", ["value", level, size].filter(Boolean).join(" "));
    if (this.bigValue.textContent !== text) this.bigValue.textContent = text;
    if (this.caption.textContent !== name) this.caption.textContent = name;
    this.legend.replaceChildren();
  }

  private paintPlot(core: ChartCore, rows: readonly ChartRow[]): void {
    const { state } = this;
    const now = Date.now();
    this.data = core.isOverTime ? core.timeData(now) : this.rowsData(core, rows);
    const { width, height } = this.plotHost.getBoundingClientRect();
    if (width < 20 || height < 20) return;
    const along = core.field(state.along);
    const isBars = state.kind === "bars";
    const input: PlotInput = {
      form: isBars ? "bars" : core.isOverTime ? "steps" : "line",
      data: this.data,
      isTime: core.isOverTime || along?.type.kind === "timestamp" || along?.type.kind === "date",
      range: core.isOverTime ? [now / 1000 - state.seconds, now / 1000] : null,
      labels: isBars ? rows.map(({ name }) => name) : [],
      thresholds: state.thresholds,
      levelOf: (value) => levelOf(value, state.thresholds),
      colours: this.currentColours(),
      size: { width: Math.floor(width), height: Math.floor(height) },
    };
    this.plot.show(input);
    this.paintLegend(core, isBars ? input.labels : null);
  }

  /** The rows in the window as a plot takes them; along an axis they are put in its order. */
  private rowsData(core: ChartCore, rows: readonly ChartRow[]): PlotData {
    const isBars = this.state.kind === "bars";
    if (isBars) {
      const values = rows.map((row) => row.values[0] ?? null);
      return { names: core.shownValues.slice(0, 1), xs: rows.map((_, i) => i), series: [values] };
    }
    const field = core.field(this.state.along);
    const isTime = field?.type.kind === "timestamp" || field?.type.kind === "date";
    const placed = rows.filter(({ at }) => !Number.isNaN(at)).sort((a, b) => a.at - b.at);
    return {
      names: core.shownValues,
      xs: placed.map(({ at }) => (isTime ? at / 1000 : at)),
      series: core.shownValues.map((_, i) => placed.map(({ values }) => values[i] ?? null)),
    };
  }

  private paintLegend(core: ChartCore, bars: readonly string[] | null): void {
    const { data, pointed } = this;
    const values = data.series.map((points) => points[pointed ?? points.length - 1] ?? null);
    const text = (value: number | null): string => (value === null ? "none" : this.numberText(core, value));
    let spoken = data.names.map((name, i) => `${name} ${text(values[i] ?? null)}`);
    if (bars !== null) {
      const points = data.series[0] ?? [];
      spoken = bars.slice(0, SPOKEN_MAX).map((name, i) => `${name} ${text(points[i] ?? null)}`);
      if (bars.length > SPOKEN_MAX) spoken.push(`and ${bars.length - SPOKEN_MAX} more`);
    }
    const name = bars === null ? data.names.join(", ") : (data.names[0] ?? "");
    setAttribute(this.plotHost, "aria-label", `${this.state.kind === "bars" ? "Bars" : "Lines"} of ${name}: ${spoken.join(", ")}`);
    const isPointedBar = bars !== null && pointed !== null && pointed < bars.length;
    const shown = bars === null ? data.names.map((one, i) => [one, text(values[i] ?? null)] as const) : isPointedBar ? [[bars[pointed]!, text(values[0] ?? null)] as const] : [];
    const wanted = JSON.stringify(shown);
    if (this.legend.dataset.shown === wanted) return;
    this.legend.dataset.shown = wanted;
    this.legend.replaceChildren(
      ...shown.map(([label, amount], i) =>
        element("li", {}, [
          element("span", { class: `swatch s${i % COLOURS}`, "aria-hidden": "true" }),
          `${label} `,
          element("span", { class: "amount" }, [amount]),
        ]),
      ),
    );
  }

  private numberText(core: ChartCore, value: number): string {
    const field: Field = { ...core.field(core.shownValues[0] ?? "")!, type: { kind: "float", bits: 64 } };
    return shownText(value, field, { ...DEFAULT_FORMAT, numbers: this.state.numbers });
  }

  private pointedAt(index: number | null): void {
    this.pointed = index;
    this.schedule();
  }

  private paintStatus(core: ChartCore): void {
    const { state } = this;
    const { connection } = core;
    const title = `${state.table} · ${core.shownValues.join(", ")}`;
    if (this.title_.textContent !== title) this.title_.textContent = title;
    const pill = pillText({
      state: connection.state,
      reason: connection.reason,
      recovery: core.recovery,
      recoveredAgo: Date.now() - core.recoveredAt,
      isPaused: false,
      isLoading: !core.hasRows && core.error === null,
      hasFailed: core.error !== null,
    });
    setAttribute(this.pill, "class", `pill ${pill.kind}`);
    if (this.pill.textContent !== pill.text) this.pill.textContent = pill.text;
    const refusal = connection.state === "refused" ? connection.reason : "";
    const message = core.error?.message ?? refusal;
    if (this.messageText.textContent !== message) this.messageText.textContent = message;
    this.message.hidden = message === "";
    const about = core.isOverTime ? ["times in UTC", core.historyText].filter(Boolean).join(" · ") : "";
    if (this.about.textContent !== about) this.about.textContent = about;
  }

  /** The colours of the theme as a canvas takes them: variables are none to it. */
  private currentColours(): PlotColours {
    const theme = getComputedStyle(this).color;
    if (this.colours !== null && theme === this.theme) return this.colours;
    this.theme = theme;
    const probe = element("span");
    this.figure.append(probe);
    const read = (name: string): string => {
      probe.style.color = `var(--${name})`;
      return getComputedStyle(probe).color;
    };
    this.colours = {
      text: read("quiet"),
      grid: read("line"),
      series: Array.from({ length: COLOURS }, (_, i) => read(`series-${i + 1}`)),
      levels: { good: read("good"), wary: read("wary"), bad: read("bad") },
    };
    probe.remove();
    return this.colours;
  }
}

/** Make the element known to the page. */
export function defineLiveChart(): void {
  if (customElements.get("live-chart") === undefined) customElements.define("live-chart", LiveChart);
}
