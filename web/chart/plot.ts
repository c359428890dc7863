/*!
 * The charts are drawn by uPlot:
 *
 * The MIT License (MIT)
 *
 * Copyright (c) 2022 Leon Sorokin
 *
 * Permission is hereby granted, free of charge, to any person obtaining a copy
 * of this software and associated documentation files (the "Software"), to deal
 * in the Software without restriction, including without limitation the rights
 * to use, copy, modify, merge, publish, distribute, sublicense, and/or sell
 * copies of the Software, and to permit persons to whom the Software is
 * furnished to do so, subject to the following conditions:
 *
 * The above copyright notice and this permission notice shall be included in
 * all copies or substantial portions of the Software.
 *
 * THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR
 * IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY,
 * FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE
 * AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER
 * LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM,
 * OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN
 * THE SOFTWARE.
 */
import uPlot from "uplot";
import type { PlotData } from "./time_line.ts";
import type { Level, Threshold } from "./chart_state.ts";

/** How the numbers of a plot stand along its axis. */
export type PlotForm = "steps" | "line" | "bars";

/** The colours of a plot, as the canvas takes them. */
export interface PlotColours {
  readonly text: string;
  readonly grid: string;
  readonly series: readonly string[];
  readonly levels: Readonly<Record<Level, string>>;
}

export interface PlotInput {
  readonly form: PlotForm;
  readonly data: PlotData;
  /** Whether the axis is one of times. */
  readonly isTime: boolean;
  /** The ends of the axis; null for those of the points. */
  readonly range: readonly [number, number] | null;
  /** What stands below the bars. */
  readonly labels: readonly string[];
  readonly thresholds: readonly Threshold[];
  readonly levelOf: (value: number) => Level | null;
  readonly colours: PlotColours;
  readonly size: { readonly width: number; readonly height: number };
}

/** What uPlot calls values that are colours: its names for that are types alone, so a number has to do. */
// eslint-disable-next-line @typescript-eslint/no-unsafe-enum-assignment
const COLOUR_UNIT = 3 as uPlot.Series.BarsPathBuilderFacetUnit.Color;

const FONT = '12px system-ui, "Segoe UI", Roboto, sans-serif';
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 6 });
const plain = new Intl.NumberFormat("en", { maximumSignificantDigits: 8, useGrouping: false });

function axisNumber(value: number): string {
  return Math.abs(value) >= 1e6 ? compact.format(value) : plain.format(value);
}

/** A moment in UTC, as fine as the marks of the axis. */
function axisTime(seconds: number, increment: number): string {
  const date = new Date(seconds * 1000);
  if (Number.isNaN(date.getTime())) return "";
  const text = date.toISOString();
  if (increment >= 86_400) return text.slice(0, 10);
  if (increment >= 60) return text.slice(11, 16);
  return text.slice(11, increment >= 1 ? 19 : 23);
}

/** One canvas with axes. It is made anew when it has other lines. */
export class Plot {
  private plot: uPlot | null = null;
  private made = "";
  private input: PlotInput | null = null;

  constructor(
    private readonly host: HTMLElement,
    private readonly pointed: (index: number | null) => void,
  ) {}

  show(input: PlotInput): void {
    this.input = input;
    const { data, form, isTime, size } = input;
    const wanted = JSON.stringify([form, isTime, data.names]);
    if (wanted !== this.made) {
      this.close();
      this.made = wanted;
      this.plot = new uPlot(this.options(input), this.aligned(data), this.host);
      return;
    }
    const { plot } = this;
    if (plot === null) return;
    if (plot.width !== size.width || plot.height !== size.height) plot.setSize({ ...size });
    plot.setData(this.aligned(data));
  }

  close(): void {
    this.plot?.destroy();
    this.plot = null;
    this.made = "";
  }

  private aligned({ xs, series }: PlotData): uPlot.AlignedData {
    return [xs as number[], ...(series as (number | null)[][])];
  }

