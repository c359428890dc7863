import { ProtocolError } from "./errors.ts";

/** Who the server takes the page's user for. */
export interface Caller {
  readonly name: string;
  readonly roles: readonly string[];
}

/** The text messages of the server, as far as this client knows them. */
export type Control =
  | { readonly type: "welcome"; readonly caller: Caller; readonly version: string }
  | { readonly type: "headers"; readonly stream: number; readonly headers: Readonly<Record<string, string>> }
  | { readonly type: "view"; readonly stream: number; readonly token: string }
  | { readonly type: "end"; readonly stream: number }
  | { readonly type: "result"; readonly call: number; readonly body: unknown }
  | { readonly type: "error"; readonly stream?: number; readonly call?: number; readonly code: string; readonly message: string };

type Members = Readonly<Record<string, unknown>>;

function isObject(value: unknown): value is Members {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function text(members: Members, name: string): string {
  const value = members[name];
  if (typeof value !== "string") throw new ProtocolError(`a message has no text ${name}`);
  return value;
}

function whole(members: Members, name: string): number {
  const value = members[name];
  if (!Number.isSafeInteger(value)) throw new ProtocolError(`a message has no number ${name}`);
  return value as number;
}

function texts(value: unknown): Record<string, string> {
  const entries = isObject(value) ? Object.entries(value) : [];
  return Object.fromEntries(entries.filter((entry): entry is [string, string] => typeof entry[1] === "string"));
}

function readCaller(value: unknown): Caller {
  const members = isObject(value) ? value : {};
  const roles = Array.isArray(members.roles) ? members.roles.map(String) : [];
  return { name: typeof members.name === "string" ? members.name : "", roles };
}

/** The message in a text; null for one of a type that is not known. */
export function readControl(json: string): Control | null {
  let value: unknown;
  try {
    value = JSON.parse(json);
  } catch {
    throw new ProtocolError("a text message is no JSON");
  }
  if (!isObject(value)) throw new ProtocolError("a text message is no JSON object");
  switch (value.type) {
    case "welcome":
      return {
        type: "welcome",
        caller: readCaller(value.caller),
        version: typeof value.version === "string" ? value.version : "",
      };
    case "headers":
      return { type: "headers", stream: whole(value, "stream"), headers: texts(value.headers) };
    case "view":
      return { type: "view", stream: whole(value, "stream"), token: text(value, "token") };
    case "end":
      return { type: "end", stream: whole(value, "stream") };
    case "result":
      return { type: "result", call: whole(value, "call"), body: value.body };
    case "error":
      return {
        type: "error",
        ...("call" in value ? { call: whole(value, "call") } : { stream: whole(value, "stream") }),
        code: text(value, "code"),
        message: text(value, "message"),
      };
    default:
      return null;
  }
}
