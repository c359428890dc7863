"""Arrow IPC messages from peers: what has to be checked before and after Arrow reads them.

Arrow validates offsets and values when asked to. It does not look at names, and it allocates what a
compressed buffer says it will become.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from barrage.errors import LimitExceededError, RemoteProtocolError
from barrage.wire.ipc import HEADER_DICTIONARY, open_message

if TYPE_CHECKING:
    from barrage.limits import Limits

_SIZE = struct.Struct("<q")


def check_decompressed_size(header: bytes, body: bytes | memoryview, limits: Limits) -> int:
    """Bytes that the buffers of a compressed batch will have, 0 for one that is not compressed;
    LimitExceededError when the buffers of a batch would decompress to more than may wait for the
    engine: a megabyte of zeros can stand for many gigabytes. RemoteProtocolError when the header is
    malformed.

    Source: Arrow format specification, BodyCompression: every buffer that is not empty starts with
    its size before compression, or -1 when it is not compressed.
    """
    message = open_message(header)
    batch = message.table.table(8)
    if batch is not None and message.kind == HEADER_DICTIONARY:
        batch = batch.table(6)
    if batch is None or not batch.has(10):
        return 0
    buffers = batch.longs(8, element_longs=2) or ()
    view = memoryview(body).cast("B")
    total = 0
    for offset, length in zip(buffers[::2], buffers[1::2], strict=True):
        if length == 0:
            continue
        if length < _SIZE.size or not 0 <= offset <= len(view) - length:
            raise RemoteProtocolError("a compressed buffer lies outside of its message")
        (size,) = _SIZE.unpack_from(view, offset)
        total += length - _SIZE.size if size < 0 else size
    if total > limits.ingest_bytes_pending_max:
        raise LimitExceededError(
            "record batch when decompressed",
            actual=total,
            maximum=limits.ingest_bytes_pending_max,
            unit="bytes",
        )
    return total
