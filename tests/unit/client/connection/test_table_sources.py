"""Tables of a session: when what they stand for is made again."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from barrage.client.connection.export_calls import ExportedTable
from barrage.client.connection.table_sources import ExportSource
from barrage.errors import BarrageError, CycleTooLongError, StatusCode, TableFailedError
from barrage.transport.status import error_from_status

ENDED = error_from_status(StatusCode.ABORTED, str(CycleTooLongError()))
HAD_BEEN_ENDED = TableFailedError(f"Table is already failed: {CycleTooLongError()}")
FAILED = TableFailedError("Table is already failed: division by zero")


class Scene:
    """A source whose exports are counted."""

    def __init__(self, *, can_export: bool = True) -> None:
        self.released: list[bytes] = []
        self.left: list[BarrageError] = []
        self.count = 0
        calls = SimpleNamespace(
            generation=1, release_soon=lambda exported: self.released.append(exported.ticket)
        )
        connection: Any = SimpleNamespace(
            calls=calls, address="a", leave=lambda _, error: self.left.append(error)
        )
        self.source = ExportSource(
            connection,
            "t",
            export=self.export if can_export else None,
            exported=None if can_export else self.made(),
        )
        self.source.retain()

    def made(self) -> ExportedTable:
        self.count += 1
        return ExportedTable(
            ticket=b"e%d" % self.count, generation=1, schema=pa.schema([]), is_static=False, size=0
        )

    async def export(self) -> ExportedTable:
        return self.made()


@pytest.mark.parametrize("error", [ENDED, HAD_BEEN_ENDED])
def test_what_was_ended_is_made_again_once_for_all_who_had_it(error: BarrageError) -> None:
    async def test() -> None:
        scene = Scene()
        source = scene.source
        assert await source.ticket() == b"e1"
        attempts = [source.attempt() for _ in range(2)]
        assert source.is_made_again(error)
        source.note_failure(attempts[0], error)
        assert await source.ticket() == b"e2"
        source.note_failure(attempts[1], error)
        assert await source.ticket() == b"e2"
        assert scene.released == [b"e1"]
        assert scene.left == [error, error]

    asyncio.run(test())


def test_what_was_made_by_the_attempt_that_failed_is_made_again() -> None:
    async def test() -> None:
        scene = Scene()
        attempt = scene.source.attempt()
        assert await scene.source.ticket() == b"e1"
        scene.source.note_failure(attempt, ENDED)
        assert await scene.source.ticket() == b"e2"

    asyncio.run(test())


def test_what_failed_by_itself_would_fail_again() -> None:
    async def test() -> None:
        scene = Scene()
        assert await scene.source.ticket() == b"e1"
        assert not scene.source.is_made_again(FAILED)
        scene.source.note_failure(scene.source.attempt(), FAILED)
        assert await scene.source.ticket() == b"e1"

    asyncio.run(test())


def test_what_cannot_be_made_again_stays() -> None:
    async def test() -> None:
        scene = Scene(can_export=False)
        assert not scene.source.is_made_again(HAD_BEEN_ENDED)
        scene.source.note_failure(scene.source.attempt(), ENDED)
        assert await scene.source.ticket() == b"e1"
        assert scene.released == []

    asyncio.run(test())
