import type { Field } from "../client/arrow_type.ts";
import type { Connection } from "../client/connection.ts";
import { button, element, setAttribute, styleSheet } from "../grid/dom.ts";
import gridCss from "../grid/grid.css";
import { pillText } from "../grid/pill.ts";
import { FRAME_IS_THERE, type FromFrame, type ToFrame } from "./frame_messages.ts";
import type { FrameRows } from "./frame_rows.ts";
import css from "./perspective.css";
import { PerspectiveCore } from "./perspective_core.ts";
import { emptyPerspective, type PerspectiveState, VIEW_LENGTH_MAX, type ViewerState } from "./perspective_state.ts";

const TICK_MS = 250;
const INSTALLED = "perspective/installed.json";
const FRAME = "perspective.html";
const sheet = styleSheet(`${gridCss}${css}`);

function queryText({ table, operations }: PerspectiveState): string {
  return JSON.stringify([table, operations]);
}

/** The version of Perspective the server has; null where it has none. */
async function installedVersion(): Promise<string | null> {
  const answer = await fetch(new URL(INSTALLED, document.baseURI));
  const { version } = (await answer.json()) as { version?: unknown };
  return typeof version === "string" ? version : null;
}

/**
 * A table of the server in Perspective's viewer, which stands in a frame of its own. The rows are
 * those of one subscription of the page; `statechange` tells that the user shows something else.
 */
export class LivePerspective extends HTMLElement {
  private readonly title_ = element("h2", { class: "title" });
  private readonly pill = element("span", { class: "pill", role: "status" });
  private readonly message = element("div", { class: "message", role: "alert", hidden: "" });
  private readonly messageText = element("span");
  private readonly inside = element("div", { class: "inside", "aria-busy": "true" });
  private readonly hint = element("p", { class: "hint" });
  private readonly about = element("span");
  private readonly heard = (event: MessageEvent): void => this.hear(event);
  private frame: HTMLIFrameElement | null = null;
  private port: MessagePort | null = null;
  /** The end of the port that the frame gets once it is there. */
  private frameEnd: MessagePort | null = null;
  private core: PerspectiveCore | null = null;
  private given: Connection | null = null;
  private wanted = emptyPerspective("");
  private problem = "";
  private isDark = false;
  private ticking: ReturnType<typeof setInterval> | undefined;

  constructor() {
    super();
    const root = this.attachShadow({ mode: "open" });
    root.adoptedStyleSheets = [sheet];
    this.message.append(this.messageText, button("Try again", "Ask the server again", () => this.retry()));
    this.inside.append(this.hint);
    root.append(
      element("section", { class: "frame" }, [
        element("div", { class: "tools", role: "toolbar", "aria-label": "Perspective" }, [
          this.title_, this.pill, element("slot", { name: "tools" }),
        ]),
        this.message,
        this.inside,
        element("div", { class: "status" }, [this.about]),
      ]),
    );
  }

  set connection(connection: Connection | null) {
    this.given = connection;
    if (this.isConnected) void this.start();
  }

  get connection(): Connection | null {
    return this.given;
  }

  get state(): PerspectiveState {
    return this.wanted;
  }

  set state(state: PerspectiveState) {
    const isOther = queryText(state) !== queryText(this.wanted);
    this.wanted = state;
    if (this.frame !== null && isOther) this.follow();
  }

  get fields(): readonly Field[] {
    return this.core?.fields ?? [];
  }

  connectedCallback(): void {
    addEventListener("message", this.heard);
    this.ticking = setInterval(() => this.tick(), TICK_MS);
    void this.start();
  }

  /** The frame goes, and with it Perspective's worker and all rows there. */
  disconnectedCallback(): void {
    removeEventListener("message", this.heard);
    clearInterval(this.ticking);
    this.end();
  }

  private end(): void {
    this.core?.close();
    this.core = null;
    this.port?.close();
    this.port = null;
    this.frame?.remove();
    this.frame = null;
  }

  private async start(): Promise<void> {
    this.end();
    this.problem = "";
    let version: string | null = null;
    try {
      version = await installedVersion();
    } catch (error) {
      this.problem = `The server does not say whether it has Perspective: ${String(error)}`;
    }
    if (!this.isConnected || this.frame !== null) return;
    this.sayInstalled(version !== null || this.problem !== "");
    if (version !== null) this.open();
    this.paint();
  }

  private sayInstalled(isThere: boolean): void {
    this.hint.replaceChildren(
      ...(isThere
        ? []
        : ["Pivots and charts of Perspective are there once it is installed where the server is: ", element("code", {}, ['pip install "barrage[perspective]"']), ". Then try again."]),
    );
    if (!isThere) this.hint.append(" ", button("Try again", "See whether it is installed now", () => void this.start()));
  }

