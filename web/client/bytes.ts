import { ProtocolError } from "./errors.ts";

export const EMPTY = new Uint8Array(0);

const encoder = new TextEncoder();
const decoder = new TextDecoder();

export function utf8(text: string): Uint8Array {
  return encoder.encode(text);
}

export function fromUtf8(bytes: Uint8Array): string {
  return decoder.decode(bytes);
}

/** A view of exactly these bytes. */
export function viewOf(bytes: Uint8Array): DataView {
  return new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
}

/** Bytes that grow as they are written. */
export class ByteWriter {
  private bytes = new Uint8Array(256);
  private view = new DataView(this.bytes.buffer);
  length = 0;

  private room(count: number): number {
    const at = this.length;
    this.length += count;
    if (this.length > this.bytes.length) {
      const grown = new Uint8Array(Math.max(this.length, this.bytes.length * 2));
      grown.set(this.bytes.subarray(0, at));
      this.bytes = grown;
      this.view = new DataView(grown.buffer);
    }
    return at;
  }

  byte(value: number): void {
    const at = this.room(1);
    this.bytes[at] = value;
  }

  int8(value: number): void {
    const at = this.room(1);
    this.view.setInt8(at, value);
  }

  int16(value: number): void {
    const at = this.room(2);
    this.view.setInt16(at, value, true);
  }

  int32(value: number): void {
    const at = this.room(4);
    this.view.setInt32(at, value, true);
  }

  int64(value: number | bigint): void {
    const at = this.room(8);
    this.view.setBigInt64(at, BigInt(value), true);
  }

  append(bytes: Uint8Array): void {
    const at = this.room(bytes.length);
    this.bytes.set(bytes, at);
  }

  /** An unsigned number of up to 53 bits, seven bits a byte. */
  varint(value: number): void {
    let rest = value;
    while (rest >= 0x80) {
      this.byte((rest % 0x80) | 0x80);
      rest = Math.floor(rest / 0x80);
    }
    this.byte(rest);
  }

  finished(): Uint8Array<ArrayBuffer> {
    return this.bytes.slice(0, this.length);
  }
}

/** Bytes read from front to back. */
export class ByteReader {
  at = 0;
  readonly view: DataView;

  constructor(readonly bytes: Uint8Array) {
    this.view = viewOf(bytes);
  }

  get isAtEnd(): boolean {
    return this.at >= this.bytes.length;
  }

  varint(): number {
    let value = 0;
    for (let factor = 1, count = 0; count < 10; factor *= 0x80, count++) {
      const byte = this.view.getUint8(this.at++);
      value += (byte & 0x7f) * factor;
      if (byte < 0x80) {
        if (!Number.isSafeInteger(value)) throw new ProtocolError("a varint is above 2^53 - 1");
        return value;
      }
    }
    throw new ProtocolError("a varint has more than ten bytes");
  }

  take(count: number): Uint8Array {
    if (count > this.bytes.length - this.at) {
      throw new ProtocolError(`${count} bytes announced, ${this.bytes.length - this.at} there`);
    }
    this.at += count;
    return this.bytes.subarray(this.at - count, this.at);
  }

  rest(): Uint8Array {
    return this.take(this.bytes.length - this.at);
  }
}
