import type { VersionMark } from "../client/journal.ts";

/** Longest and shortest time a version stands while a history is played. */
const PAUSE_MAX_MS = 2_000;
const PAUSE_MIN_MS = 100;

export const SPEEDS = [0.5, 1, 2, 10, 100] as const;

/** How long a version stands, at so many times its own speed. */
export function pauseOf(marks: readonly VersionMark[], place: number, speed: number): number {
  const [now, next] = [marks[place], marks[place + 1]];
  if (now === undefined || next === undefined) return PAUSE_MAX_MS;
  return Math.max(PAUSE_MIN_MS, Math.min(PAUSE_MAX_MS, (next.ms - now.ms) / speed));
}

/** The place of the last version at or before this one. */
export function placeOf(marks: readonly VersionMark[], version: number): number {
  let place = 0;
  while (place + 1 < marks.length && marks[place + 1]!.version <= version) place++;
  return place;
}

/** A moment as the bar tells it, in UTC. */
export function momentText(ms: number): string {
  const date = new Date(ms);
  return Number.isNaN(date.getTime()) ? "" : `${date.toISOString().slice(0, 23).replace("T", " ")}Z`;
}
