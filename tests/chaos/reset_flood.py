"""HTTP/2 streams that are reset as soon as they are opened, as fast as a socket takes them, written
by hand: a gRPC client opens a thousand in a second, which frightens nobody.

``python -m tests.chaos.reset_flood ADDRESS STREAMS``.
"""

from __future__ import annotations

import socket
import struct
import sys
import threading
from contextlib import suppress

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADERS, RST_STREAM, SETTINGS = 1, 3, 4
END_HEADERS = 4
CANCEL = struct.pack(">I", 8)
STREAMS_PER_WRITE = 100


def frame(kind: int, flags: int, stream: int, content: bytes) -> bytes:
    return struct.pack(">I", len(content))[1:] + struct.pack(">BBI", kind, flags, stream) + content


def _literal(name: bytes, value: bytes) -> bytes:
    """A header that is not indexed (RFC 7541, 6.2.2), both texts shorter than 127 bytes."""
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


def request_headers(path: bytes) -> bytes:
    """POST, http and the rest of what gRPC asks for."""
    named_path = b"\x04" + bytes([len(path)]) + path
    rest = ((b":authority", b"x"), (b"te", b"trailers"), (b"content-type", b"application/grpc"))
    return b"\x83\x86" + named_path + b"".join(_literal(*each) for each in rest)


def flood(address: str, streams: int) -> None:
    """Open and reset that many streams, on as many connections as the server makes necessary."""
    headers = request_headers(b"/arrow.flight.protocol.FlightService/DoExchange")
    host, port = address.rsplit(":", 1)
    done = 0
    while done < streams:
        with suppress(OSError), socket.create_connection((host, int(port))) as connection:
            reader = threading.Thread(target=_drain, args=(connection,), daemon=True)
            reader.start()
            connection.sendall(PREFACE + frame(SETTINGS, 0, 0, b""))
            stream = 1
            while done < streams:
                content = bytearray()
                for _ in range(STREAMS_PER_WRITE):
                    content += frame(HEADERS, END_HEADERS, stream, headers)
                    content += frame(RST_STREAM, 0, stream, CANCEL)
                    stream += 2
                connection.sendall(content)
                done += STREAMS_PER_WRITE


def _drain(connection: socket.socket) -> None:
    with suppress(OSError):
        while connection.recv(65536):
            pass


if __name__ == "__main__":
    flood(sys.argv[1], int(sys.argv[2]))
