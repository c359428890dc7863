/** What the connection and the page did in the last seconds. */
export interface Figures {
  readonly latencyP50: number | null;
  readonly latencyP99: number | null;
  readonly updatesPerSecond: number;
  readonly bytesPerSecond: number;
  /** Milliseconds since the last update; null before the first. */
  readonly age: number | null;
}

const LATENCIES_MAX = 300;
const SPAN_MS = 5_000;

export class Statistics {
  private readonly latencies: number[] = [];
  private readonly arrivals: { at: number; bytes: number }[] = [];
  private lastAt: number | null = null;
  private lastBytes = 0;

  /** An update came while the connection had received `bytes` in all. */
  arrived(now: number, bytes: number): void {
    this.arrivals.push({ at: now, bytes: this.lastBytes === 0 ? 0 : bytes - this.lastBytes });
    this.lastBytes = bytes;
    this.lastAt = now;
  }

  /** An update was painted that the server made `latency` milliseconds before. */
  painted(latency: number): void {
    this.latencies.push(Math.max(0, latency));
    if (this.latencies.length > LATENCIES_MAX) this.latencies.shift();
  }

  figures(now: number): Figures {
    while (this.arrivals.length > 0 && this.arrivals[0]!.at < now - SPAN_MS) this.arrivals.shift();
    const ordered = [...this.latencies].sort((a, b) => a - b);
    const at = (share: number): number | null =>
      ordered[Math.min(ordered.length - 1, Math.floor(ordered.length * share))] ?? null;
    return {
      latencyP50: at(0.5),
      latencyP99: at(0.99),
      updatesPerSecond: (this.arrivals.length * 1000) / SPAN_MS,
      bytesPerSecond: (this.arrivals.reduce((sum, { bytes }) => sum + bytes, 0) * 1000) / SPAN_MS,
      age: this.lastAt === null ? null : now - this.lastAt,
    };
  }
}

function ms(value: number): string {
  return value < 10 ? value.toFixed(1) : String(Math.round(value));
}

function bytes(value: number): string {
  if (value < 1000) return `${Math.round(value)} B/s`;
  return value < 1e6 ? `${(value / 1000).toFixed(1)} kB/s` : `${(value / 1e6).toFixed(1)} MB/s`;
}

export function figuresText({ latencyP50, latencyP99, updatesPerSecond, bytesPerSecond, age }: Figures): string {
  const parts: string[] = [];
  if (latencyP50 !== null && latencyP99 !== null) parts.push(`lag p50 ${ms(latencyP50)} p99 ${ms(latencyP99)} ms`);
  parts.push(`${updatesPerSecond.toFixed(1)} updates/s`, bytes(bytesPerSecond));
  if (age !== null) parts.push(age < 1000 ? "just now" : `${Math.round(age / 1000)} s ago`);
  return parts.join(" · ");
}
