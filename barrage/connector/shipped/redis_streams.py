"""Redis streams, in and out.

In: an entry is a message; its id, milliseconds and a number, becomes one number that grows as they
do. Out: every changed row is an entry, and the cursor of the table is set in the same transaction,
so each change is there exactly once.
"""

from __future__ import annotations

import asyncio
import json
import logging
from typing import TYPE_CHECKING, Any

from barrage.connector.messages import MessageBatch
from barrage.connector.sink import Sink, SinkBatch
from barrage.connector.source import Source
from barrage.errors import ConfigError, SourceLostError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

logger = logging.getLogger(__name__)

SEQUENCE_BITS = 21
"""Of the number behind the milliseconds; two million entries of one millisecond."""
READ_COUNT = 1_000
BLOCK_MS = 500
RETRY_SECONDS = 0.5


def number_of_entry(entry: str) -> int:
    """The id of an entry as a message's; ConfigError for one past what fits."""
    milliseconds, _, sequence = entry.partition("-")
    if int(sequence) >= 1 << SEQUENCE_BITS or int(milliseconds) >= 1 << (63 - SEQUENCE_BITS):
        raise ConfigError(f"entry {entry} of a Redis stream has a number that is too large")
    return int(milliseconds) << SEQUENCE_BITS | int(sequence)


def entry_of_number(number: int) -> str:
    """The other way."""
    return f"{number >> SEQUENCE_BITS}-{number & ((1 << SEQUENCE_BITS) - 1)}"


def _client(url: str) -> Any:
    try:
        from redis import asyncio as redis
    except ImportError:
        raise ConfigError("Redis needs a library: pip install 'barrage[connectors]'") from None
    return redis.Redis.from_url(url)


class RedisStream(Source):
    """Entries of one stream. ``field`` is the one that is the payload; without it the payload is
    all fields as a JSON object. SourceLostError when entries were trimmed that nobody has read."""

    def __init__(
        self,
        url: str,
        stream: str,
        *,
        field: str | None = None,
        key_field: str | None = None,
        name: str | None = None,
        follows: bool = True,
    ) -> None:
        self._url = url
        self._stream = stream
        self._field = field
        self._key_field = key_field
        self.name = name or f"redis:{stream}"
        self._follows = follows
        self._read_count: int | None = None
        """Entries the stream had ever had when its end was read last."""

    async def read(self, after: int | None) -> AsyncIterator[MessageBatch]:
        """See :class:`~barrage.connector.source.Source`."""
        from redis.exceptions import ConnectionError as RedisConnectionError
        from redis.exceptions import TimeoutError as RedisTimeoutError

        last = None if after is None else entry_of_number(after)
        self._read_count = None
        client = _client(self._url)
        try:
            while True:
                try:
                    entries = await self._entries(client, last)
                except (RedisConnectionError, RedisTimeoutError, OSError) as error:
                    logger.info("Redis: %s", error)
                    await asyncio.sleep(RETRY_SECONDS)
                    continue
                if entries:
                    last = entries[-1][0].decode()
                    yield self._batch(entries)
                elif not self._follows:
                    return
        finally:
            await client.aclose()

    async def _entries(self, client: Any, last: str | None) -> list[Any]:
        """What comes after ``last``; empty when nothing has come for a while."""
        from redis.exceptions import ResponseError

        async with client.pipeline(transaction=True) as together:
            together.xinfo_stream(self._stream)
            together.xread({self._stream: last or "0"}, count=READ_COUNT)
            facts, found = await together.execute(raise_on_error=False)
        if isinstance(facts, ResponseError):
            if last is not None:
                raise SourceLostError(
                    f"Redis has no stream {self._stream!r} any more, which was read up to {last}"
                )
            facts = None
        for each in (facts, found):
            if isinstance(each, Exception):
                raise each
        if facts is not None:
            self._check_trimmed({_text(name): value for name, value in facts.items()}, last)
        if found:
            # Two versions of the protocol answer in two forms.
            entries = next(iter(found.values()))[0] if isinstance(found, dict) else found[0][1]
            if facts is not None and len(entries) < READ_COUNT:
                self._read_count = _number(facts, "entries-added")
            else:
                self._read_count = None
            return list(entries)
        if self._follows:
            await client.xread({self._stream: last or "0"}, count=1, block=BLOCK_MS)
        return []

    def _check_trimmed(self, facts: dict[str, Any], last: str | None) -> None:
        """SourceLostError when entries after ``last`` may be gone."""
        if last is None:
            return
        newest = _text(facts["last-generated-id"])
        if _order(newest) < _order(last):
            raise SourceLostError(
                f"Redis stream {self._stream!r} ends at {newest}, and was read up to {last}: it is "
                "another one"
            )
        first = facts.get("first-entry")
        first_id = None if not first else _text(first[0])
        is_whole = newest == last if first_id is None else _order(first_id) <= _order(last)
        if is_whole:
            return
        removed = int(facts.get("entries-added", 0)) - int(facts["length"])
        if self._read_count is None or removed > self._read_count:
            raise SourceLostError(
                f"Redis stream {self._stream!r} was read up to {last} and begins at {first_id}: "
                "entries between were trimmed"
            )

    def _batch(self, entries: list[Any]) -> MessageBatch:
        payloads, keys = [], []
        for _, fields in entries:
            if self._field is None:
                texts = {_text(name): _text(value) for name, value in fields.items()}
                payloads.append(json.dumps(texts).encode())
            else:
                payloads.append(fields.get(self._field.encode(), b""))
            keys.append(
                b"" if self._key_field is None else fields.get(self._key_field.encode(), b"")
            )
        ids = [number_of_entry(entry.decode()) for entry, _ in entries]
        times = [number >> SEQUENCE_BITS for number in ids]
        return MessageBatch(ids=ids, payloads=payloads, keys=keys, event_times=times)


class RedisSink(Sink):
    """Every changed row becomes an entry: ``change`` and ``row``, a JSON object."""

    def __init__(self, url: str, stream: str, *, name: str = "barrage") -> None:
        self._client = _client(url)
        self._stream = stream
        self._cursor = f"barrage:cursor:{name}:{stream}"

    @property
    def keeps_position(self) -> bool:
        """See :class:`~barrage.connector.sink.Sink`."""
        return True

    async def position(self) -> str | None:
        """See :class:`~barrage.connector.sink.Sink`."""
        found = await self._client.get(self._cursor)
        return None if found is None else found.decode()

    async def write(self, batch: SinkBatch) -> None:
        """See :class:`~barrage.connector.sink.Sink`."""
        kinds = batch.changes["_change_type"].to_pylist()
        rows = batch.rows
        async with self._client.pipeline(transaction=True) as together:
            for kind, row in zip(kinds, rows.to_pylist(), strict=True):
                entry = {"change": kind, "row": json.dumps(row, default=str)}
                together.xadd(self._stream, entry)
            together.set(self._cursor, batch.cursor)
            await together.execute()

    async def close(self) -> None:
        """End the connection."""
        await self._client.aclose()


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _number(facts: dict[Any, Any], name: str) -> int | None:
    found = facts.get(name, facts.get(name.encode()))
    return None if found is None else int(found)


def _order(entry: str) -> tuple[int, int]:
    milliseconds, _, sequence = entry.partition("-")
    return int(milliseconds), int(sequence or 0)
