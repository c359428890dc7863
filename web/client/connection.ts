import { ByteReader, ByteWriter } from "./bytes.ts";
import { type Caller, type Control, readControl } from "./control.ts";
import { ProtocolError, ServerError } from "./errors.ts";
import { Listeners } from "./listeners.ts";

export const SUB_PROTOCOL = "barrage-flight.v1";

/**
 * - `connecting`, `reconnecting`: no socket yet, or not any more;
 * - `live`: what is shown is what the server has;
 * - `stale`: the server has not been heard of for a while;
 * - `refused`: it is of no use to try again with what the page has;
 * - `ended`: what served the page is not there any more, such as the kernel of a notebook;
 * - `closed`: by the page.
 */
export type ConnectionState =
  | "connecting"
  | "live"
  | "stale"
  | "reconnecting"
  | "refused"
  | "ended"
  | "closed";

/**
 * What carries the messages of the protocol, in order: a WebSocket, or whatever else can. The four
 * functions are set by the connection.
 */
export interface Socket {
  binaryType: BinaryType;
  onopen: ((event: Event) => void) | null;
  onmessage: ((event: MessageEvent<string | ArrayBuffer>) => void) | null;
  onclose: ((event: CloseEvent) => void) | null;
  send(data: string | Uint8Array<ArrayBuffer>): void;
  close(code?: number): void;
}

/** What a stream tells whoever opened it. */
export interface StreamHandler {
  headers?(headers: Readonly<Record<string, string>>): void;
  /** From now on updates answer the request with this token, in base64. */
  viewBegins?(token: string): void;
  /** One message; it is acknowledged by the receiver, with `Stream.acknowledge`. */
  message(bytes: Uint8Array): void;
  /** Its end by the server: null when all is well. */
  ended(error: ServerError | null): void;
}

export interface StreamOptions {
  readonly method: "DoExchange" | "DoGet";
  readonly headers?: Readonly<Record<string, string>>;
  readonly window?: number;
  /** Whether it goes on while the page is not seen. */
  readonly staysAwake?: boolean;
}

/** Something that wants a stream as long as there is a connection. */
export interface Attached {
  connected(): void;
  lost(reason: string): void;
}

export interface ConnectionOptions {
  /** What the `authorization` header would be; without it the page's cookie counts. */
  readonly authorization?: string;
  /** Opens what carries the messages; without it a WebSocket. */
  readonly openSocket?: (url: string, protocol: string) => Socket;
  readonly random?: () => number;
}

/** By what a socket that is none of the network says that it will never be there again. */
export const ENDED_CODE = 4410;

/** No use in trying again: see "How sockets end" in the protocol's text. */
const FINAL_CODES: ReadonlySet<number> = new Set([1002, 1007, 1009, 4400, 4401, 4403]);

const RETRY_FIRST_MS = 250;
const RETRY_MAX_MS = 8_000;
const SILENCE_MS = 10_000;
const ANSWER_MS = 5_000;
const HEARTBEAT = "barrage.boards";

interface Waiting {
  resolve(body: unknown): void;
  reject(error: Error): void;
}

/** One call over the socket. */
export class Stream {
  received = 0;
  isPaused = false;
  /** Whether it goes on while the page is not seen. */
  staysAwake = false;
  /** What came after `pause`, because the server had not heard of it yet; at most a window full. */
  readonly held: (() => void)[] = [];

  constructor(
    private readonly connection: Connection,
    readonly number: number,
    readonly handler: StreamHandler,
  ) {}

  send(bytes: Uint8Array): void {
    this.connection.sendData(this.number, bytes);
  }

  /** Say that all messages so far have been dealt with. */
  acknowledge(): void {
    this.connection.acknowledge(this);
  }

  /** Tell the handler nothing more but the end, and have the server send nothing. */
  pause(): void {
    this.isPaused = true;
    this.connection.sendControl({ type: "pause", streams: [this.number] });
  }

  resume(): void {
    this.isPaused = false;
    this.connection.release(this);
  }

  halfClose(): void {
    this.connection.sendControl({ type: "half_close", stream: this.number });
  }

  cancel(): void {
    this.connection.cancel(this);
  }
}

/**
 * One socket of a page, opened again whenever it is lost. Subscriptions attach themselves to it;
 * single calls fail when the socket does.
 */
export class Connection {
  state: ConnectionState = "connecting";
  /** Why the state is what it is, for people. */
  reason = "";
  caller: Caller | null = null;
  serverVersion = "";
  bytesReceived = 0;
  readonly changed = new Listeners<Connection>();

  private socket: Socket | null = null;
  private isWelcome = false;
  private attempts = 0;
  private timer: ReturnType<typeof setTimeout> | undefined;
  private heartbeat: ReturnType<typeof setInterval> | undefined;
  private heardAt = 0;
  private nextStream = 1;
  private nextCall = 1;
  private isPaused = false;
  private readonly streams = new Map<number, Stream>();
  private readonly calls = new Map<number, Waiting>();
  private readonly attached = new Set<Attached>();
  private acknowledgements = new Map<number, number>();

