import { ByteReader, ByteWriter, EMPTY } from "./bytes.ts";
import { ProtocolError, reading } from "./errors.ts";

/** One message of DoExchange. Fields that are absent are null; a body can be there and empty. */
export interface FlightData {
  readonly header: Uint8Array | null;
  readonly metadata: Uint8Array | null;
  readonly body: Uint8Array | null;
}

const HEADER = 2;
const METADATA = 3;
const BODY = 1000;

export function decodeFlightData(bytes: Uint8Array): FlightData {
  return reading("a message", () => {
    const reader = new ByteReader(bytes);
    const fields = new Map<number, Uint8Array>();
    while (!reader.isAtEnd) {
      const tag = reader.varint();
      const field = Math.floor(tag / 8);
      const content = skippedOrTaken(reader, tag % 8);
      if (field === 0) throw new ProtocolError("a message has a field 0");
      if (content !== null) fields.set(field, content);
    }
    return {
      header: fields.get(HEADER) ?? null,
      metadata: fields.get(METADATA) ?? null,
      body: fields.get(BODY) ?? null,
    };
  });
}

function skippedOrTaken(reader: ByteReader, wireType: number): Uint8Array | null {
  switch (wireType) {
    case 0:
      reader.varint();
      return null;
    case 1:
      reader.take(8);
      return null;
    case 2:
      return reader.take(reader.varint());
    case 5:
      reader.take(4);
      return null;
    default:
      throw new ProtocolError(`a message has the wire type ${wireType}`);
  }
}

/** A message of nothing but application metadata, such as a request. */
export function encodeMetadataOnly(metadata: Uint8Array = EMPTY): Uint8Array {
  const writer = new ByteWriter();
  writer.varint(METADATA * 8 + 2);
  writer.varint(metadata.length);
  writer.append(metadata);
  return writer.finished();
}
