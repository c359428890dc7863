import assert from "node:assert/strict";
import test from "node:test";
import { ALERTS_MAX, readAlerts } from "../alerts/alert_rule.ts";
import { Crossings, ROWS_MAX } from "../alerts/crossings.ts";
import { readLink, writeLink } from "../board/link.ts";
import { boardOf } from "../board/layout.ts";

function fulfilled(keys: readonly string[], count = keys.length): { rows: Map<string, string>; count: number } {
  return { rows: new Map(keys.map((key) => [key, `text of ${key}`])), count };
}

test("what is there at the beginning is no news, and what stays is none", () => {
  const crossings = new Crossings();
  assert.equal(crossings.see(fulfilled(["a"])), null);
  assert.equal(crossings.see(fulfilled(["a"])), null);
  assert.deepEqual(crossings.see(fulfilled(["a", "b"])), { texts: ["text of b"], further: 0 });
  assert.equal(crossings.see(fulfilled(["b"])), null);
  assert.deepEqual(crossings.see(fulfilled(["a", "b"])), { texts: ["text of a"], further: 0 });
  assert.equal(crossings.see(fulfilled([])), null);
});

test("of many rows the number is told", () => {
  const crossings = new Crossings();
  const keys = Array.from({ length: ROWS_MAX }, (_, i) => String(i));
  crossings.see(fulfilled(keys));
  assert.deepEqual(crossings.see(fulfilled([...keys.slice(1), "x"], ROWS_MAX + 5)), { texts: [], further: 5 });
  assert.equal(crossings.see(fulfilled([...keys.slice(2), "y", "z"], ROWS_MAX + 4)), null);
});

test("alerts of a link are read as far as they make sense", () => {
  const rule = { table: "t", where: "n > 3" };
  assert.deepEqual(readAlerts([rule, { table: "t" }, null, { table: "", where: "x" }, { ...rule, more: 1 }]), [rule, rule]);
  assert.equal(readAlerts(Array(100).fill(rule)).length, ALERTS_MAX);
  assert.deepEqual(readAlerts("x"), []);
  const board = { ...boardOf("t"), alerts: [rule] };
  assert.deepEqual(readLink(writeLink(board)), board);
});
