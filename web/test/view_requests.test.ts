import assert from "node:assert/strict";
import test from "node:test";
import type { Connection, StreamHandler } from "../client/connection.ts";
import type { FlightData } from "../client/flight_data.ts";
import type { ViewRequest } from "../client/request.ts";
import { ViewSubscription } from "../client/subscription.ts";
import { LiveRows } from "../grid/live_rows.ts";
import { conversations } from "./vectors.ts";

const rows = (first: number): ViewRequest => ({ first, count: 10, isReverse: false, columns: null });

/** A connection that takes everything and says nothing. */
const SILENT = {
  isOpen: true,
  attach: ({ connected }: { connected(): void }) => {
    connected();
    return () => {};
  },
  openStream: () => ({ send() {}, acknowledge() {}, pause() {}, resume() {}, cancel() {} }),
} as unknown as Connection;

function encoded({ header, metadata, body }: FlightData): Uint8Array {
  const fields = [[2, header], [3, metadata], [1000, body]] as const;
  const parts = fields.flatMap(([number, bytes]) =>
    bytes === null ? [] : [...varint((number << 3) | 2), ...varint(bytes.length), ...bytes],
  );
  return Uint8Array.from(parts);
}

function varint(value: number): number[] {
  return value < 128 ? [value] : [(value & 127) | 128, ...varint(value >>> 7)];
}

test("rows answer a request once they are there, not when they are announced", () => {
  const conversation = conversations("viewport-changes").find(({ updates }) => updates.length > 1)!;
  const subscription = new ViewSubscription(SILENT, new Uint8Array(), { request: rows(0) });
  const messages = conversation.answers.map(({ message }) => encoded(message));
  const receiveUpdate = (): void => {
    const before = subscription.updateCount;
    while (subscription.updateCount === before) subscription.message(messages.shift()!);
  };
  receiveUpdate();
  assert.equal(subscription.isCurrent, true);
  assert.equal(subscription.change(rows(0)), false);
  assert.equal(subscription.change(rows(5)), true);
  assert.equal(subscription.isCurrent, false);
  subscription.viewBegins(Buffer.from("2").toString("base64"));
  assert.equal(subscription.isCurrent, false);
  assert.deepEqual(subscription.view!.request, rows(0));
  receiveUpdate();
  assert.equal(subscription.isCurrent, true);
  assert.deepEqual(subscription.view!.request, rows(5));
  subscription.close();
});

interface Page {
  readonly rows: LiveRows;
  /** What its stream was asked to do. */
  readonly done: string[];
  receiveUpdate(): void;
}

function page(): Page {
  const conversation = conversations("viewport-changes").find(({ updates }) => updates.length > 1)!;
  const messages = conversation.answers.map(({ message }) => encoded(message));
  const done: string[] = [];
  let handler: StreamHandler | undefined;
  const stream = Object.fromEntries(
    ["send", "pause", "resume", "cancel"].map((name) => [name, () => done.push(name)]),
  );
  const openStream = (opened: StreamHandler): unknown => {
    handler = opened;
    return { ...stream, acknowledge() {} };
  };
  let told = 0;
  const listener = { changed: () => told++, columnsChanged() {}, recovered() {}, failed() {} };
  const rows = new LiveRows({ ...SILENT, openStream } as unknown as Connection, listener, 0);
  const receiveUpdate = (): void => {
    const before = told;
    while (told === before) handler!.message(messages.shift()!);
  };
  return { rows, done, receiveUpdate };
}

const QUERY = { table: "t", operations: [] };

test("rows that are held give way to others that are asked for, which are held then", () => {
  const { rows: shown, done, receiveUpdate } = page();
  shown.show(QUERY, rows(0));
  receiveUpdate();
  shown.pause();
  shown.show(QUERY, rows(0));
  assert.deepEqual(done.splice(0), ["send", "pause"]);
  shown.show(QUERY, rows(5));
  assert.deepEqual(done.splice(0), ["send", "resume"]);
  shown.close();
});

test("rows of one cycle that are held stay, since none come for others", () => {
  const { rows: shown, done, receiveUpdate } = page();
  shown.arePassing = true;
  shown.show(QUERY, rows(0));
  receiveUpdate();
  shown.pause();
  assert.deepEqual(done.splice(0), ["send", "pause"]);
  shown.show(QUERY, rows(5));
  assert.deepEqual(done, []);
  shown.resume();
  shown.show(QUERY, rows(5));
  assert.deepEqual(done, ["resume", "send"]);
  shown.close();
});