  private options({ form, isTime, data, size }: PlotInput): uPlot.Options {
    const colours = (): PlotColours => this.input!.colours;
    const line = (i: number): string => colours().series[i % colours().series.length]!;
    const lines = data.names.map((name, i): uPlot.Series => ({
      label: name,
      stroke: () => line(i),
      width: 1.75,
      points: { show: false },
      ...this.paths(form),
      ...(form === "bars" ? { fill: () => line(i), width: 0 } : {}),
    }));
    return {
      ...size,
      series: [{}, ...lines],
      legend: { show: false },
      cursor: { points: { show: form !== "bars" }, drag: { x: false, y: false } },
      tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "UTC"),
      scales: {
        x: { time: isTime, range: (_, min, max) => this.rangeX(min, max) },
        y: { range: (_, min, max) => this.rangeY(form, min, max) },
      },
      axes: [this.axisX(form, isTime, colours), this.axisY(colours)],
      hooks: {
        draw: [(plot) => this.drawThresholds(plot)],
        setCursor: [(plot) => this.pointed(plot.cursor.left! < 0 ? null : (plot.cursor.idx ?? null))],
      },
    };
  }

  private paths(form: PlotForm): Partial<uPlot.Series> {
    if (form === "line") return {};
    if (form === "steps") return { paths: uPlot.paths.stepped!({ align: 1 }) };
    const fills = (plot: uPlot): string[] => {
      const { colours, levelOf } = this.input!;
      return (plot.data[1] as (number | null)[]).map((value) => {
        const level = value === null ? null : levelOf(value);
        return level === null ? colours.series[0]! : colours.levels[level];
      });
    };
    const colour: uPlot.Series.BarsPathBuilderFacet = { unit: COLOUR_UNIT, values: fills };
    return { paths: uPlot.paths.bars!({ size: [0.75, 80], disp: { fill: colour, stroke: colour } }) };
  }

  private axisX(form: PlotForm, isTime: boolean, colours: () => PlotColours): uPlot.Axis {
    const axis: uPlot.Axis = {
      stroke: () => colours().text,
      grid: { stroke: () => colours().grid, width: 1, show: form !== "bars" },
      ticks: { stroke: () => colours().grid, width: 1 },
      font: FONT,
      values: (_, splits) => splits.map(axisNumber),
    };
    if (isTime) axis.values = (...[, splits, , , increment]) => splits.map((split) => axisTime(split, increment));
    if (form !== "bars") return axis;
    return {
      ...axis,
      incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000],
      space: 70,
      values: (_, splits) => splits.map((split) => this.input!.labels[split]?.slice(0, 14) ?? ""),
    };
  }

  private axisY(colours: () => PlotColours): uPlot.Axis {
    return {
      stroke: () => colours().text,
      grid: { stroke: () => colours().grid, width: 1 },
      ticks: { stroke: () => colours().grid, width: 1 },
      font: FONT,
      // There are no values before the first points.
      size: (_, values: readonly string[] | null) => 18 + 7 * Math.max(2, ...(values ?? []).map((value) => value.length)),
      values: (_, splits) => splits.map(axisNumber),
    };
  }

  private rangeX(min: number | null, max: number | null): [number, number] {
    const { range, form } = this.input!;
    if (range !== null) return [...range];
    if (min === null || max === null) return [0, 1];
    if (form === "bars") return [min - 0.6, max + 0.6];
    return min === max ? [min - 1, max + 1] : [min, max];
  }

  private rangeY(form: PlotForm, min: number | null, max: number | null): [number, number] {
    if (min === null || max === null) return [0, 1];
    const [low, high] = form === "bars" ? [Math.min(0, min), Math.max(0, max)] : [min, max];
    if (low === high) return [low - Math.max(1, Math.abs(low) / 10), high + Math.max(1, Math.abs(high) / 10)];
    const room = (high - low) * 0.06;
    return [low === 0 ? 0 : low - room, high === 0 ? 0 : high + room];
  }

  private drawThresholds(plot: uPlot): void {
    const { thresholds, colours } = this.input!;
    const { ctx, bbox } = plot;
    for (const { from, level } of thresholds) {
      const y = plot.valToPos(from, "y", true);
      if (y < bbox.top || y > bbox.top + bbox.height) continue;
      ctx.save();
      ctx.strokeStyle = colours.levels[level];
      ctx.lineWidth = devicePixelRatio;
      ctx.setLineDash([6 * devicePixelRatio, 4 * devicePixelRatio]);
      ctx.beginPath();
      ctx.moveTo(bbox.left, y);
      ctx.lineTo(bbox.left + bbox.width, y);
      ctx.stroke();
      ctx.restore();
    }
  }
}
