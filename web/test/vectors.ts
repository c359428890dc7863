import { readFileSync } from "node:fs";
import { join } from "node:path";
import type { FlightData } from "../client/flight_data.ts";

const VECTORS = join(process.cwd(), "../tests/vectors/barrage");

/** A JSON file, in which integers that a double does not hold are texts. */
export function readVectors(name: string): any {
  const text = readFileSync(join(VECTORS, name), "utf8");
  return JSON.parse(text.replace(/([[:,]\s*)(-?\d{16,})(?=\s*[\],}])/g, '$1"$2"'));
}

export function fromHex(hex: string): Uint8Array {
  return Uint8Array.from(Buffer.from(hex, "hex"));
}

export function toHex(bytes: Uint8Array): string {
  return Buffer.from(bytes).toString("hex");
}

export interface Conversation {
  readonly name: string;
  readonly answers: { readonly i: number; readonly message: FlightData }[];
  readonly requests: any[];
  readonly updates: any[];
  readonly truth: any[];
}

const field = (text: string | undefined): Uint8Array | null =>
  text === undefined ? null : Uint8Array.from(Buffer.from(text, "base64"));

export function conversations(file: string): Conversation[] {
  return readVectors(`conversations/${file}.json`).conversations.map((one: any) => ({
    name: one.name,
    answers: one.messages
      .filter((message: any) => message.dir === "s2c" && message.field_order)
      .map((message: any) => ({
        i: message.i,
        message: {
          header: field(message.data_header),
          metadata: field(message.app_metadata),
          body: field(message.data_body),
        },
      })),
    requests: one.messages.filter((message: any) => message.dir === "c2s"),
    updates: one.updates ?? [],
    truth: one.truth ?? [],
  }));
}

/** The keys in a text such as `0-9,12`. */
export function keysOf(text: string): number[] {
  return text
    .split(",")
    .filter(Boolean)
    .flatMap((range) => {
      const [first, last] = range.split("-").map(Number);
      return Array.from({ length: (last ?? first!) - first! + 1 }, (_, i) => first! + i);
    });
}
