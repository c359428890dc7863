"""Messages of MQTT topics, acknowledged to the broker when they are safe.

The broker keeps a session for the client's name and sends again what was not acknowledged. What was
safe and whose acknowledgement was lost is known by its number at the broker and its content, which
are written to a state file before a message is sent on; so it is not taken twice. Quality of
service is 1: with 2 a client that dies loses what it has confirmed to have.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from typing import TYPE_CHECKING, Any

from barrage.connector.messages import MessageBatch
from barrage.connector.source import Source
from barrage.errors import ConfigError
from barrage.supervision import in_thread

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from barrage.connector.state_file import StateFile

logger = logging.getLogger(__name__)

QUALITY = 1
UNDER_WAY_MAX = 1_000
"""Messages the broker may send before one is acknowledged; it bounds memory too."""
REMEMBERED = 2 * UNDER_WAY_MAX
KEEPALIVE_SECONDS = 30


class MqttTopics(Source):
    """Messages of the topics that ``topic`` matches (``sensors/#``). The key of a message is its
    topic. ``client``: under which name the broker keeps the session."""

    def __init__(
        self,
        host: str,
        topic: str,
        *,
        state: StateFile,
        port: int = 1883,
        client: str = "barrage",
        name: str | None = None,
        username: str | None = None,
        password: str | None = None,
        tls: bool = False,
    ) -> None:
        self.name = name or f"mqtt:{topic}"
        self._address = (host, port)
        self._topic = topic
        self._client_name = client
        self._state = state
        self._login = (username, password)
        self._tls = tls
        self._client: Any = None
        self._waiting: dict[int, tuple[int, str]] = {}
        """Id of what is not safe to its number at the broker and its digest."""
        self._safe: dict[int, str] = {}
        """Number at the broker to the digest of what was safe last under it."""

    async def read(self, after: int | None) -> AsyncIterator[MessageBatch]:
        """See :class:`~barrage.connector.source.Source`."""
        position = after or 0
        await in_thread(self._recall, position)
        loop = asyncio.get_running_loop()
        arrived: asyncio.Queue[Any] = asyncio.Queue()

        def take(_client: Any, _data: Any, message: Any) -> None:
            loop.call_soon_threadsafe(arrived.put_nowait, message)

        client = self._connected(take)
        try:
            while True:
                fresh = [await arrived.get()]
                while not arrived.empty() and len(fresh) < UNDER_WAY_MAX:
                    fresh.append(arrived.get_nowait())
                kept = [each for each in fresh if not self._is_again(client, each)]
                ids = list(range(position + 1, position + 1 + len(kept)))
                for number, each in zip(ids, kept, strict=True):
                    self._waiting[number] = (each.mid, _digest(each))
                if kept:
                    position = ids[-1]
                    await in_thread(self._remember)
                    yield MessageBatch(
                        ids=ids,
                        payloads=[bytes(each.payload) for each in kept],
                        keys=[each.topic.encode() for each in kept],
                    )
        finally:
            self._client = None
            client.disconnect()
            await in_thread(client.loop_stop)

    async def acknowledged(self, last: int) -> None:
        """See :class:`~barrage.connector.source.Source`."""
        for number in [each for each in self._waiting if each <= last]:
            at_broker, digest = self._waiting.pop(number)
            self._know_safe(at_broker, digest)
            if self._client is not None:
                self._client.ack(at_broker, QUALITY)

    def _connected(self, take: Any) -> Any:
        try:
            from paho.mqtt import client as mqtt
            from paho.mqtt.enums import CallbackAPIVersion
        except ImportError:
            raise ConfigError("MQTT needs a library: pip install 'barrage[connectors]'") from None
        client = mqtt.Client(
            CallbackAPIVersion.VERSION2,
            client_id=self._client_name,
            clean_session=False,
            manual_ack=True,
        )
        if self._login[0] is not None:
            client.username_pw_set(*self._login)
        if self._tls:
            client.tls_set()
        client.max_inflight_messages_set(UNDER_WAY_MAX)
        client.reconnect_delay_set(1, 10)
        client.on_message = take

        def subscribe(_client: Any, _data: Any, _flags: Any, reason: Any, _more: Any) -> None:
            if reason.is_failure:
                logger.warning("the MQTT broker refuses the connection: %s", reason)
            else:
                client.subscribe(self._topic, QUALITY)

        client.on_connect = subscribe
        client.connect_async(*self._address, keepalive=KEEPALIVE_SECONDS)
        client.loop_start()
        self._client = client
        return client

    def _is_again(self, client: Any, message: Any) -> bool:
        """Whether the message is one that was safe and whose acknowledgement the broker missed, or
        one that waits already."""
        digest = _digest(message)
        if not message.dup:
            return False
        if self._safe.get(message.mid) == digest:
            client.ack(message.mid, QUALITY)
            return True
        return (message.mid, digest) in self._waiting.values()

    def _know_safe(self, at_broker: int, digest: str) -> None:
        self._safe.pop(at_broker, None)
        self._safe[at_broker] = digest
        while len(self._safe) > REMEMBERED:
            del self._safe[next(iter(self._safe))]

    def _remember(self) -> None:
        waiting = {str(number): each for number, each in self._waiting.items()}
        safe = [[number, digest] for number, digest in self._safe.items()]
        self._state.save({"waiting": waiting, "safe": safe})

    def _recall(self, position: int) -> None:
        """What was sent on and is safe by now is not taken again; what is not will come again."""
        told = self._state.load() or {"waiting": {}, "safe": []}
        self._safe = {int(number): digest for number, digest in told["safe"]}
        self._waiting = {}
        for number, (at_broker, digest) in told["waiting"].items():
            if int(number) <= position:
                self._know_safe(at_broker, digest)


def _digest(message: Any) -> str:
    content = message.topic.encode() + b"\0" + bytes(message.payload)
    return hashlib.sha256(content).hexdigest()[:32]
