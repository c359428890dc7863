/** What a server sent that is no Barrage, or not what was asked for. */
export class ProtocolError extends Error {
  override name = "ProtocolError";
}

/** What the server said no to, with its gRPC status where it has one. */
export class ServerError extends Error {
  override name = "ServerError";

  constructor(
    readonly status: string,
    message: string,
  ) {
    super(message);
  }
}

/**
 * The result of reading, in which whatever goes past the end of the bytes is a ProtocolError: a
 * DataView checks every access, so nothing is read that is not there.
 */
export function reading<T>(what: string, read: () => T): T {
  try {
    return read();
  } catch (error) {
    if (error instanceof ProtocolError) throw error;
    if (error instanceof RangeError || error instanceof TypeError) {
      throw new ProtocolError(`${what} cannot be read: ${error.message}`);
    }
    throw error;
  }
}
