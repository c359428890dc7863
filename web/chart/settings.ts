import type { Field } from "../client/arrow_type.ts";
import { element, setAttribute } from "../grid/dom.ts";
import { NUMBER_STYLES, type NumberStyle } from "../grid/formats.ts";
import {
  CHART_KINDS,
  type ChartKind,
  type ChartState,
  parseThresholds,
  ROWS_MAX,
  SPANS,
  VALUES_MAX,
  writeThresholds,
} from "./chart_state.ts";
import { isDrawable } from "./values.ts";

const KIND_LABELS: Readonly<Record<ChartKind, string>> = { line: "Lines", bars: "Bars", number: "Big number" };

function spanText(seconds: number): string {
  if (seconds < 120) return `${seconds} seconds`;
  return seconds < 7_200 ? `${Math.round(seconds / 60)} minutes` : `${Math.round(seconds / 3_600)} hours`;
}

function choices(select: HTMLSelectElement, options: readonly (readonly [value: string, label: string])[]): void {
  const wanted = JSON.stringify(options);
  if (select.dataset.options === wanted) return;
  select.dataset.options = wanted;
  select.replaceChildren(...options.map(([value, label]) => element("option", { value }, [label])));
}

const plain = (values: readonly string[]): (readonly [string, string])[] => values.map((value) => [value, value]);

/** What a user can say of a chart: a form that opens beside a button. */
export class Settings {
  readonly element = element("div", { class: "settings", popover: "auto", role: "dialog", "aria-label": "Settings of the chart" });
  private readonly kind = element("select", { id: "kind" });
  private readonly values = element("select", { id: "values", multiple: "", size: "5" });
  private readonly label = element("select", { id: "label" });
  private readonly along = element("select", { id: "along" });
  private readonly rows = element("input", { id: "rows", type: "number", min: "1", max: String(ROWS_MAX) });
  private readonly isFromEnd = element("input", { id: "end", type: "checkbox" });
  private readonly seconds = element("select", { id: "span" });
  private readonly thresholds = element("input", { id: "thresholds", type: "text", placeholder: "70 wary, 90 bad", autocomplete: "off", spellcheck: "false" });
  private readonly numbers = element("select", { id: "numbers" });
  private readonly problem = element("p", { class: "problem", role: "alert" });

  constructor(
    private readonly state: () => ChartState,
    private readonly changed: (state: ChartState) => void,
  ) {
    const form = element("form", {}, []);
    const line = (text: string, field: HTMLElement): void => form.append(element("label", { for: field.id }, [text]), field);
    line("Shown as", this.kind);
    line("Values", this.values);
    line("Names of rows", this.label);
    line("Along", this.along);
    line("Rows", this.rows);
    line("The last rows", this.isFromEnd);
    line("Span", this.seconds);
    line("Thresholds", this.thresholds);
    line("Numbers", this.numbers);
    form.append(this.problem);
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("change", () => this.read());
    choices(this.kind, CHART_KINDS.map((kind) => [kind, KIND_LABELS[kind]]));
    choices(this.seconds, SPANS.map((span) => [String(span), spanText(span)]));
    choices(this.numbers, plain(NUMBER_STYLES));
    this.element.append(form);
  }

  open(opener: HTMLElement, fields: readonly Field[]): void {
    this.fill(fields);
    this.element.showPopover();
    const from = opener.getBoundingClientRect();
    const { style, offsetWidth, offsetHeight } = this.element;
    style.left = `${Math.max(4, Math.min(from.left, innerWidth - offsetWidth - 8))}px`;
    style.top = `${Math.max(4, Math.min(from.bottom + 4, innerHeight - offsetHeight - 8))}px`;
    this.kind.focus();
  }

  private fill(fields: readonly Field[]): void {
    const state = this.state();
    const drawable = fields.filter(isDrawable).map(({ name }) => name);
    const moments = fields.filter(({ type }) => type.kind === "timestamp" || type.kind === "date").map(({ name }) => name);
    choices(this.values, plain(drawable));
    choices(this.label, [["", "their numbers"], ...plain(fields.map(({ name }) => name))]);
    choices(this.along, [["", "time of change"], ...plain([...moments, ...drawable])]);
    this.kind.value = state.kind;
    for (const option of this.values.options) option.selected = state.values.includes(option.value);
    this.label.value = state.label;
    this.along.value = state.along;
    this.rows.value = String(state.rows);
    this.isFromEnd.checked = state.isFromEnd;
    this.seconds.value = String(state.seconds);
    this.thresholds.value = writeThresholds(state.thresholds);
    this.numbers.value = state.numbers;
    this.problem.textContent = "";
    this.enable(state);
  }

  private enable(state: ChartState): void {
    const isOverTime = state.kind === "line" && state.along === "";
    this.along.disabled = state.kind !== "line";
    this.seconds.disabled = !isOverTime;
    this.label.disabled = state.kind === "number";
    this.rows.disabled = state.kind === "number";
  }

  private read(): void {
    const thresholds = parseThresholds(this.thresholds.value);
    const problem = "problem" in thresholds ? thresholds.problem : "";
    this.problem.textContent = problem;
    setAttribute(this.thresholds, "aria-invalid", String(problem !== ""));
    if ("problem" in thresholds) return;
    const rows = Math.floor(Number(this.rows.value));
    const kind = this.kind.value as ChartKind;
    const state: ChartState = {
      ...this.state(),
      kind,
      values: [...this.values.selectedOptions].slice(0, VALUES_MAX).map(({ value }) => value),
      label: this.label.value,
      along: kind === "line" ? this.along.value : "",
      rows: kind === "number" ? 1 : Math.max(1, Math.min(ROWS_MAX, Number.isFinite(rows) ? rows : 1)),
      isFromEnd: this.isFromEnd.checked,
      seconds: Number(this.seconds.value),
      thresholds,
      numbers: this.numbers.value as NumberStyle,
    };
    this.enable(state);
    this.changed(state);
  }
}
