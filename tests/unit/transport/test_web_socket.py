"""A WebSocket that is sent very much at once reads it in parts, between which others have their
turn."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Callable
from itertools import pairwise
from unittest.mock import Mock

import pytest
from websockets.frames import Frame, Opcode

from barrage.limits import Limits
from barrage.transport.over_websocket.web_socket import CloseReason, TurnEnd, WebSocket
from tests.helpers.page_client import on_a_loop


class Noting:
    """Speaks nothing, and notes what it hears."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []
        self.on_binary = lambda: None

    def text_received(self, text: str) -> None:
        raise AssertionError(text)

    def binary_received(self, data: bytes) -> None:
        self.heard.append(data)
        self.on_binary()

    def lost(self) -> None:
        self.is_lost = True


class Reading:
    """The reading side of a transport."""

    def __init__(self) -> None:
        self.mock = Mock(**{"get_write_buffer_size.return_value": 0})
        self.mock.pause_reading = lambda: self.set(False)
        self.mock.resume_reading = lambda: self.set(True)
        self.is_reading = True

    def set(self, is_reading: bool) -> None:
        self.is_reading = is_reading


class Made:
    def __init__(self) -> None:
        self.reading = Reading()
        self.peer = Noting()
        self.socket = WebSocket(
            self.reading.mock,
            name="test",
            limits=Limits(),
            turn_end=TurnEnd(),
            message_bytes_max=1 << 20,
            keepalive_ms=0,
        )
        self.socket.begin(self.peer)


def binary(content: bytes, *, is_last: bool = True, opcode: Opcode = Opcode.BINARY) -> bytes:
    return Frame(opcode, content, is_last).serialize(mask=True)


async def turns(is_done: Callable[[], bool] = lambda: False) -> None:
    """Of the loop, until it is so; many, where it is not said what is waited for."""
    for _ in range(100):
        if is_done():
            return
        await asyncio.sleep(0)


FRAMES_OF_A_TURN = 128 + 2048 // 7
"""Small ones, at most: the last part may go past the bound."""


@on_a_loop
async def test_small_messages_are_taken_in_parts():
    made = Made()
    made.socket.data_received(binary(b"x") * 2_000 + binary(b"last")[:3])
    heard = [0, len(made.peer.heard)]
    for _ in range(100):
        await asyncio.sleep(0)
        heard.append(len(made.peer.heard))
    assert heard[-1] == 2_000
    assert max(later - earlier for earlier, later in pairwise(heard)) <= FRAMES_OF_A_TURN
    made.socket.data_received(binary(b"last")[3:])
    assert len(made.peer.heard) == 2_001


@on_a_loop
async def test_pings_are_answered_in_parts():
    made = Made()
    made.socket.data_received(Frame(Opcode.PING, b"").serialize(mask=True) * 3_000)
    assert not made.reading.is_reading
    await turns()
    assert made.reading.is_reading
    sent = b"".join(b"".join(call.args[0]) for call in made.reading.mock.writelines.mock_calls)
    assert sent == Frame(Opcode.PONG, b"").serialize(mask=False) * 3_000


@on_a_loop
async def test_a_large_message_is_read_at_once():
    made = Made()
    content = bytes(range(256)) * 1024
    made.socket.data_received(binary(content))
    assert made.peer.heard == [content]
    assert made.reading.is_reading
    made.socket.data_received(binary(content, is_last=False) + binary(b"end", opcode=Opcode.CONT))
    assert made.peer.heard[1:] == [content + b"end"]


@pytest.mark.further
@on_a_loop
async def test_fragments_without_bytes_are_nothing():
    made = Made()
    made.socket.data_received(binary(b"begun ", is_last=False))
    empty = binary(b"", is_last=False, opcode=Opcode.CONT) * 1_000
    tracemalloc.start()
    try:
        for _ in range(30):
            made.socket.data_received(empty)
            await turns(lambda: made.reading.is_reading)
        kept_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert made.reading.is_reading
    assert kept_bytes < 100_000
    pieces = (binary(bytes([each]), is_last=False, opcode=Opcode.CONT) for each in b"and don")
    made.socket.data_received(b"".join(pieces))
    made.socket.data_received(binary(b"e", opcode=Opcode.CONT) + binary(b"next"))
    await turns(lambda: made.reading.is_reading)
    assert made.peer.heard == [b"begun and done", b"next"]


@on_a_loop
async def test_what_more_comes_stays_behind_what_there_is():
    """A transport may have more although it was told to pause."""
    made = Made()
    made.socket.data_received(b"".join(binary(b"%d" % number) for number in range(1_000)))
    made.socket.data_received(b"".join(binary(b"%d" % number) for number in range(1_000, 1_100)))
    await turns(lambda: made.reading.is_reading)
    assert made.peer.heard == [b"%d" % number for number in range(1_100)]


@on_a_loop
async def test_a_socket_that_is_held_stays_so():
    made = Made()
    made.peer.on_binary = made.socket.pause_reading
    made.socket.data_received(binary(b"x") * 1_000)
    await turns()
    assert len(made.peer.heard) == 1_000
    assert not made.reading.is_reading
    made.socket.resume_reading()
    assert made.reading.is_reading


@on_a_loop
async def test_who_lets_it_go_on_does_not_let_more_come_than_is_read():
    made = Made()
    made.peer.on_binary = made.socket.resume_reading
    made.socket.data_received(binary(b"x") * 1_000)
    was_reading = []
    for _ in range(100):
        was_reading.append((len(made.peer.heard), made.reading.is_reading))
        await asyncio.sleep(0)
    assert {count for count, is_reading in was_reading if is_reading} == {1_000}


@on_a_loop
async def test_a_close_behind_much_is_heard():
    made = Made()
    close = Frame(Opcode.CLOSE, (1000).to_bytes(2, "big")).serialize(mask=True)
    made.socket.data_received(binary(b"x") * 1_000 + close)
    assert made.socket.is_open
    await turns(lambda: not made.socket.is_open)
    assert len(made.peer.heard) == 1_000
    made.reading.mock.close.assert_called_once()
    made.socket.connection_lost()


@on_a_loop
async def test_after_a_close_of_ours_nothing_counts():
    made = Made()
    made.peer.on_binary = lambda: made.socket.close(CloseReason.BAD_MESSAGE)
    made.socket.data_received(binary(b"x") * 1_000)
    await turns()
    assert made.peer.heard == [b"x"]
    assert made.reading.is_reading
    made.socket.connection_lost()


@pytest.mark.parametrize("is_eof", [True, False])
@on_a_loop
async def test_an_end_behind_much_is_one(is_eof):
    made = Made()
    made.socket.data_received(binary(b"x") * 1_000)
    if is_eof:
        made.socket.eof_received()
        assert len(made.peer.heard) == 1_000
    made.socket.connection_lost()
    count = len(made.peer.heard)
    await turns()
    assert len(made.peer.heard) == count