  constructor(
    readonly url: string,
    private readonly options: ConnectionOptions = {},
  ) {}

  /** Whether calls and streams can be opened now. */
  get isOpen(): boolean {
    return this.isWelcome;
  }

  /** Open the socket; done again by itself until `close`. */
  open(): void {
    if (this.socket !== null || this.state === "closed") return;
    clearTimeout(this.timer);
    const opened =
      this.options.openSocket?.(this.url, SUB_PROTOCOL) ?? new WebSocket(this.url, SUB_PROTOCOL);
    this.socket = opened;
    opened.binaryType = "arraybuffer";
    opened.onopen = () => {
      const { authorization } = this.options;
      opened.send(JSON.stringify({ type: "hello", ...(authorization ? { authorization } : {}) }));
    };
    opened.onmessage = ({ data }: MessageEvent<string | ArrayBuffer>) => {
      this.heardAt = Date.now();
      this.reading(() => {
        if (typeof data === "string") this.receiveControl(data);
        else this.receiveData(new Uint8Array(data));
      });
    };
    opened.onclose = ({ code, reason }: CloseEvent) => {
      const why = reason || `the connection ended (${code})`;
      if (code === ENDED_CODE) this.lost(why, "ended");
      else this.lost(why, FINAL_CODES.has(code) ? "refused" : null);
    };
    this.heartbeat = setInterval(() => this.checkHeard(), 1_000);
    this.heardAt = Date.now();
  }

  /** End the socket and everything on it. */
  close(): void {
    this.enter("closed", "");
    this.detachSocket(1000);
    clearTimeout(this.timer);
    this.endAll("the connection was closed");
  }

  /** Try again at once. */
  retry(): void {
    if (this.state === "closed" || this.isWelcome) return;
    this.attempts = 0;
    this.detachSocket(1000);
    this.open();
  }

  attach(attached: Attached): () => void {
    this.attached.add(attached);
    if (this.isWelcome) attached.connected();
    return () => this.attached.delete(attached);
  }

  /** Have the server send nothing on any stream until `resume`: the page is not seen. */
  pause(): void {
    this.isPaused = true;
    if (!this.isWelcome) return;
    this.sendControl({ type: "pause" });
    for (const stream of this.streams.values()) {
      if (stream.staysAwake && !stream.isPaused) stream.resume();
    }
  }

  resume(): void {
    this.isPaused = false;
    if (!this.isWelcome) {
      if (this.state !== "ended") this.retry();
      return;
    }
    this.sendControl({ type: "resume" });
    for (const stream of this.streams.values()) if (stream.isPaused) stream.pause();
  }

  /** Run an action of the server. */
  call(action: string, body?: unknown): Promise<unknown> {
    if (!this.isWelcome) {
      return Promise.reject(new ServerError("UNAVAILABLE", this.reason || "not connected yet"));
    }
    const call = this.nextCall++;
    return new Promise((resolve, reject) => {
      this.calls.set(call, { resolve, reject });
      this.sendControl({ type: "call", call, action, ...(body === undefined ? {} : { body }) });
    });
  }

  openStream(handler: StreamHandler, { staysAwake = false, ...options }: StreamOptions): Stream {
    const stream = new Stream(this, this.nextStream++, handler);
    stream.staysAwake = staysAwake;
    this.streams.set(stream.number, stream);
    this.sendControl({ type: "open", stream: stream.number, ...options });
    if (this.isPaused && staysAwake) stream.resume();
    return stream;
  }

  sendControl(message: Readonly<Record<string, unknown>>): void {
    this.socket?.send(JSON.stringify(message));
  }

  sendData(stream: number, bytes: Uint8Array): void {
    const writer = new ByteWriter();
    writer.varint(stream);
    writer.append(bytes);
    this.socket?.send(writer.finished());
  }

  acknowledge(stream: Stream): void {
    if (!this.streams.has(stream.number)) return;
    if (this.acknowledgements.size === 0) queueMicrotask(() => this.flushAcknowledgements());
    this.acknowledgements.set(stream.number, stream.received);
  }

  cancel(stream: Stream): void {
    if (!this.streams.delete(stream.number)) return;
    this.acknowledgements.delete(stream.number);
    if (this.isWelcome) this.sendControl({ type: "cancel", stream: stream.number });
  }

  /** Tell the handler of a stream what was held while it was paused, and have the server go on. */
  release(stream: Stream): void {
    while (stream.held.length > 0 && !stream.isPaused) this.reading(stream.held.shift()!);
    // Whoever was told may have paused it again.
    if (!stream.isPaused) this.sendControl({ type: "resume", streams: [stream.number] });
  }

  private reading(receive: () => void): void {
    try {
      receive();
    } catch (error) {
      // Whatever is wrong with it, the next socket may be right.
      this.drop(`the server's message cannot be read: ${String(error)}`);
    }
  }

  /** Give this socket up, as if it had been lost. */
  drop(reason: string): void {
    this.detachSocket(4000);
    this.lost(reason, null);
  }

