import assert from "node:assert/strict";
import test from "node:test";
import { ProtocolError } from "../client/errors.ts";
import { decodeFlightData } from "../client/flight_data.ts";
import { readControl } from "../client/control.ts";
import { UpdateAssembler } from "../client/update_assembler.ts";
import { View } from "../client/view.ts";
import { conversations } from "./vectors.ts";

function random(seed: number): () => number {
  let state = seed;
  return () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 2 ** 32;
  };
}

/** Whether reading ends well or with the one error that is meant for it. */
function survives(read: () => unknown): void {
  try {
    read();
  } catch (error) {
    assert.ok(error instanceof ProtocolError, String((error as Error).stack));
  }
}

test("changed bytes are read or refused, nothing else", () => {
  const next = random(5);
  const recorded = ["subscriptions", "encodings", "types"].flatMap(conversations);
  for (const { answers } of recorded) {
    for (let round = 0; round < 12; round++) {
      const changed = answers.slice(0, 8).map(({ message }) => {
        const touch = (bytes: Uint8Array | null): Uint8Array | null => {
          if (bytes === null || next() < 0.4 || bytes.length === 0) return bytes;
          const copy = bytes.slice(0, next() < 0.2 ? Math.floor(next() * bytes.length) : bytes.length);
          for (let i = 0; i < 3 && copy.length > 0; i++) {
            copy[Math.floor(next() * copy.length)] = [0, 1, 0x20, 0x7f, 0x80, 0xff][Math.floor(next() * 6)]!;
          }
          return copy;
        };
        return { header: touch(message.header), metadata: touch(message.metadata), body: touch(message.body) };
      });
      survives(() => {
        const assembler = new UpdateAssembler();
        let view: View | null = null;
        for (const message of changed) {
          const update = assembler.receive(message);
          if (assembler.schema !== null) view ??= new View(assembler.schema);
          if (update !== null) view!.apply(update);
        }
      });
    }
  }
});

test("random bytes are no messages", () => {
  const next = random(9);
  for (let round = 0; round < 3000; round++) {
    const bytes = Uint8Array.from({ length: Math.floor(next() * 60) }, () => next() * 256);
    survives(() => decodeFlightData(bytes));
    survives(() => new UpdateAssembler().receive({ header: bytes, metadata: bytes, body: bytes }));
  }
});

test("texts that are no control messages", () => {
  for (const text of ["", "1", "null", "[]", '{"type":"end"}', '{"type":"error","stream":1}', '{"type":"view","stream":"1","token":"a"}']) {
    assert.throws(() => readControl(text), ProtocolError, text);
  }
  assert.equal(readControl('{"type":"later"}'), null);
  assert.deepEqual(readControl('{"type":"end","stream":3,"more":1}'), { type: "end", stream: 3 });
});
