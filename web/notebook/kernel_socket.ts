import { ENDED_CODE, type Socket } from "../client/connection.ts";

/** The model of the widget, as far as it is used here: it sends to the kernel and hears from it. */
export interface Model {
  get(name: string): unknown;
  on(event: string, listener: (...args: never[]) => void): void;
  off(event: string, listener: (...args: never[]) => void): void;
  send(content: unknown, callbacks?: unknown, buffers?: ArrayBuffer[]): void;
}

/**
 * What the kernel sends. `parts` are messages of the protocol in their order: texts, and null for
 * each binary one, which is the next of the buffers.
 */
interface FromKernel {
  readonly page: string;
  readonly number: number;
  readonly parts: readonly (string | null)[];
  readonly close?: readonly [code: number, reason: string];
}

const ALIVE_MS = 60_000;
const LOST_CODE = 4000;
export const RESTARTED = "The kernel was restarted or has ended. Run the cell again for live rows.";

function isFromKernel(content: unknown): content is FromKernel {
  const found = content as Partial<FromKernel> | null;
  return typeof found === "object" && typeof found?.page === "string" && Array.isArray(found.parts);
}

/**
 * A socket that ends in the kernel: the messages of `barrage-flight.v1` as messages of the widget.
 * All views of a widget hear everything, so each socket has a name. What the kernel sends is
 * numbered, for servers of notebooks leave messages out when there are many: a gap ends the socket.
 */
export class KernelSocket implements Socket {
  binaryType: BinaryType = "arraybuffer";
  onopen: Socket["onopen"] = null;
  onmessage: Socket["onmessage"] = null;
  onclose: Socket["onclose"] = null;

  private readonly page = crypto.getRandomValues(new Uint32Array(4)).join("-"); // also where a page is not secure
  private readonly alive = setInterval(() => this.put([], []), ALIVE_MS);
  private parts: (string | null)[] = [];
  private buffers: ArrayBuffer[] = [];
  private received = 0;
  private isOver = false;

  constructor(private readonly model: Model) {
    model.on("msg:custom", this.heard);
    model.on("comm_live_update", this.left);
    this.put([], [], { opens: true });
    queueMicrotask(() => this.onopen?.(new Event("open")));
  }

  send(data: string | Uint8Array<ArrayBuffer>): void {
    if (this.isOver) return;
    if (this.parts.length === 0) queueMicrotask(() => this.flush());
    if (typeof data === "string") this.parts.push(data);
    else {
      this.parts.push(null);
      this.buffers.push(data.buffer.slice(data.byteOffset, data.byteOffset + data.byteLength));
    }
  }

  close(code = 1000): void {
    if (this.isOver) return;
    this.flush();
    this.put([], [], { close: code });
    this.end();
  }

  private flush(): void {
    const { parts, buffers } = this;
    this.parts = [];
    this.buffers = [];
    if (parts.length > 0 && !this.isOver) this.put(parts, buffers);
  }

  /** One message of the widget, which holds all that was sent in a turn. */
  private put(
    parts: readonly (string | null)[],
    buffers: ArrayBuffer[],
    more: { opens?: true; close?: number } = {},
  ): void {
    try {
      this.model.send({ page: this.page, parts, ...more }, undefined, buffers);
    } catch {
      queueMicrotask(() => this.left()); // not before somebody listens
    }
  }

  private readonly heard = (content: unknown, buffers: readonly DataView[]): void => {
    if (this.isOver || !isFromKernel(content) || content.page !== this.page) return;
    if (content.number !== this.received) {
      this.put([], [], { close: LOST_CODE });
      this.lost(LOST_CODE, "the notebook has left messages of the kernel out");
      return;
    }
    this.received++;
    let next = 0;
    for (const part of content.parts) {
      const data = part ?? copied(buffers[next++]);
      this.onmessage?.(new MessageEvent("message", { data }));
    }
    if (content.close !== undefined) this.lost(...content.close);
  };

  /** The model has lost the kernel, which is never back: another one knows nothing of it. */
  private readonly left = (): void => this.lost(ENDED_CODE, RESTARTED);

  private lost(code: number, reason: string): void {
    if (this.isOver) return;
    this.end();
    this.onclose?.(new CloseEvent("close", { code, reason }));
  }

  private end(): void {
    this.isOver = true;
    clearInterval(this.alive);
    this.model.off("msg:custom", this.heard);
    this.model.off("comm_live_update", this.left);
  }
}

function copied(view: DataView | undefined): ArrayBuffer {
  if (view === undefined) return new ArrayBuffer(0);
  return view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength) as ArrayBuffer;
}