  private flushAcknowledgements(): void {
    const streams = Object.fromEntries(this.acknowledgements);
    this.acknowledgements = new Map();
    if (this.isWelcome && Object.keys(streams).length) this.sendControl({ type: "ack", streams });
  }

  private receiveData(bytes: Uint8Array): void {
    this.bytesReceived += bytes.length;
    const reader = new ByteReader(bytes);
    const stream = this.streams.get(reader.varint());
    if (stream === undefined) return; // cancelled meanwhile
    const message = reader.rest();
    this.whenGoing(stream, () => {
      stream.received++;
      this.guarded(stream, () => stream.handler.message(message));
    });
  }

  /** Now, or when the stream is not paused any more; never, if it has ended by then. */
  private whenGoing(stream: Stream, receive: () => void): void {
    if (!stream.isPaused) {
      receive();
      return;
    }
    stream.held.push(() => {
      if (this.streams.get(stream.number) === stream) receive();
    });
  }

  /** A stream that cannot be read ends; the others go on. */
  private guarded(stream: Stream, receive: () => void): void {
    try {
      receive();
    } catch (error) {
      if (!(error instanceof ProtocolError)) throw error;
      stream.cancel();
      stream.handler.ended(new ServerError("DATA_LOSS", error.message));
    }
  }

  private receiveControl(json: string): void {
    this.bytesReceived += json.length;
    const message = readControl(json);
    if (message === null) return;
    if (message.type === "welcome") this.welcome(message);
    else if (message.type === "result") this.settle(message.call, (call) => call.resolve(message.body));
    else if (message.type === "error" && message.call !== undefined) {
      const error = new ServerError(message.code, message.message);
      this.settle(message.call, (call) => call.reject(error));
    } else this.tellStream(message);
  }

  private tellStream(message: Control): void {
    const stream = "stream" in message ? this.streams.get(message.stream ?? 0) : undefined;
    if (stream === undefined) return;
    if (message.type === "headers") stream.handler.headers?.(message.headers);
    else if (message.type === "view") this.whenGoing(stream, () => stream.handler.viewBegins?.(message.token));
    else if (message.type === "end" || message.type === "error") {
      this.streams.delete(stream.number);
      this.acknowledgements.delete(stream.number);
      const isError = message.type === "error";
      stream.handler.ended(isError ? new ServerError(message.code, message.message) : null);
    }
  }

  private settle(call: number, how: (waiting: Waiting) => void): void {
    const waiting = this.calls.get(call);
    this.calls.delete(call);
    if (waiting !== undefined) how(waiting);
  }

  private welcome({ caller, version }: Control & { type: "welcome" }): void {
    this.isWelcome = true;
    this.attempts = 0;
    this.caller = caller;
    this.serverVersion = version;
    if (this.isPaused) this.sendControl({ type: "pause" });
    this.enter("live", "");
    for (const attached of [...this.attached]) attached.connected();
  }

  /** `final`: the state in which it is of no use to try again. */
  private lost(reason: string, final: "refused" | "ended" | null): void {
    this.detachSocket(1000);
    if (this.state === "closed") return;
    this.endAll(reason);
    if (final !== null) {
      this.enter(final, reason);
      return;
    }
    this.enter(this.state === "connecting" ? "connecting" : "reconnecting", reason);
    const longest = Math.min(RETRY_FIRST_MS * 2 ** this.attempts++, RETRY_MAX_MS);
    const pause = longest * (0.5 + (this.options.random ?? Math.random)() / 2);
    this.timer = setTimeout(() => this.open(), pause);
  }

  private detachSocket(code: number): void {
    const { socket } = this;
    this.socket = null;
    this.isWelcome = false;
    clearInterval(this.heartbeat);
    if (socket === null) return;
    socket.onopen = socket.onmessage = socket.onclose = null;
    socket.close(code);
  }

  private endAll(reason: string): void {
    const waiting = [...this.calls.values()];
    const streams = [...this.streams.values()];
    this.calls.clear();
    this.streams.clear();
    this.acknowledgements.clear();
    for (const call of waiting) call.reject(new ServerError("UNAVAILABLE", reason));
    for (const stream of streams) stream.handler.ended(new ServerError("UNAVAILABLE", reason));
    for (const attached of [...this.attached]) attached.lost(reason);
  }

  private enter(state: ConnectionState, reason: string): void {
    this.state = state;
    this.reason = reason;
    this.changed.tell(this);
  }

  /** A socket can look well when nothing comes through it any more: ask, and give it up. */
  private checkHeard(): void {
    const silence = Date.now() - this.heardAt;
    if (silence > SILENCE_MS + ANSWER_MS) {
      this.drop("the server does not answer");
    } else if (silence > SILENCE_MS && this.isWelcome && this.state !== "stale") {
      this.enter("stale", "the server has not been heard of for ten seconds");
      const back = (): void => {
        if (this.state === "stale") this.enter("live", "");
      };
      this.call(HEARTBEAT).then(back, back);
    }
  }
}

