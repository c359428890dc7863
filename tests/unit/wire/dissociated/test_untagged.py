"""Headers and ends as untagged messages."""

from __future__ import annotations

import pytest

from barrage.errors import RemoteProtocolError
from barrage.limits import Limits
from barrage.wire.dissociated.untagged import (
    EndMessage,
    HeaderMessage,
    decode_untagged,
    encode_end_message,
    encode_header_message,
)


def test_a_header_has_five_bytes_before_it() -> None:
    message = encode_header_message(0x01020304, b"flatbuffer")
    assert message == b"\x01\x04\x03\x02\x01flatbuffer"
    assert decode_untagged(message) == HeaderMessage(0x01020304, b"flatbuffer")


def test_the_end_is_five_bytes() -> None:
    message = encode_end_message(3)
    assert message == b"\x00\x03\x00\x00\x00"
    assert decode_untagged(memoryview(message)) == EndMessage(3)


def test_numbers_roll_over() -> None:
    assert decode_untagged(encode_end_message(2**32 + 1)) == EndMessage(1)
    assert decode_untagged(encode_header_message(2**32, b"h")) == HeaderMessage(0, b"h")


def test_the_header_outlives_the_buffer_it_came_in() -> None:
    buffer = bytearray(encode_header_message(1, b"abc"))
    message = decode_untagged(buffer)
    buffer[:] = bytes(len(buffer))
    assert message == HeaderMessage(1, b"abc")


@pytest.mark.parametrize(
    "buffer",
    [
        b"",
        b"\x00\x00\x00\x00",
        b"\x00\x00\x00\x00\x00\x00",  # an end with more behind it
        b"\x01\x00\x00\x00\x00",  # a header of no bytes
        b"\x02\x00\x00\x00\x00abc",
        b"\xff\x00\x00\x00\x00",
    ],
)
def test_anything_else_is_refused(buffer: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="untagged message"):
        decode_untagged(buffer)


def test_the_size_is_limited() -> None:
    limits = Limits(message_bytes_max=10)
    assert decode_untagged(encode_header_message(0, b"12345"), limits).sequence == 0
    with pytest.raises(RemoteProtocolError, match="limit is 10 bytes"):
        decode_untagged(encode_header_message(0, b"123456"), limits)
