import assert from "node:assert/strict";
import test from "node:test";
import { Connection, type Socket, type Stream } from "../client/connection.ts";

/** What the server says and hears. */
class FakeSocket implements Socket {
  binaryType: BinaryType = "blob";
  onopen: ((event: Event) => void) | null = null;
  onmessage: ((event: MessageEvent<string | ArrayBuffer>) => void) | null = null;
  onclose: ((event: CloseEvent) => void) | null = null;
  readonly heard: Record<string, unknown>[] = [];

  send(data: string | Uint8Array<ArrayBuffer>): void {
    if (typeof data === "string") this.heard.push(JSON.parse(data) as Record<string, unknown>);
  }

  close(): void {}

  say(message: object | number[]): void {
    const data = Array.isArray(message) ? new Uint8Array(message).buffer : JSON.stringify(message);
    this.onmessage?.({ data } as MessageEvent<string | ArrayBuffer>);
  }
}

interface Opened {
  socket: FakeSocket;
  connection: Connection;
  stream: Stream;
  told: unknown[];
  /** Run with each message. */
  then: { message: () => void };
}

function opened(): Opened {
  const socket = new FakeSocket();
  const connection = new Connection("fake:", { openSocket: () => socket, random: () => 1 });
  connection.open();
  socket.onopen!(new Event("open"));
  socket.say({ type: "welcome", version: "1", caller: { name: "ann", roles: [] } });
  const told: unknown[] = [];
  const then = { message: (): void => {} };
  const stream: Stream = connection.openStream(
    {
      viewBegins: (token) => told.push(token),
      message: (bytes) => {
        told.push([...bytes]);
        stream.acknowledge();
        then.message();
      },
      ended: (error) => told.push(error?.status ?? "ended"),
    },
    { method: "DoExchange" },
  );
  return { socket, connection, stream, told, then };
}

const turn = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

test("what comes after a pause is told in order when the stream goes on", async () => {
  const { socket, stream, told, connection } = opened();
  socket.say([1, 10]);
  stream.pause();
  socket.say([1, 11]);
  socket.say({ type: "view", stream: 1, token: "dA==" });
  socket.say([1, 12]);
  await turn();
  assert.deepEqual(told, [[10]]);
  // What nobody has dealt with is not acknowledged.
  const acknowledged = (): unknown[] => socket.heard.filter(({ type }) => type === "ack").map(({ streams }) => streams);
  assert.deepEqual(acknowledged(), [{ 1: 1 }]);
  stream.resume();
  await turn();
  assert.deepEqual(told, [[10], [11], "dA==", [12]]);
  assert.deepEqual(acknowledged(), [{ 1: 1 }, { 1: 3 }]);
  socket.say([1, 13]);
  assert.deepEqual(told.at(-1), [13]);
  connection.close();
});

test("who pauses again while it is told what was held is told no more", () => {
  const { socket, stream, told, then, connection } = opened();
  stream.pause();
  socket.say([1, 11]);
  socket.say([1, 12]);
  then.message = () => stream.pause();
  stream.resume();
  assert.deepEqual(told, [[11]]);
  assert.deepEqual(socket.heard.at(-1), { type: "pause", streams: [1] });
  socket.say([1, 13]);
  then.message = () => {};
  stream.resume();
  assert.deepEqual(told, [[11], [12], [13]]);
  connection.close();
});

test("the end of a paused stream is told at once, and nothing after it", () => {
  const { socket, stream, told, connection } = opened();
  stream.pause();
  socket.say([1, 11]);
  socket.say({ type: "error", stream: 1, code: "NOT_FOUND", message: "it was dropped" });
  assert.deepEqual(told, ["NOT_FOUND"]);
  stream.resume();
  assert.deepEqual(told, ["NOT_FOUND"]);
  connection.close();
});

test("a page that is hidden does not make a stream go on that somebody has paused", () => {
  const { socket, stream, connection } = opened();
  stream.staysAwake = true;
  stream.pause();
  connection.pause();
  assert.equal(stream.isPaused, true);
  assert.deepEqual(socket.heard.slice(-2), [{ type: "pause", streams: [1] }, { type: "pause" }]);
  connection.resume();
  assert.deepEqual(socket.heard.at(-1), { type: "pause", streams: [1] });
  stream.resume();
  connection.pause();
  assert.deepEqual(socket.heard.at(-1), { type: "resume", streams: [1] });
  connection.close();
});

test("in whatever order it is paused, hidden and told, nothing is lost, turned round or told while paused", () => {
  for (let seed = 1; seed <= 300; seed++) {
    let state = seed;
    const random = (below: number): number => {
      state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
      return Math.floor((state / 2 ** 32) * below);
    };
    const { socket, stream, told, then, connection } = opened();
    stream.staysAwake = random(2) === 0;
    const said: unknown[] = [];
    then.message = () => {
      if (random(5) === 0) stream.pause();
    };
    for (let step = 0; step < 60; step++) {
      const before = told.length;
      const wasPaused = stream.isPaused;
      const what = random(6);
      if (what === 0) stream.pause();
      else if (what === 1) stream.resume();
      else if (what === 2) connection.pause();
      else if (what === 3) connection.resume();
      else if (what === 4) {
        said.push(`${step}`);
        socket.say({ type: "view", stream: 1, token: `${step}` });
      } else {
        said.push([step]);
        socket.say([1, step]);
      }
      if (wasPaused && what !== 1) assert.equal(told.length, before, `seed ${seed}`);
      assert.deepEqual(told, said.slice(0, told.length), `seed ${seed}`);
      if (!stream.isPaused) assert.equal(told.length, said.length, `seed ${seed}`);
    }
    then.message = () => {};
    stream.resume();
    assert.deepEqual(told, said, `seed ${seed}`);
    connection.close();
  }
});
