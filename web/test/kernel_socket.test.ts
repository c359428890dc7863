import assert from "node:assert/strict";
import test from "node:test";
import { Connection } from "../client/connection.ts";
import { KernelSocket, type Model, RESTARTED } from "../notebook/kernel_socket.ts";

globalThis.CloseEvent ??= class extends Event {
  readonly code: number;
  readonly reason: string;
  constructor(type: string, init: { code: number; reason: string }) {
    super(type);
    this.code = init.code;
    this.reason = init.reason;
  }
} as unknown as typeof CloseEvent;

interface Sent {
  page: string;
  parts: (string | null)[];
  opens?: boolean;
  close?: number;
}

/** A model without a notebook. */
class FakeModel implements Model {
  readonly sent: { content: Sent; buffers: ArrayBuffer[] }[] = [];
  readonly listeners = new Map<string, Set<(...args: never[]) => void>>();
  isGone = false;

  get(): unknown {
    return undefined;
  }

  on(event: string, listener: (...args: never[]) => void): void {
    if (!this.listeners.has(event)) this.listeners.set(event, new Set());
    this.listeners.get(event)!.add(listener);
  }

  off(event: string, listener: (...args: never[]) => void): void {
    this.listeners.get(event)?.delete(listener);
  }

  send(content: unknown, _callbacks: unknown, buffers: ArrayBuffer[] = []): void {
    if (this.isGone) throw new Error("no comm");
    this.sent.push({ content: content as Sent, buffers });
  }

  say(event: string, ...args: unknown[]): void {
    for (const listener of this.listeners.get(event) ?? []) listener(...(args as never[]));
  }
}

function opened(): { model: FakeModel; socket: KernelSocket; heard: unknown[]; page: string } {
  const model = new FakeModel();
  const socket = new KernelSocket(model);
  const heard: unknown[] = [];
  socket.onmessage = ({ data }) => heard.push(typeof data === "string" ? data : [...new Uint8Array(data)]);
  socket.onclose = ({ code, reason }) => heard.push({ code, reason });
  return { model, socket, heard, page: model.sent[0]!.content.page };
}

const turn = (): Promise<void> => new Promise((resolve) => setTimeout(resolve, 0));

test("what is sent in a turn is one message, in order", async () => {
  const { model, socket, page } = opened();
  assert.deepEqual(model.sent[0]!.content, { page, parts: [], opens: true });
  socket.send("one");
  socket.send(Uint8Array.of(9, 1, 2, 9).subarray(1, 3));
  socket.send("two");
  await turn();
  assert.deepEqual(model.sent[1]!.content, { page, parts: ["one", null, "two"] });
  assert.deepEqual([...new Uint8Array(model.sent[1]!.buffers[0]!)], [1, 2]);
  socket.send("last words");
  socket.close();
  assert.deepEqual(model.sent[2]!.content.parts, ["last words"]);
  assert.equal(model.sent[3]!.content.close, 1000);
  socket.send("too late");
  await turn();
  assert.equal(model.sent.length, 4);
  assert.equal(model.listeners.get("msg:custom")!.size, 0);
});

test("it hears its own messages alone", () => {
  const { model, socket, heard, page } = opened();
  model.say("msg:custom", { page: "another", number: 0, parts: ["no"] }, []);
  model.say("msg:custom", null, []);
  model.say("msg:custom", { page, number: 0, parts: ["a", null] }, [new DataView(Uint8Array.of(0, 5, 6).buffer, 1)]);
  model.say("msg:custom", { page, number: 1, parts: [], close: [1001, "gone"] }, []);
  assert.deepEqual(heard, ["a", [5, 6], { code: 1001, reason: "gone" }]);
  socket.close();
});

test("a message that was left out ends it, and the kernel is told", () => {
  const { model, heard, page } = opened();
  model.say("msg:custom", { page, number: 1, parts: ["a"] }, []);
  assert.deepEqual(heard, [{ code: 4000, reason: "the notebook has left messages of the kernel out" }]);
  assert.equal(model.sent.at(-1)!.content.close, 4000);
});

test("a kernel that has gone is gone for good", async () => {
  const { model, heard } = opened();
  model.say("comm_live_update");
  assert.deepEqual(heard, [{ code: 4410, reason: RESTARTED }]);
  const gone = new FakeModel();
  gone.isGone = true;
  const connection = new Connection("kernel:", { openSocket: () => new KernelSocket(gone) });
  connection.open();
  await turn();
  assert.equal(connection.state, "ended");
  assert.equal(connection.reason, RESTARTED);
  // What pauses and goes on does not try again; a user may.
  connection.pause();
  connection.resume();
  assert.equal(connection.state, "ended");
  gone.isGone = false;
  connection.retry();
  await turn();
  assert.equal(gone.sent[0]!.content.opens, true);
  assert.match(gone.sent[1]!.content.parts[0]!, /hello/);
  connection.close();
});