  private open(): void {
    const { port1, port2 } = new MessageChannel();
    this.port = port1;
    this.frameEnd = port2;
    port1.onmessage = ({ data }: MessageEvent<FromFrame>) => this.told(data);
    this.frame = element("iframe", { src: FRAME, title: `${this.wanted.table} in Perspective`, sandbox: "allow-scripts allow-downloads" });
    this.inside.append(this.frame);
    this.follow();
  }

  /** Send the frame the rows of the table that is wanted now. */
  private follow(): void {
    this.core?.close();
    this.core = null;
    const { given, wanted } = this;
    if (given === null || wanted.table === "") return;
    this.core = new PerspectiveCore(given, wanted, {
      begin: (rows, table) => this.begin(rows, table),
      send: (message) => this.send(message),
      dirty: () => this.paint(),
    });
    this.paint();
  }

  private begin(rows: Uint8Array<ArrayBuffer>, { index }: FrameRows): void {
    this.problem = "";
    setAttribute(this.inside, "aria-busy", "true");
    this.isDark = this.looksDark();
    const { table, view } = this.wanted;
    const columns = this.fields.map(({ name }) => name);
    this.send({ kind: "begin", rows, index, columns, title: table, view, isDark: this.isDark });
  }

  private send(message: ToFrame): void {
    const rows = "rows" in message ? message.rows : null;
    this.port?.postMessage(message, rows === null ? [] : [rows.buffer]);
  }

  /** The frame is there: it is of no origin, so who it is is all there is to see. */
  private hear({ source, origin, data }: MessageEvent): void {
    const { frame, frameEnd } = this;
    if (frame === null || frameEnd === null || source !== frame.contentWindow || origin !== "null" || data !== FRAME_IS_THERE) return;
    this.frameEnd = null;
    frame.contentWindow?.postMessage(FRAME_IS_THERE, "*", [frameEnd]);
  }

  private told(message: FromFrame): void {
    if (message.kind === "applied") {
      this.core?.applied();
      setAttribute(this.inside, "aria-busy", "false");
    } else if (message.kind === "failed") this.problem = message.message;
    else this.keep(message.view);
    this.paint();
  }

  private keep(view: ViewerState): void {
    if (JSON.stringify(view).length > VIEW_LENGTH_MAX) {
      this.problem = "This view is too long for a link; it is not kept.";
      return;
    }
    this.wanted = { ...this.wanted, view };
    this.dispatchEvent(new CustomEvent("statechange", { bubbles: true, composed: true }));
  }

  private retry(): void {
    if (this.core === null || this.problem !== "") void this.start();
    else this.core.retry();
  }

  private looksDark(): boolean {
    return Number(/\d+/.exec(getComputedStyle(this).color)?.[0]) > 128; // the text is light
  }

  private tick(): void {
    if (document.hidden) return;
    const isDark = this.looksDark();
    if (this.core?.hasRows && isDark !== this.isDark) this.send({ kind: "theme", isDark });
    this.isDark = isDark;
    this.paint();
  }

  private paint(): void {
    const { core, wanted } = this;
    if (this.title_.textContent !== wanted.table) this.title_.textContent = wanted.table;
    this.pill.hidden = core === null;
    if (core !== null) this.paintPill(core);
    const refusal = core?.connection.state === "refused" ? core.connection.reason : "";
    const message = this.problem || (core?.error?.message ?? refusal);
    if (this.messageText.textContent !== message) this.messageText.textContent = message;
    this.message.hidden = message === "";
    const about = core?.counts ? countsText(core.counts) : "";
    if (this.about.textContent !== about) this.about.textContent = about;
  }

  private paintPill(core: PerspectiveCore): void {
    const { connection } = core;
    const pill = pillText({
      state: connection.state,
      reason: connection.reason,
      recovery: core.recovery,
      recoveredAgo: Date.now() - core.recoveredAt,
      isPaused: false,
      isLoading: !core.hasRows && core.error === null,
      hasFailed: core.error !== null,
    });
    setAttribute(this.pill, "class", `pill ${pill.kind}`);
    if (this.pill.textContent !== pill.text) this.pill.textContent = pill.text;
    this.pill.title = pill.title;
  }
}

function countsText({ here, whole }: { here: number; whole: number }): string {
  const shown = here.toLocaleString();
  if (here >= whole) return `${shown} rows`;
  return `the first ${shown} of ${whole.toLocaleString()} rows: where, agg or last by in the query line make them fewer`;
}

/** Make the element known to the page. */
export function defineLivePerspective(): void {
  if (customElements.get("live-perspective") === undefined) customElements.define("live-perspective", LivePerspective);
}
