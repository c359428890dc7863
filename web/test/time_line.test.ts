import assert from "node:assert/strict";
import test from "node:test";
import { SERIES_MAX, TimeLine } from "../chart/time_line.ts";

const one = (value: number | null): Map<string, number | null> => new Map([["a", value]]);

test("a value holds until the next one, and until now", () => {
  const line = new TimeLine(60_000);
  line.add(1000, one(1));
  line.add(2000, one(5));
  assert.deepEqual(line.data(3000), { names: ["a"], xs: [1, 2, 3], series: [[1, 5, 5]] });
});

test("times never go back", () => {
  const line = new TimeLine(60_000);
  line.add(2000, one(1));
  line.add(1000, one(2));
  line.add(3000, one(3));
  assert.deepEqual(line.data(0), { names: ["a"], xs: [2, 3], series: [[2, 3]] });
});

test("what is older than the span is forgotten, but for what held then", () => {
  const line = new TimeLine(10_000);
  for (let second = 0; second <= 30; second += 4) line.add(second * 1000, one(second));
  assert.deepEqual(line.data(0), { names: ["a"], xs: [16, 20, 24, 28], series: [[16, 20, 24, 28]] });
});

test("a line stays small however often its cell changes", () => {
  const line = new TimeLine(10_000);
  for (let i = 0; i < 50_000; i++) line.add(i, one(i));
  const { xs, series } = line.data(0);
  assert.ok(xs.length <= 4_100 * 2, String(xs.length));
  assert.equal(series[0]!.at(-1), 49_999);
});

test("an interruption leaves a gap", () => {
  const line = new TimeLine(60_000);
  line.add(1000, one(1));
  line.interrupt();
  assert.deepEqual(line.data(5000).xs, [1]);
  line.add(6000, one(2));
  assert.deepEqual(line.data(0), { names: ["a"], xs: [1, 6, 6], series: [[1, null, 2]] });
});

test("a line that comes later, one that ends, and no more than so many", () => {
  const line = new TimeLine(10_000);
  line.add(1000, one(1));
  line.add(2000, new Map([["a", 1], ["b", 7]]));
  assert.deepEqual(line.data(0).series, [[1, 1], [null, 7]]);
  line.add(3000, new Map([["b", 8]]));
  line.add(20_000, new Map([["b", 9]]));
  assert.deepEqual(line.data(0).names, ["b"]);
  line.add(21_000, new Map(Array.from({ length: SERIES_MAX + 1 }, (_, i) => [`n${i}`, i])));
  assert.equal(line.data(0).names.length, SERIES_MAX);
});

test("a cell that is null has a line from the beginning", () => {
  const line = new TimeLine(60_000);
  line.add(1000, new Map([["a", null], ["b", 1]]));
  line.add(2000, new Map([["a", 5], ["b", 1]]));
  assert.deepEqual(line.data(0), { names: ["a", "b"], xs: [1, 2], series: [[null, 5], [1, 1]] });
});

test("a history comes before what there is, up to where that begins", () => {
  const line = new TimeLine(60_000);
  line.add(10_000, new Map([["a", 3], ["b", 4]]));
  line.prepend(new Map([["a", [[5_000, 1], [8_000, 2], [10_000, 3]] as const]]), 5_000);
  assert.deepEqual(line.data(0), { names: ["a", "b"], xs: [5, 8, 10], series: [[1, 2, 3], [4, 4, 4]] });
});

test("where a history does not go so far back, nothing is made up", () => {
  const line = new TimeLine(60_000);
  line.add(10_000, new Map([["a", 3], ["b", 4]]));
  line.prepend(new Map([["a", [[8_000, 2]] as const]]), null);
  assert.deepEqual(line.data(0), { names: ["a", "b"], xs: [8, 10], series: [[2, 3], [null, 4]] });
});
