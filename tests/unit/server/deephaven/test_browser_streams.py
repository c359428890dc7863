"""What waits of streams whose messages come by calls of their own, without a server."""

from __future__ import annotations

import asyncio

import pytest

from barrage.errors import AuthenticationError, LimitExceededError
from barrage.limits import Limits
from barrage.server.deephaven.browser_streams import BrowserStreams
from tests.helpers.restless_server import HANG_SECONDS

LIMITS = Limits(browser_session_bytes_max=100)


class Session:
    """One that ends when it is told."""

    def __init__(self):
        self.end = None

    def on_close(self, callback):
        self.end = callback


def test_what_waits_is_bounded_for_all_streams_of_a_session_together():
    async def main():
        streams, session = BrowserStreams({}, LIMITS), Session()
        first, second = (streams.stream(("DoPut", each), session) for each in (1, 2))
        first.take(0, False, bytes(60))
        second.take(1, False, bytes(40))
        for each, sequence in ((first, 1), (second, 0)):
            with pytest.raises(LimitExceededError, match="all streams of a session is 101 bytes"):
                each.take(sequence, False, b"x")
        # Those of others do not count.
        streams.stream(("DoPut", 1), Session()).take(0, False, bytes(100))
        # What is read makes room, and what is forgotten.
        assert await first.read() == bytes(60)
        second.take(0, False, bytes(60))
        streams.forget(("DoPut", 2), session)
        first.take(1, False, bytes(100))
        streams.forget(("DoPut", 2), session)
        with pytest.raises(LimitExceededError):
            first.take(2, False, b"x")

    asyncio.run(asyncio.wait_for(main(), HANG_SECONDS))


def test_a_session_that_ends_leaves_nothing_to_be_read():
    async def main():
        streams, session = BrowserStreams({}, LIMITS), Session()
        stream = streams.stream(("DoPut", 1), session)
        stream.take(0, False, bytes(100))
        session.end(AuthenticationError("it has run out"))
        with pytest.raises(AuthenticationError):
            await stream.read()
        streams.stream(("DoPut", 1), session).take(0, False, bytes(100))

    asyncio.run(asyncio.wait_for(main(), HANG_SECONDS))
