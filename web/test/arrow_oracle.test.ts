// The decoder beside the reference implementation of Arrow, on tables made at random.
import assert from "node:assert/strict";
import test from "node:test";
import * as arrow from "apache-arrow";
import type { Cell } from "../client/cells.ts";
import { type Column, BatchReader } from "../client/columns.ts";
import { decodeMessage, readSchema } from "../client/schema.ts";
import type { Schema } from "../client/arrow_type.ts";

function random(seed: number): () => number {
  let state = seed;
  return () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 2 ** 32;
  };
}

/** The messages of an IPC stream: header and body. */
function* messages(stream: Uint8Array): Generator<{ header: Uint8Array; body: Uint8Array }> {
  const view = new DataView(stream.buffer, stream.byteOffset, stream.byteLength);
  for (let at = 0; at + 8 <= stream.length; ) {
    const length = view.getInt32(at + 4, true);
    if (length === 0) return;
    const header = stream.slice(at + 8, at + 8 + length);
    const bodyLength = Number(arrowBodyLength(header));
    at += 8 + length;
    yield { header, body: stream.slice(at, at + bodyLength) };
    at += bodyLength;
  }
}

function arrowBodyLength(header: Uint8Array): bigint {
  const view = new DataView(header.buffer, header.byteOffset);
  const root = view.getUint32(0, true);
  const vtable = root - view.getInt32(root, true);
  const slot = view.getUint16(vtable, true) > 10 ? view.getUint16(vtable + 10, true) : 0;
  return slot ? view.getBigInt64(root + slot, true) : 0n;
}

function decoded(stream: Uint8Array): { schema: Schema; columns: Column[] } {
  const dictionaries = new Map<bigint, Column>();
  let schema: Schema | null = null;
  let columns: Column[] = [];
  for (const { header, body } of messages(stream)) {
    const { kind, table } = decodeMessage(header);
    if (kind === "schema") schema = readSchema(table);
    else if (kind === "batch") {
      const reader = new BatchReader(table, body, dictionaries);
      columns = schema!.fields.map((field) => reader.column(field));
    } else {
      const field = schema!.fields.find(({ dictionary }) => dictionary?.id === table.int64(4))!;
      dictionaries.set(table.int64(4), new BatchReader(table.table(6)!, body, dictionaries).column(field, "values"));
    }
  }
  return { schema: schema!, columns };
}

function plain(value: unknown): unknown {
  if (value === null || value === undefined) return null;
  if (value instanceof Uint8Array) return [...value];
  if (value instanceof arrow.Vector) return [...value].map(plain);
  return value;
}

const next = random(17);
const rows = 257;
const maybe = <T>(make: () => T): (T | null)[] =>
  Array.from({ length: rows }, () => (next() < 0.2 ? null : make()));
const int64 = (): bigint => BigInt.asIntN(64, (BigInt(Math.floor(next() * 2 ** 32)) << 32n) | BigInt(Math.floor(next() * 2 ** 32)));

const cases: [string, arrow.DataType, (string | number | bigint | boolean | Uint8Array | number[] | null)[]][] = [
  ["int8", new arrow.Int8(), maybe(() => Math.floor(next() * 256) - 128)],
  ["uint8", new arrow.Uint8(), maybe(() => Math.floor(next() * 256))],
  ["int16", new arrow.Int16(), maybe(() => Math.floor(next() * 65536) - 32768)],
  ["uint16", new arrow.Uint16(), maybe(() => Math.floor(next() * 65536))],
  ["int32", new arrow.Int32(), maybe(() => Math.floor((next() - 0.5) * 2 ** 32))],
  ["uint32", new arrow.Uint32(), maybe(() => Math.floor(next() * 2 ** 32))],
  ["int64", new arrow.Int64(), maybe(int64)],
  ["uint64", new arrow.Uint64(), maybe(() => BigInt.asUintN(64, int64()))],
  ["float32", new arrow.Float32(), maybe(() => Math.fround(next() * 1e9))],
  ["float64", new arrow.Float64(), maybe(() => (next() < 0.1 ? NaN : (next() - 0.5) * 1e300))],
  ["bool", new arrow.Bool(), maybe(() => next() < 0.5)],
  ["text", new arrow.Utf8(), maybe(() => ["", "é", "世界", "🦀", "שלום"][Math.floor(next() * 5)]!.repeat(Math.floor(next() * 4)))],
  ["binary", new arrow.Binary(), maybe(() => Uint8Array.from({ length: Math.floor(next() * 5) }, () => next() * 256))],
  ["dictionary", new arrow.Dictionary(new arrow.Utf8(), new arrow.Int32()), maybe(() => `v${Math.floor(next() * 9)}`)],
  ["list", new arrow.List(new arrow.Field("item", new arrow.Int32(), true)), maybe(() => Array.from({ length: Math.floor(next() * 4) }, () => Math.floor(next() * 100)))],
  ["fixed list", new arrow.FixedSizeList(2, new arrow.Field("item", new arrow.Float64(), true)), maybe(() => [next(), next()])],
];

for (const [name, type, values] of cases) {
  test(`Arrow reads the same: ${name}`, () => {
    const vector = arrow.vectorFromArray(values as never[], type as never) as arrow.Vector;
    const table = new arrow.Table({ column: vector });
    const { columns } = decoded(arrow.tableToIPC(table, "stream"));
    const column = columns[0]!;
    const cells = Array.from({ length: column.length }, (_, i) => plain(column.cell(i) as Cell));
    assert.deepEqual(cells, values.map(plain));
    assert.deepEqual(cells, [...table.getChild("column")!].map(plain));
  });
}

test("timestamps keep their nanoseconds, decimals all their digits", () => {
  const nanos = [1_700_000_000_123_456_789n, -1n, 0n, 2n ** 63n - 1n];
  const stamps = new arrow.Table({
    column: arrow.makeVector({ type: new arrow.TimestampNanosecond(), data: BigInt64Array.from(nanos) } as never) as arrow.Vector,
  });
  const { schema, columns } = decoded(arrow.tableToIPC(stamps, "stream"));
  assert.deepEqual(schema.fields[0]!.type, { kind: "timestamp", unit: "ns", zone: null });
  assert.deepEqual(nanos.map((_, i) => columns[0]!.cell(i)), nanos);
  const unscaled = [12345678901234567890123456789012345n, -1n, 0n];
  const words = new Uint32Array(unscaled.flatMap((value) => [0n, 32n, 64n, 96n].map((shift) => Number(BigInt.asUintN(32, value >> shift)))));
  const decimals = new arrow.Table({
    column: arrow.makeVector({ type: new arrow.Decimal(3, 38, 128), data: words } as never) as arrow.Vector,
  });
  const read = decoded(arrow.tableToIPC(decimals, "stream"));
  assert.deepEqual(unscaled.map((_, i) => read.columns[0]!.cell(i)), unscaled);
});
