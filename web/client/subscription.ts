import type { Schema } from "./arrow_type.ts";
import { fromUtf8, utf8 } from "./bytes.ts";
import { fromBase64 } from "./description.ts";
import type { Connection, Stream, StreamHandler } from "./connection.ts";
import { ProtocolError, ServerError } from "./errors.ts";
import { decodeFlightData } from "./flight_data.ts";
import { Listeners } from "./listeners.ts";
import { encodeSubscription, sameRequest, type SubscriptionOptions, type ViewRequest } from "./request.ts";
import { sameColumns } from "./schema.ts";
import { UpdateAssembler, type ViewUpdate } from "./update_assembler.ts";
import { View, type ViewChange } from "./view.ts";

/** How a subscription got to where it is: anew, or after an interruption. */
export type Recovery =
  | { readonly kind: "fresh" }
  | { readonly kind: "live" }
  | { readonly kind: "replayed"; readonly steps: number }
  | { readonly kind: "resnapshot"; readonly reason: string };

/** Failures that may be over soon: the server restarts, the table is made again. */
const PASSING: ReadonlySet<string> = new Set([
  "UNAVAILABLE",
  "ABORTED",
  "RESOURCE_EXHAUSTED",
  "NOT_FOUND",
]);

const RETRY_FIRST_MS = 500;
const RETRY_MAX_MS = 10_000;

export interface SubscribeOptions extends Partial<SubscriptionOptions> {
  /** The rows and columns to begin with. */
  readonly request: ViewRequest;
  /** Whether it goes on while the page is not seen. */
  readonly staysAwake?: boolean;
  /** Told that an update was applied: call `acknowledge` once it has been shown. */
  readonly applied?: (acknowledge: () => void) => void;
}

/** A view of a table that is kept up to date, whatever happens to the socket. */
export class ViewSubscription implements StreamHandler {
  readonly updated = new Listeners<ViewChange>();
  /** The rows are of other columns than those before. */
  readonly replaced = new Listeners<View>();
  readonly recovered = new Listeners<Recovery>();
  /** The server ended it; `error` is null again once it goes on. */
  readonly failed = new Listeners<ServerError>();
  /** What is shown; null until the first answer. It stays while another one is on its way. */
  view: View | null = null;
  recovery: Recovery = { kind: "fresh" };
  error: ServerError | null = null;
  updateCount = 0;

  private wanted: ViewRequest;
  private stream: Stream | null = null;
  private assembler = new UpdateAssembler();
  /** Of the table's history, as far as this stream told; null when there is none. */
  private epoch: string | null = null;
  /** What updates are applied to; `view` once the first has come. */
  private incoming: View | null = null;
  private isCatchingUp = false;
  private isPaused = false;
  private asked: ViewRequest | null = null;
  /** What the next update answers, when it is another request than the one before. */
  private begun: ViewRequest | null = null;
  private readonly requests = new Map<string, ViewRequest>();
  private nextToken = 1;
  private failures = 0;
  private timer: ReturnType<typeof setTimeout> | undefined;
  private readonly detach: () => void;

  constructor(
    private readonly connection: Connection,
    readonly ticket: Uint8Array,
    private readonly options: SubscribeOptions,
  ) {
    this.wanted = options.request;
    this.detach = connection.attach({
      connected: () => this.open(),
      lost: () => this.forgetStream(),
    });
  }

  get request(): ViewRequest {
    return this.wanted;
  }

  /** Whether the rows that are shown answer the last request. */
  get isCurrent(): boolean {
    const shown = this.view?.request;
    return !!shown && this.error === null && sameRequest(shown, this.wanted);
  }

  /**
   * Ask for other rows or columns; those that are there stay until the new ones come. Whether they
   * are others than those asked for before.
   */
  change(request: ViewRequest): boolean {
    if (sameRequest(request, this.wanted)) return false;
    this.wanted = request;
    if (this.stream !== null && !this.isCatchingUp) this.ask(this.stream, request);
    return true;
  }

  /** Have the server send nothing until `resume`; requests are taken all the same. */
  pause(): void {
    this.isPaused = true;
    this.stream?.pause();
  }

  resume(): void {
    this.isPaused = false;
    this.stream?.resume();
  }

  /** Begin again, after a failure too. */
  reopen(): void {
    this.stream?.cancel();
    this.forgetStream();
    if (this.connection.isOpen) this.open();
  }

  close(): void {
    this.detach();
    this.stream?.cancel();
    this.forgetStream();
  }

  private forgetStream(): void {
    this.stream = null;
    clearTimeout(this.timer);
  }

