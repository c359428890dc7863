import assert from "node:assert/strict";
import test from "node:test";
import { readBoard } from "../board/layout.ts";
import { readLink, writeLink } from "../board/link.ts";
import {
  CHART_KINDS,
  type ChartState,
  compactChart,
  emptyChart,
  levelOf,
  parseThresholds,
  readChart,
  ROWS_MAX,
  SPANS,
  VALUES_MAX,
  writeThresholds,
} from "../chart/chart_state.ts";
import { emptyState } from "../grid/grid_state.ts";

const touched: ChartState = {
  table: "quotes",
  kind: "line",
  operations: [["where", "price > 3"]],
  values: ["price", "size"],
  label: "symbol",
  along: "",
  rows: 8,
  isFromEnd: true,
  seconds: 900,
  thresholds: [{ from: 70, level: "wary" }, { from: 90.5, level: "bad" }],
  numbers: "plain",
};

for (const kind of CHART_KINDS) {
  test(`a chart that nobody touched is short: ${kind}`, () => {
    const chart = emptyChart("quotes", kind);
    assert.deepEqual(compactChart(chart), { table: "quotes", kind });
    assert.deepEqual(readChart(compactChart(chart)), chart);
  });
}

test("everything that was chosen comes back", () => {
  assert.deepEqual(readChart(JSON.parse(JSON.stringify(compactChart(touched)))), touched);
});

for (const value of [null, 3, "line", [], {}, { table: "t" }, { table: "", kind: "line" }, { table: 1, kind: "line" }, { table: "t", kind: "pie" }]) {
  test(`no chart: ${JSON.stringify(value)}`, () => assert.equal(readChart(value), null));
}

test("what cannot be is left out of a chart", () => {
  const chart = { table: "t", kind: "bars" };
  const untouched = emptyChart("t", "bars");
  const odd = { operations: [3, [4], "where"], values: [1], label: {}, along: null, rows: "9", seconds: [], numbers: "roman" };
  assert.deepEqual(readChart({ ...chart, ...odd, isFromEnd: "yes", thresholds: [null, { from: "1", level: "bad" }, { from: 1, level: "fine" }] }), untouched);
});

test("a chart has limits, and a step beyond them is not taken", () => {
  const read = (part: object): ChartState => readChart({ table: "t", kind: "line", ...part })!;
  const untouched = emptyChart("t", "line");
  assert.equal(read({ rows: ROWS_MAX }).rows, ROWS_MAX);
  assert.equal(read({ rows: ROWS_MAX + 1 }).rows, untouched.rows);
  assert.equal(read({ rows: 0 }).rows, untouched.rows);
  const longest = SPANS[SPANS.length - 1]!;
  assert.equal(read({ seconds: longest }).seconds, longest);
  assert.equal(read({ seconds: longest + 1 }).seconds, untouched.seconds);
  const names = Array.from({ length: VALUES_MAX + 1 }, (_, i) => `c${i}`);
  assert.deepEqual(read({ values: names }).values, names.slice(0, VALUES_MAX));
});

test("thresholds are read as they are written", () => {
  assert.deepEqual(parseThresholds(writeThresholds(touched.thresholds)), touched.thresholds);
  assert.deepEqual(parseThresholds("90 bad , -1e3 good,"), [{ from: -1000, level: "good" }, { from: 90, level: "bad" }]);
  assert.deepEqual(parseThresholds(" "), []);
  for (const line of ["bad", "90", "90 awful", "bad 90", "1-2 bad"]) {
    assert.match((parseThresholds(line) as { problem: string }).problem, /is no threshold/);
  }
});

test("a value has the level of the highest threshold it has reached", () => {
  const levels = [69.9, 70, 90.4, 90.5, 1e9].map((value) => levelOf(value, [...touched.thresholds].reverse()));
  assert.deepEqual(levels, [null, "wary", "wary", "bad", "bad"]);
});

test("charts stand in links and boards beside grids", () => {
  const board = { alerts: [], rows: [{ height: 1, panels: [{ grid: emptyState("quotes"), width: 1 }, { chart: touched, width: 0.5 }] }] };
  assert.deepEqual(readLink(writeLink(board)), board);
  const alone = { alerts: [], rows: [{ height: 1, panels: [{ chart: emptyChart("quotes", "number"), width: 1 }] }] };
  assert.deepEqual(readLink(writeLink(alone)), alone);
  assert.equal(readBoard({ rows: [{ panels: [{ chart: { table: "t", kind: "pie" } }, {}] }] })?.rows.length ?? 0, 0);
});
