import assert from "node:assert/strict";
import test from "node:test";
import type { ArrowType, Field } from "../client/arrow_type.ts";
import { inputProblem, inputText, isWritten } from "../edit/cell_input.ts";

function field(type: ArrowType): Field {
  return { name: "c", type, isNullable: true, children: [], dictionary: null, metadata: new Map() };
}

const int = (bits: number, isSigned = true): Field => field({ kind: "int", bits, isSigned });

test("whole numbers are held against their bits", () => {
  assert.equal(inputProblem(int(64), "9223372036854775807"), null);
  assert.equal(inputProblem(int(64), " -9223372036854775808 "), null);
  assert.match(inputProblem(int(64), "9223372036854775808")!, /to 9223372036854775807/);
  assert.equal(inputProblem(int(64, false), "18446744073709551615"), null);
  assert.match(inputProblem(int(8, false), "-1")!, /from 0 to 255/);
  for (const text of ["", "1.5", "1e3", "0x10", "1,000", "x"]) assert.notEqual(inputProblem(int(32), text), null, text);
});

test("numbers, and what they may be besides", () => {
  const float = field({ kind: "float", bits: 64 });
  for (const text of ["1", "-.5", "1.", "1e-7", "nan", "-inf", "Infinity", "∞"]) assert.equal(inputProblem(float, text), null, text);
  for (const text of ["", "1,5", "one", "1e", "--1"]) assert.notEqual(inputProblem(float, text), null, text);
  assert.notEqual(inputProblem(field({ kind: "decimal", bits: 128, precision: 9, scale: 2 }), "nan"), null);
});

test("what an input begins with is exact, and null is null", () => {
  assert.equal(inputText(2n ** 63n - 1n, int(64)), "9223372036854775807");
  assert.equal(inputText(1769862600123456789n, field({ kind: "timestamp", unit: "ns", zone: "UTC" })), "2026-01-31T12:30:00.123456789Z");
  assert.equal(inputText(0.1, field({ kind: "float", bits: 64 })), "0.1");
  assert.equal(inputText("", field({ kind: "text", isLarge: false })), "");
  assert.equal(inputText(null, field({ kind: "text", isLarge: false })), null);
});

test("lists and structs are not written", () => {
  assert.equal(isWritten(field({ kind: "list", isLarge: false })), false);
  assert.equal(isWritten(int(8)), true);
});