  private open(): void {
    const { view, epoch } = this;
    const cursor = view?.request && epoch !== null && view.step >= 0n ? `${epoch}:${view.step}` : null;
    this.assembler = new UpdateAssembler();
    this.requests.clear();
    this.incoming = this.begun = null;
    this.isCatchingUp = cursor !== null;
    const headers = { "x-barrage-extensions": "source-time" };
    this.stream = this.connection.openStream(this, {
      method: "DoExchange",
      staysAwake: this.options.staysAwake ?? false,
      headers: cursor === null ? headers : { ...headers, "x-barrage-cursor": cursor },
    });
    if (this.isPaused) this.stream.pause();
    // What was missed is told about the rows that are held; only then others can be asked for.
    this.ask(this.stream, this.isCatchingUp ? view!.request! : this.wanted);
  }

  private ask(stream: Stream, request: ViewRequest): void {
    const token = String(this.nextToken++);
    this.requests.set(token, request);
    this.asked = request;
    const { intervalMs = 100, listLengthMax = 0 } = this.options;
    const options = { intervalMs, listLengthMax };
    stream.send(encodeSubscription(this.ticket, request, { options, token: utf8(token) }));
  }

  headers(headers: Readonly<Record<string, string>>): void {
    this.epoch = headers["x-barrage-epoch"] ?? null;
    const text = headers["x-barrage-resumed"];
    this.recovery = this.view === null ? { kind: "fresh" } : readRecovery(text);
    this.isCatchingUp &&= this.recovery.kind !== "resnapshot";
    this.recovered.tell(this.recovery);
  }

  viewBegins(token: string): void {
    this.begun = this.requests.get(fromUtf8(fromBase64(token))) ?? this.begun;
  }

  message(bytes: Uint8Array): void {
    const { assembler, stream } = this;
    const isFirst = assembler.schema === null;
    const update = assembler.receive(decodeFlightData(bytes));
    if (isFirst && assembler.schema !== null) this.begin(assembler.schema);
    if (this.stream !== stream) return; // begun again
    if (update === null) stream?.acknowledge();
    else this.apply(update);
  }

  private begin(schema: Schema): void {
    if (!this.isCatchingUp) {
      this.incoming = new View(schema);
      this.incoming.request = this.asked;
      if (this.asked !== null && !sameRequest(this.asked, this.wanted)) {
        this.ask(this.stream!, this.wanted);
      }
    } else if (this.view !== null && sameColumns(schema, this.view.schema)) {
      this.incoming = this.view;
    } else {
      // The rows that are held are of another table than the server went on with.
      this.epoch = null;
      this.reopen();
    }
  }

  private apply(update: ViewUpdate): void {
    const { incoming, stream } = this;
    if (incoming === null || stream === null) throw new ProtocolError("an update without a view");
    const before = this.view;
    // Not before its rows are here: those that are shown until then answer another request.
    incoming.request = this.begun ?? incoming.request;
    this.begun = null;
    const change = incoming.apply(update);
    this.view = incoming;
    this.error = null;
    this.failures = 0;
    this.updateCount++;
    if (this.isCatchingUp) {
      this.isCatchingUp = false;
      if (!sameRequest(incoming.request!, this.wanted)) this.ask(stream, this.wanted);
    }
    if (before !== incoming) this.replaced.tell(incoming);
    this.updated.tell(change);
    const acknowledge = (): void => stream.acknowledge();
    if (this.options.applied === undefined) acknowledge();
    else this.options.applied(acknowledge);
  }

  ended(error: ServerError | null): void {
    this.forgetStream();
    if (!this.connection.isOpen) return; // it goes on with the next socket
    this.error = error ?? new ServerError("UNAVAILABLE", "the server ended the subscription");
    if (this.error.status === "DATA_LOSS") this.epoch = null; // what is held may be half an update
    if (PASSING.has(this.error.status)) {
      const pause = Math.min(RETRY_FIRST_MS * 2 ** this.failures++, RETRY_MAX_MS);
      this.timer = setTimeout(() => this.reopen(), pause);
    }
    this.failed.tell(this.error);
  }
}

function readRecovery(text: string | undefined): Recovery {
  if (text === undefined) return { kind: "resnapshot", reason: "the table has no history" };
  if (text === "live") return { kind: "live" };
  const replayed = /^replayed (\d+)/.exec(text);
  if (replayed) return { kind: "replayed", steps: Number(replayed[1]) };
  return { kind: "resnapshot", reason: text.replace(/^resnapshot ?/, "") || "no reason was given" };
}
