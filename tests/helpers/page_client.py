"""A page without a browser: ``barrage-flight.v1`` as docs/web-protocol.md has it.

Binary messages are decoded by our own :class:`ClientExchange`. Nothing is acknowledged unless a
test does, or sets ``acknowledges``.
"""

from __future__ import annotations

import asyncio
import functools
import json
from collections import defaultdict
from contextlib import asynccontextmanager

from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from barrage.model.replica import FullReplica, ViewReplica
from barrage.model.viewport import Viewport
from barrage.proto.client_events import SchemaArrived, UpdateArrived
from barrage.proto.client_exchange import ClientExchange
from barrage.wire.messages import SubscriptionOptions

PROTOCOL = "barrage-flight.v1"
HANG_S = 180


def varint(number: int) -> bytes:
    """Unsigned LEB128, written for these tests."""
    out = b""
    while True:
        number, low = divmod(number, 128)
        out += bytes([low | (128 if number else 0)])
        if not number:
            return out


def unvarint(data: bytes) -> tuple[int, bytes]:
    number = 0
    for index, byte in enumerate(data):
        number += (byte % 128) << (7 * index)
        if byte < 128:
            return number, data[index + 1 :]
    raise AssertionError("no varint")


class Page:
    """One socket."""

    def __init__(self, socket):
        self.socket = socket
        self.acknowledges = False
        self.texts = []
        self.received = defaultdict(list)
        """Binary messages by stream."""
        self.order = []
        """Everything, in the order in which it came."""
        self._changed = asyncio.Condition()
        self._task = asyncio.create_task(self._read())
        self.close_code = None
        self.close_reason = ""

    async def say(self, **message):
        await self.socket.send(json.dumps(message))

    async def send(self, stream, data):
        await self.socket.send(varint(stream) + data)

    async def hello(self, authorization=None):
        shown = {} if authorization is None else {"authorization": authorization}
        await self.say(type="hello", **shown)
        return await self.text("welcome")

    async def acknowledge(self, stream, count=None):
        count = len(self.received[stream]) if count is None else count
        await self.say(type="ack", streams={str(stream): count})

    async def text(self, kind, **members):
        """The first message of this kind with these members, taken out."""

        def found():
            for message in self.texts:
                if message["type"] == kind and members.items() <= message.items():
                    return message
            return None

        message = await self.until(found)
        self.texts.remove(message)
        return message

    async def call(self, number, action, body=None):
        await self.say(
            type="call", call=number, action=action, **({} if body is None else {"body": body})
        )
        found = await self.until(
            lambda: next((m for m in self.texts if m.get("call") == number), None)
        )
        self.texts.remove(found)
        return found

    async def messages(self, stream, count):
        """The first ``count`` binary messages of a stream, once they have come."""
        await self.until(lambda: len(self.received[stream]) >= count)
        return self.received[stream][:count]

    async def closed(self):
        async with asyncio.timeout(HANG_S):
            await self._task
        return self.close_code

    async def until(self, condition):
        async with asyncio.timeout(HANG_S), self._changed:
            while True:
                found = condition()
                if found:
                    return found
                if self._task.done():
                    raise AssertionError(f"closed: {self.close_code} {self.close_reason}")
                await self._changed.wait()

    async def _read(self):
        try:
            while True:
                message = await self.socket.recv()
                if isinstance(message, str):
                    self.texts.append(json.loads(message))
                    self.order.append(json.loads(message))
                else:
                    stream, data = unvarint(message)
                    self.received[stream].append(data)
                    self.order.append(stream)
                    if self.acknowledges:
                        await self.acknowledge(stream)
                async with self._changed:
                    self._changed.notify_all()
        except ConnectionClosed:
            self.close_code = self.socket.close_code
            self.close_reason = self.socket.close_reason
        finally:
            asyncio.get_running_loop().call_soon(asyncio.ensure_future, self._wake())

    async def _wake(self):
        async with self._changed:
            self._changed.notify_all()

    async def end(self):
        await self.socket.close()
        await asyncio.wait([self._task])


class PageTable:
    """A subscription of a page, and the rows it has."""

    def __init__(self, page, stream):
        self.page = page
        self.stream = stream
        self.exchange = ClientExchange()
        self.replica = None
        self.updates = 0
        self.step = None
        self._taken = 0

    async def open(self, ticket, *, viewport=None, token=None, interval_ms=10, **open_members):
        await self.page.say(type="open", stream=self.stream, method="DoExchange", **open_members)
        await self.page.send(
            self.stream,
            self.exchange.subscribe(
                ticket,
                viewport=viewport,
                token=token,
                options=SubscriptionOptions(min_update_interval_ms=interval_ms),
            ),
        )

    async def change(self, start, stop, token=None):
        frame = self.exchange.change(columns=None, viewport=Viewport.of(start, stop), token=token)
        await self.page.send(self.stream, frame)

    def take(self):
        """Apply what has come."""
        for frame in self.page.received[self.stream][self._taken :]:
            self._taken += 1
            for event in self.exchange.receive_frame(frame):
                if isinstance(event, SchemaArrived):
                    kind = ViewReplica if self.exchange.has_view_positions else FullReplica
                    self.replica = kind(event.schema)
                elif isinstance(event, UpdateArrived):
                    self.replica.apply(event.message)
                    self.updates += 1
                    self.step = event.message.last_step

    def rows(self):
        self.take()
        return None if self.replica is None else self.replica.to_arrow().to_pylist()

    async def shows(self, expected):
        """Return once these are the rows."""
        await self.page.until(lambda: self.rows() == expected or None)


LOOP_SECONDS_MAX = 240
"""After which a test that hangs is told by its name."""


def on_a_loop(test):
    """A test that is a coroutine."""

    @functools.wraps(test)
    def run(*arguments, **named):
        asyncio.run(asyncio.wait_for(test(*arguments, **named), LOOP_SECONDS_MAX))

    return run


@asynccontextmanager
async def page_at(web_uri, *, origin=None, headers=None, protocol=PROTOCOL, query="", tls=None):
    """A page of the server's own origin that has not said anything yet."""
    own = web_uri.rstrip("/")
    async with connect(
        own.replace("http", "ws", 1) + "/socket" + query,
        subprotocols=[protocol],
        origin=own if origin is None else origin,
        additional_headers=headers,
        compression=None,
        max_size=None,
        proxy=None,
        ssl=tls,
    ) as socket:
        page = Page(socket)
        try:
            yield page
        finally:
            await page.end()
