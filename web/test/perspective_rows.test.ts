// The rows that Perspective is sent, read by the reference implementation of Arrow.
import assert from "node:assert/strict";
import test from "node:test";
import * as arrow from "apache-arrow";
import type { ArrowType, Field } from "../client/arrow_type.ts";
import type { Cell } from "../client/cells.ts";
import type { View, ViewChange, ViewRow } from "../client/view.ts";
import { arrowStream, formOf, streamColumn } from "../perspective/arrow_stream.ts";
import { FrameRows } from "../perspective/frame_rows.ts";
import { readPerspective, VIEW_LENGTH_MAX } from "../perspective/perspective_state.ts";

const field = (name: string, type: ArrowType): Field => ({
  name, type, isNullable: true, children: [], dictionary: null, metadata: new Map(),
});
const int64: ArrowType = { kind: "int", bits: 64, isSigned: true };
const text: ArrowType = { kind: "text", isLarge: false };

function read(stream: Uint8Array): Record<string, unknown>[] {
  return arrow.tableFromIPC(stream).toArray().map((row: any) => ({ ...row.toJSON() }));
}

test("every form, with nulls and without rows", () => {
  const columns: [ArrowType, (Cell | undefined)[], unknown[]][] = [
    [{ kind: "bool" }, [true, null, false], [true, null, false]],
    [{ kind: "int", bits: 8, isSigned: true }, [-128, null, 127], [-128, null, 127]],
    [{ kind: "int", bits: 32, isSigned: false }, [4294967295, null, 0], [4294967295n, null, 0n]],
    [int64, [9223372036854775807n, null, -9223372036854775808n], [9223372036854775807n, null, -9223372036854775808n]],
    [{ kind: "int", bits: 64, isSigned: false }, [18446744073709551615n, null, 0n], ["18446744073709551615", null, "0"]],
    [{ kind: "float", bits: 64 }, [1e300, undefined, -0.1], [1e300, null, -0.1]],
    [text, ["é🦀", null, ""], ["é🦀", null, ""]],
    [{ kind: "decimal", bits: 128, precision: 20, scale: 3 }, [-1234567n, null, 128n], ["-1234.567", null, "0.128"]],
    [{ kind: "timestamp", unit: "ns", zone: "UTC" }, [1_700_000_000_123_456_789n, null, -1n], [1_700_000_000_123, null, -1]],
  ];
  const fields = columns.map(([type], i) => field(`c${i}`, type));
  for (const count of [3, 0]) {
    const made = columns.map(([, cells], i) => streamColumn(fields[i]!, cells.slice(0, count)));
    const rows = read(arrowStream(made));
    assert.equal(rows.length, count);
    rows.forEach((row, at) => {
      assert.deepEqual(row, Object.fromEntries(columns.map(([, , expected], i) => [`c${i}`, expected[at]])));
    });
  }
  const days = [field("day", { kind: "date", unit: "day" }), field("ms", { kind: "date", unit: "ms" })];
  const dates = arrow.tableFromIPC(arrowStream([streamColumn(days[0]!, [-1]), streamColumn(days[1]!, [-1n])]));
  for (const { name } of days) assert.equal(Number(dates.getChild(name)!.get(0)), -86_400_000);
});

test("all that has no form of its own is text", () => {
  for (const kind of ["null", "struct", "map"] as const) assert.equal(formOf(field("c", { kind })), "text");
});

const row = (...cells: Cell[]): ViewRow => ({ cells });
const change = (part: Partial<ViewChange>): ViewChange => ({
  isSnapshot: false, added: [], removed: [], cells: [], sourceTimeNs: null, ...part,
});
const viewOf = (rows: ViewRow[]): View => ({ rows }) as View;

test("rows keep their numbers, and changed ones travel whole", () => {
  const [a, b, c] = [row(1n, "a"), row(2n, "b"), row(3n, "c")];
  const rows = new FrameRows([field("id", int64), field("_row", text)]);
  assert.equal(rows.index, "_row_");
  assert.deepEqual(read(rows.all(viewOf([a, b]))), [
    { _row_: 0, id: 1n, _row: "a" },
    { _row_: 1, id: 2n, _row: "b" },
  ]);
  const update = rows.changed(viewOf([c, b]), change({ added: [0], removed: [a], cells: [{ row: b, column: 1, before: "b" }] }));
  assert.equal(update.kind, "update");
  assert.deepEqual("removed" in update && update.removed, [0]);
  assert.deepEqual(read(update.rows!), [
    { _row_: 2, id: 3n, _row: "c" },
    { _row_: 1, id: 2n, _row: "b" },
  ]);
  const none = rows.changed(viewOf([b]), change({ removed: [c] }));
  assert.deepEqual(none, { kind: "update", removed: [2], rows: null });
});

test("numbers that are used up begin again", () => {
  const [a, b] = [row(1n), row(2n)];
  const rows = new FrameRows([field("id", int64)], 2);
  rows.all(viewOf([a]));
  assert.equal(rows.changed(viewOf([a, b]), change({ added: [1] })).kind, "update");
  const next = row(3n);
  const again = rows.changed(viewOf([b, next]), change({ added: [1], removed: [a] }));
  assert.equal(again.kind, "replace");
  assert.deepEqual(read(again.rows!), [{ _row: 0, id: 2n }, { _row: 1, id: 3n }]);
});

test("what a link says is believed as far as it is well formed", () => {
  for (const wrong of [null, 1, "t", {}, { table: "" }, { table: 3 }]) assert.equal(readPerspective(wrong), null);
  const plain = { table: "t", operations: [], view: null };
  assert.deepEqual(readPerspective({ table: "t", operations: 3, view: [1] }), plain);
  assert.deepEqual(readPerspective({ table: "t", operations: [["head", 1], 2, [3]] }), { ...plain, operations: [["head", 1]] });
  const view = (length: number): unknown => ({ a: "x".repeat(length - '{"a":""}'.length) });
  assert.notEqual(readPerspective({ table: "t", view: view(VIEW_LENGTH_MAX) })!.view, null);
  assert.equal(readPerspective({ table: "t", view: view(VIEW_LENGTH_MAX + 1) })!.view, null);
});
