/** A value at a time, in milliseconds; null where there is none. */
export type Point = readonly [ms: number, value: number | null];

/** Series over one axis, as a plot takes them: times in seconds, then the values of each series. */
export interface PlotData {
  readonly names: readonly string[];
  readonly xs: readonly number[];
  readonly series: readonly (readonly (number | null)[])[];
}

export const SERIES_MAX = 12;

/** Points kept: as many as a wide plot has pixels. */
const POINTS_MAX = 4_000;

/** How cells changed in the last so many seconds. Each holds its value until it is another one. */
export class TimeLine {
  private times: number[] = [];
  private isInterrupted = false;
  private readonly series = new Map<string, (number | null)[]>();

  constructor(private readonly spanMs: number) {}

  get names(): string[] {
    return [...this.series.keys()];
  }

  get last(): number | null {
    return this.times[this.times.length - 1] ?? null;
  }

  /** All values there are now. Times never go back; points that come too close are one. */
  add(at: number, values: ReadonlyMap<string, number | null>): void {
    const ms = Math.max(at, this.last ?? -Infinity);
    for (const name of values.keys()) {
      if (this.series.has(name) || this.series.size >= SERIES_MAX) continue;
      this.series.set(name, this.times.map(() => null));
    }
    if (this.isInterrupted) this.push(ms, new Map());
    const { length } = this.times;
    // The first point of the line and the one before stay, so that nothing is put off for ever.
    const isNear = length >= 2 && ms - this.times[length - 2]! < this.spanMs / POINTS_MAX;
    if (!this.isInterrupted && (isNear || this.last === ms)) this.drop(length - 1, length);
    this.isInterrupted = false;
    this.push(ms, values);
    this.forget(ms - this.spanMs, values);
  }

  /** Let there be a gap between the last point and the next one. */
  interrupt(): void {
    this.isInterrupted = this.times.length > 0;
  }

  private push(ms: number, values: ReadonlyMap<string, number | null>): void {
    this.times.push(ms);
    for (const [name, points] of this.series) points.push(values.get(name) ?? null);
  }

  /**
   * Put before what there is what happened earlier: the changes of each series, oldest first. A
   * series without changes was since `sinceMs` what it is now, if that is known.
   */
  prepend(history: ReadonlyMap<string, readonly Point[]>, sinceMs: number | null): void {
    const end = this.times[0] ?? Infinity;
    const { times, values } = merge(history, { from: sinceMs, end });
    for (const [name, points] of this.series) {
      const before = values.get(name) ?? times.map(() => (sinceMs === null ? null : (points[0] ?? null)));
      this.series.set(name, [...before, ...points]);
    }
    this.times = [...times, ...this.times];
  }

  private drop(from: number, to: number): void {
    this.times.splice(from, to - from);
    for (const points of this.series.values()) points.splice(from, to - from);
  }

  /** Forget what no line needs any more: all but the last point before `ms`, and lines that ended before. */
  private forget(ms: number, now: ReadonlyMap<string, unknown>): void {
    let count = 0;
    while (count + 1 < this.times.length && this.times[count + 1]! <= ms) count++;
    if (count > 0) this.drop(0, count);
    for (const [name, points] of this.series) {
      if (!now.has(name) && points.every((value) => value === null)) this.series.delete(name);
    }
  }

  /** As it looks at a time: what holds holds until then. */
  data(now: number): PlotData {
    const end = Math.max(now, this.last ?? now);
    const isOver = this.times.length > 0 && !this.isInterrupted && end > this.last!;
    const xs = this.times.map((ms) => ms / 1000);
    if (isOver) xs.push(end / 1000);
    const series = [...this.series.values()].map((points) =>
      isOver ? [...points, points[points.length - 1] ?? null] : points,
    );
    return { names: this.names, xs, series };
  }
}

function merge(
  history: ReadonlyMap<string, readonly Point[]>,
  { from, end }: { from: number | null; end: number },
): { times: number[]; values: ReadonlyMap<string, (number | null)[]> } {
  const all = [...history.values()].flatMap((points) => points.map(([ms]) => ms)).filter((ms) => ms < end);
  const times = [...new Set(from === null ? all : [from, ...all])].sort((a, b) => a - b);
  const stride = Math.max(1, Math.ceil(times.length / POINTS_MAX));
  const kept = times.filter((_, i) => i % stride === 0 || i === times.length - 1);
  const values = new Map<string, (number | null)[]>();
  for (const [name, points] of history) {
    let at = 0;
    let value: number | null = null;
    values.set(
      name,
      kept.map((ms) => {
        for (; at < points.length && points[at]![0] <= ms; at++) value = points[at]![1];
        return value;
      }),
    );
  }
  return { times: kept, values };
}
