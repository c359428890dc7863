/**
 * What runs in the frame: Perspective, and nothing that could reach the page around it. The frame is
 * of no origin, its policy lets it connect to nothing, and it knows the rows it is sent.
 */
import { FRAME_IS_THERE, type FromFrame, type ToFrame } from "./frame_messages.ts";
import type { ViewerState } from "./perspective_state.ts";

/** What is used of Perspective; it comes with the Python package. */
interface PerspectiveTable {
  update(rows: ArrayBuffer): Promise<void>;
  replace(rows: ArrayBuffer): Promise<void>;
  remove(keys: readonly number[]): Promise<void>;
  size(): Promise<number>;
  delete(): Promise<void>;
}

interface PerspectiveClient {
  table(rows: ArrayBuffer, options: { index: string; name: string }): Promise<PerspectiveTable>;
}

interface PerspectiveViewer extends HTMLElement {
  load(client: PerspectiveClient): Promise<void>;
  restore(view: ViewerState): Promise<void>;
  save(): Promise<ViewerState>;
}

interface PerspectiveModule {
  worker?(): Promise<PerspectiveClient>;
}

/** What is the page's to say. */
const NOT_KEPT: ReadonlySet<string> = new Set(["table", "theme", "title", "version"]);

/**
 * Perspective starts its workers from addresses of blobs, which browsers refuse modules of where
 * there is no origin; they take the same script as an address of data.
 */
function startFromData(): void {
  const scripts = new WeakMap<Blob, string>();
  const made = URL.createObjectURL.bind(URL);
  globalThis.Blob = class extends Blob {
    constructor(parts: BlobPart[] = [], options?: BlobPropertyBag) {
      super(parts, options);
      const isScript = options?.type?.endsWith("/javascript") && parts.every((part) => typeof part === "string");
      if (isScript) scripts.set(this, parts.join(""));
    }
  };
  URL.createObjectURL = (object) => {
    const script = object instanceof Blob ? scripts.get(object) : undefined;
    return script === undefined ? made(object) : `data:text/javascript;charset=utf-8,${encodeURIComponent(script)}`;
  };
}

/** One viewer and its table; messages are dealt with one after another. */
class Frame {
  private readonly viewer = document.createElement("perspective-viewer") as PerspectiveViewer;
  private table: PerspectiveTable | null = null;
  private tables = 0;
  private isLoaded = false;
  private seen = "";
  private last: Promise<void> = Promise.resolve();

  constructor(
    private readonly client: PerspectiveClient,
    private readonly port: MessagePort,
  ) {
    document.body.append(this.viewer);
    this.viewer.addEventListener("perspective-config-update", () => this.queue(() => this.tellView()));
    port.onmessage = ({ data }: MessageEvent<ToFrame>) => {
      const applied = (): void => {
        if (data.kind !== "theme") this.tell({ kind: "applied" });
      };
      this.queue(() => this.receive(data).finally(applied));
    };
  }

  private tell(message: FromFrame): void {
    this.port.postMessage(message);
  }

  private queue(act: () => Promise<void>): void {
    this.last = this.last.then(act).catch((error: unknown) => this.tell({ kind: "failed", message: String(error) }));
  }

  private async receive(message: ToFrame): Promise<void> {
    switch (message.kind) {
      case "begin":
        return this.begin(message);
      case "replace":
        return this.table?.replace(message.rows.buffer);
      case "update":
        if (message.removed.length > 0) await this.table?.remove(message.removed);
        if (message.rows !== null) await this.table?.update(message.rows.buffer);
        await this.table?.size(); // once it is known all before it has been done
        return;
      case "theme":
        return this.viewer.restore({ theme: themeOf(message.isDark) });
    }
  }

  private async begin({ rows, index, columns, title, view, isDark }: Extract<ToFrame, { kind: "begin" }>): Promise<void> {
    const before = this.table;
    const name = `rows-${++this.tables}`;
    this.table = await this.client.table(rows.buffer, { index, name });
    if (!this.isLoaded) await this.viewer.load(this.client);
    this.isLoaded = true;
    const first: ViewerState = { table: name, title, theme: themeOf(isDark), columns };
    try {
      await this.viewer.restore({ ...first, ...view });
    } catch (error) {
      this.tell({ kind: "failed", message: `the kept view does not fit the table: ${String(error)}` });
      await this.viewer.restore({ ...first, group_by: [], split_by: [], sort: [], filter: [], expressions: {} });
    }
    this.seen = JSON.stringify(await this.view());
    await before?.delete();
  }

  private async view(): Promise<ViewerState> {
    const saved = Object.entries(await this.viewer.save());
    return Object.fromEntries(saved.filter(([name, value]) => !NOT_KEPT.has(name) && !isEmpty(value)));
  }

  private async tellView(): Promise<void> {
    if (!this.isLoaded) return;
    const view = await this.view();
    const text = JSON.stringify(view);
    if (text === this.seen) return;
    this.seen = text;
    this.tell({ kind: "view", view });
  }
}

function themeOf(isDark: boolean): string {
  return isDark ? "Pro Dark" : "Pro Light";
}

function isEmpty(value: unknown): boolean {
  return value === null || (typeof value === "object" && Object.keys(value).length === 0);
}

async function start(port: MessagePort): Promise<void> {
  try {
    startFromData();
    const address = new URL("perspective/viewer.js", import.meta.url).href;
    const { worker } = (await import(address)) as PerspectiveModule;
    if (worker === undefined) throw new Error("this release of perspective-python has no module for pages; 5.6.1 has");
    await customElements.whenDefined("perspective-viewer");
    new Frame(await worker(), port);
  } catch (error) {
    port.postMessage({ kind: "failed", message: `Perspective does not start: ${String(error)}` } satisfies FromFrame);
  }
}

const sheet = new CSSStyleSheet();
sheet.replaceSync("html, body { margin: 0; height: 100%; } perspective-viewer { position: absolute; inset: 0; }");
document.adoptedStyleSheets.push(sheet);

// The page is of the origin this was loaded from; its first message brings the port, and no other counts.
const page = new URL(import.meta.url).origin;
const taken = ({ source, origin, ports }: MessageEvent): void => {
  const [port] = ports;
  if (source !== parent || origin !== page || port === undefined) return;
  removeEventListener("message", taken);
  void start(port);
};
addEventListener("message", taken);
parent.postMessage(FRAME_IS_THERE, page);
