import assert from "node:assert/strict";
import test from "node:test";
import type { Cell } from "../client/cells.ts";
import { BatchReader } from "../client/columns.ts";
import { decodeFlightData } from "../client/flight_data.ts";
import { encodeSubscription } from "../client/request.ts";
import { decodeMessage, readSchema } from "../client/schema.ts";
import { UpdateAssembler } from "../client/update_assembler.ts";
import { View } from "../client/view.ts";
import { FlatTable } from "../client/flatbuffer.ts";
import { conversations, keysOf } from "./vectors.ts";

const NULLS = new Set<unknown>([-128, -32768, 65535, -(2 ** 31), -(2n ** 63n), -3.4028234663852886e38, -1.7976931348623157e308]);

/** A cell in the notation of the recordings; Deephaven's values for null are null. */
function recorded(cell: Cell | undefined): unknown {
  if (cell === undefined || NULLS.has(cell)) return null;
  if (typeof cell === "bigint") return Number.isSafeInteger(Number(cell)) ? Number(cell) : String(cell);
  if (typeof cell === "number" && !Number.isFinite(cell)) return String(cell);
  if (cell instanceof Uint8Array) return { hex: Buffer.from(cell).toString("hex") };
  if (Array.isArray(cell)) return cell.map(recorded);
  return cell;
}

const FILES = ["subscriptions", "viewport-changes", "natural-tables", "encodings"];

for (const conversation of FILES.flatMap(conversations)) {
  const options = conversation.requests[0].decoded.subscription_request?.options;
  const asksForLists = options?.columns_as_list;
  if (asksForLists || !conversation.updates.some((update) => "view_row_keys" in update)) continue;
  test(`view of ${conversation.name}`, () => {
    const assembler = new UpdateAssembler();
    let view: View | null = null;
    let columns: number[] | null = null;
    let metadataAt = 0;
    let checked = 0;
    for (const { i, message } of conversation.answers) {
      if (message.metadata?.length) metadataAt = i;
      const update = assembler.receive(message);
      if (assembler.schema !== null) view ??= new View(assembler.schema);
      if (update === null) continue;
      view!.apply(update);
      if (update.metadata.isSnapshot) columns = update.metadata.columns as number[] | null;
      const expected = conversation.updates.find((one) => one.metadata_message === metadataAt);
      if (expected === undefined) continue;
      checked++;
      const truth = conversation.truth.find((one) => one.step === expected.truth_step);
      const keys = keysOf(truth.row_keys);
      assert.equal(view!.tableSize, keys.length);
      assert.equal(view!.rows.length, expected.view_row_keys.length);
      view!.schema.fields.forEach((field, column) => {
        if (columns !== null && !columns.includes(column)) return;
        const values = expected.view_row_keys.map((key: number) => truth.columns[field.name][keys.indexOf(Number(key))]);
        const cells = view!.rows.map((row) => recorded(row.cells[column]));
        assert.deepEqual(cells, values, `${field.name} at step ${expected.truth_step}`);
      });
    }
    assert.equal(checked, conversation.updates.length);
  });
}

const TEXT_TYPES = new Set(["Ld", "Lt", "Du", "Pe", "Zd", "Bd", "Bi"]);

for (const conversation of conversations("types")) {
  if (!conversation.name.includes("plain") || conversation.name.includes("nothing")) continue;
  test(`every type: ${conversation.name}`, () => {
    const [first, ...batches] = conversation.answers;
    const schema = readSchema(decodeMessage(first!.message.header!).table);
    const { header, body } = batches[0]!.message;
    const reader = new BatchReader(decodeMessage(header!).table, body!, new Map());
    const truth = conversation.truth[0];
    for (const field of schema.fields) {
      const column = reader.column(field);
      const cells = Array.from({ length: column.length }, (_, i) => column.cell(i));
      const expected: unknown[] = truth.columns[field.name];
      if (TEXT_TYPES.has(field.name)) {
        const isNull = (value: unknown): boolean => value === null;
        assert.deepEqual(cells.map((cell) => recorded(cell) === null), expected.map(isNull), field.name);
      } else {
        const isChar = field.type.kind === "int" && !field.type.isSigned;
        const shown = (cell: Cell): unknown => {
          const value = recorded(cell);
          return isChar && typeof value === "number" ? String.fromCharCode(value) : value;
        };
        if (field.name === "Ca") continue; // characters inside lists
        assert.deepEqual(cells.map(shown), expected, field.name);
      }
    }
  });
}

test("a request says what it was given", () => {
  const bytes = encodeSubscription(
    new TextEncoder().encode("s/small"),
    { first: 0, count: 10, isReverse: true, columns: [0, 2] },
    { options: { intervalMs: 250, listLengthMax: 5 }, token: Uint8Array.of(1, 2) },
  );
  const { metadata, header } = decodeFlightData(bytes);
  assert.equal(header, null);
  const wrapper = FlatTable.root(metadata!);
  assert.equal(wrapper.uint32(4), 0x6e687064);
  assert.equal(wrapper.int8(6), 5);
  const request = FlatTable.root(wrapper.bytes(8)!.slice());
  assert.equal(request.text(4), "s/small");
  assert.deepEqual([...request.bytes(6)!], [5]);
  assert.equal(Buffer.from(request.bytes(8)!).toString("hex"), "1c0200f720");
  assert.equal(request.bool(12), true);
  assert.deepEqual([...request.bytes(14)!], [1, 2]);
  const options = request.table(10)!;
  assert.deepEqual([options.int32(8), options.int64(16), options.bool(6)], [250, 5n, false]);
});
