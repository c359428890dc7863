/** Rows that are looked at one by one; of more only the number is. */
export const ROWS_MAX = 200;

export interface Fulfilled {
  /** What tells the rows apart, and what is told of each. */
  readonly rows: ReadonlyMap<string, string>;
  /** How many there are in all. */
  readonly count: number;
}

/** What a change has made true. */
export interface Crossing {
  readonly texts: readonly string[];
  /** How many rows there are besides those texts. */
  readonly further: number;
}

/** Finds the rows that fulfil a condition and did not before. A row that goes on to fulfil it is no news. */
export class Crossings {
  private before: Fulfilled | null = null;

  /** What is new; null for nothing. What is there at the beginning is not. */
  see(now: Fulfilled): Crossing | null {
    const { before } = this;
    this.before = now;
    if (before === null) return null;
    // Beyond the rows that are looked at, one may come to be seen because another one has gone.
    if (now.count > ROWS_MAX || before.count > ROWS_MAX) {
      return now.count > before.count ? { texts: [], further: now.count - before.count } : null;
    }
    const fresh = [...now.rows].filter(([key]) => !before.rows.has(key)).map(([, text]) => text);
    return fresh.length === 0 ? null : { texts: fresh, further: 0 };
  }
}
