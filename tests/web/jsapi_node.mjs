// The session in Node: each step is one line of JSON. Arguments: the API as a module, the address of
// the server, and the module with a transport of its own, if it is not to take the API's.
import { run } from "./jsapi_session.mjs";

globalThis.self = globalThis;
globalThis.window ??= globalThis;
globalThis.CustomEvent ??= class CustomEvent extends Event {
  constructor(type, init) {
    super(type);
    this.detail = init?.detail;
  }
};

// Node 20 tells of a connection that was refused by "error" alone, where every browser lets "close"
// follow; the API tries again at "close".
const NodeSocket = globalThis.WebSocket;
globalThis.WebSocket = class WebSocket extends NodeSocket {
  constructor(...words) {
    super(...words);
    let is_closed = false;
    this.addEventListener("close", () => (is_closed = true));
    this.addEventListener("error", () =>
      setTimeout(() => {
        if (!is_closed) this.dispatchEvent(Object.assign(new Event("close"), { code: 1006, reason: "", wasClean: false }));
      }),
    );
  }
};

const [module, url, transport] = process.argv.slice(2);
const { default: dh } = await import(module);
const Transport = transport ? (await import(transport)).NodeHttp2gRPCTransport : null;
const options = () => (Transport ? { transportFactory: Transport.createFactory() } : {});
await run(dh, { url, options, tell: (step, seen) => console.log(JSON.stringify({ step, seen })) });
process.exit(0);
