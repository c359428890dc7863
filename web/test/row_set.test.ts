import assert from "node:assert/strict";
import test from "node:test";
import { ProtocolError } from "../client/errors.ts";
import { decodeBitSet, decodeRowSet, encodeBitSet, encodeRowSet, RowSet } from "../client/row_set.ts";
import { fromHex, readVectors, toHex } from "./vectors.ts";

const file = readVectors("rowset.json");
const isPosition = (ranges: unknown[]): boolean => ranges.every((bound) => Number.isSafeInteger(Number(bound)));

for (const { id, ranges, encoded_hex } of file.vectors) {
  test(`row set ${id}`, () => {
    if (isPosition(ranges)) {
      const bounds = ranges.map(Number);
      assert.deepEqual(decodeRowSet(fromHex(encoded_hex)).bounds, bounds);
      assert.equal(toHex(encodeRowSet(new RowSet(bounds))), encoded_hex);
    } else {
      assert.throws(() => decodeRowSet(fromHex(encoded_hex)), /beyond position 2\^53 - 1/);
    }
  });
}

for (const { id, ranges, hex } of file.decode_only) {
  test(`row set that is not canonical: ${id}`, () => {
    assert.deepEqual(decodeRowSet(fromHex(hex)).bounds, ranges.map(Number));
  });
}

for (const { id, hex } of file.malformed) {
  test(`row set that is refused: ${id}`, () => {
    assert.throws(() => decodeRowSet(fromHex(hex)), ProtocolError);
  });
}

for (const { id, columns, encoded_hex } of readVectors("bitsets.json").vectors) {
  test(`column bit set ${id}`, () => {
    assert.equal(toHex(encodeBitSet(columns)), encoded_hex);
    assert.deepEqual(decodeBitSet(fromHex(encoded_hex)), columns);
  });
}

test("positions of sets", () => {
  const rows = RowSet.of([7, 1, 2, 3, 9, 8]);
  assert.deepEqual(rows.bounds, [1, 3, 7, 9]);
  assert.deepEqual([...rows], [1, 2, 3, 7, 8, 9]);
  assert.equal(rows.size, 6);
  assert.deepEqual([0, 1, 3, 4, 9, 10].map((row) => rows.has(row)), [false, true, true, false, true, false]);
  assert.equal(RowSet.span(99_999_900, 100_000_000).size, 100);
  assert.ok(RowSet.span(5, 5).equals(RowSet.EMPTY));
});
