"""Exports as promises: every transition, bounded waiting, releases, limits."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any, cast

import pytest

from barrage.errors import (
    LimitExceededError,
    LocalProtocolError,
    RemoteProtocolError,
    SchemaError,
    TicketError,
)
from barrage.limits import Limits
from barrage.server.access import exports
from barrage.server.access.exports import (
    EXPORT_ID_MAX,
    TRANSITIONS,
    Export,
    ExportExistsError,
    ExportInput,
    ExportState,
    ExportTable,
    ReleaseError,
)
from barrage.server.tables.table_lease import TableLease
from tests.interleaving.seeded_loop import SeededLoop

MS = 1_000_000


def lease() -> TableLease:
    """Stands for a table; exports only pass it on."""
    return cast("TableLease", object())


def table(**limits: int) -> ExportTable:
    return ExportTable(Limits(**{"export_wait_ns_max": 600_000 * MS, **limits}))


def in_state(exported: ExportTable, state: ExportState) -> Export:
    if state is ExportState.AWAITED:
        return exported.find(1)
    export = exported.define(1)
    if state is ExportState.READY:
        export.fulfil(lease())
    elif state is ExportState.FAILED:
        export.fail(SchemaError("no"))
    elif state is ExportState.RELEASED:
        exported.release(1)
    return export


ACTIONS: dict[ExportInput, Any] = {
    ExportInput.DEFINE: lambda export: export._define(),
    ExportInput.FULFIL: lambda export: export.fulfil(lease()),
    ExportInput.FAIL: lambda export: export.fail(SchemaError("no")),
    ExportInput.RELEASE: lambda export: export._release(),
}


@pytest.mark.parametrize(("state", "stimulus"), list(itertools.product(ExportState, ExportInput)))
def test_every_input_in_every_state_is_declared_or_refused(state, stimulus):
    export = in_state(table(), state)
    assert export.state is state
    following = TRANSITIONS.get((state, stimulus))
    if following is None:
        with pytest.raises(LocalProtocolError):
            ACTIONS[stimulus](export)
        following = state
    else:
        ACTIONS[stimulus](export)
    assert export.state is following
    assert (export.lease is not None) is (following is ExportState.READY)
    assert (export.error is not None) is (following is ExportState.FAILED)


def test_who_asks_before_the_producer_has_come_waits_for_it():
    async def scene() -> None:
        exported, found = table(export_wait_ns_max=5000 * MS), lease()
        consumers = [asyncio.ensure_future(exported.find(10).table_lease()) for _ in range(3)]
        await asyncio.sleep(0)
        export = exported.define(10)
        await asyncio.sleep(0)
        assert not any(consumer.done() for consumer in consumers)
        export.fulfil(found)
        assert [await consumer for consumer in consumers] == [found] * 3
        assert await exported.find(10).table_lease() is found

    asyncio.run(scene())


def test_consumers_fail_with_the_producers_error():
    async def scene() -> None:
        exported, error = table(), SchemaError("no such column")
        waiting = asyncio.ensure_future(exported.find(1).table_lease())
        await asyncio.sleep(0)
        exported.define(1).fail(error)
        for consumer in (waiting, exported.find(1).table_lease()):
            with pytest.raises(SchemaError) as caught:
                await consumer
            assert caught.value is error

    asyncio.run(scene())


def test_waiting_for_what_nobody_defines_ends_and_leaves_nothing():
    async def scene() -> None:
        exported = table(export_wait_ns_max=20 * MS)
        with pytest.raises(TicketError, match="export 7 was not defined"):
            await exported.find(7).table_lease()
        assert len(exported) == 0
        exported.define(7).fulfil(lease())

    asyncio.run(scene())


def test_who_gives_up_waiting_leaves_nothing():
    async def scene() -> None:
        exported = table()
        waiting = [asyncio.create_task(exported.find(1).table_lease()) for _ in range(2)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        await asyncio.gather(waiting[0], return_exceptions=True)
        assert len(exported) == 1
        waiting[1].cancel()
        await asyncio.gather(waiting[1], return_exceptions=True)
        assert len(exported) == 0

    asyncio.run(scene())


def test_of_two_who_wait_in_vain_the_last_cleans_up():
    async def scene() -> None:
        exported = table(export_wait_ns_max=40 * MS)
        first = asyncio.ensure_future(exported.find(7).table_lease())
        await asyncio.sleep(0.02)
        second = asyncio.ensure_future(exported.find(7).table_lease())
        with pytest.raises(TicketError):
            await first
        assert len(exported) == 1
        with pytest.raises(TicketError):
            await second
        assert len(exported) == 0

    loop = SeededLoop(0)  # Its time is virtual: the two never end together.
    loop.delay_chance = 0.0
    loop.run_until_complete(scene())
    loop.close()


def test_two_exports_made_from_each_other_do_not_wait_for_ever(monkeypatch):
    monkeypatch.setattr(exports, "PRODUCER_WAITS", 2)

    async def scene() -> None:
        exported = table(export_wait_ns_max=20 * MS)
        one, two = exported.define(1), exported.define(2)
        results = await asyncio.gather(one.table_lease(), two.table_lease(), return_exceptions=True)
        assert [str(result) for result in results] == [
            "export 1 was not finished in time",
            "export 2 was not finished in time",
        ]

    asyncio.run(scene())


def test_a_cancelled_consumer_leaves_the_export_alone():
    async def scene() -> None:
        exported = table(export_wait_ns_max=5000 * MS)
        export = exported.define(1)
        waiting = asyncio.ensure_future(export.table_lease())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert not export.has_waiters
        export.fulfil(lease())

    asyncio.run(scene())


def test_a_release_ends_the_wait():
    async def scene() -> None:
        exported = table(export_wait_ns_max=5000 * MS)
        exported.define(1)
        waiting = asyncio.ensure_future(exported.find(1).table_lease())
        await asyncio.sleep(0)
        exported.release(1)
        with pytest.raises(TicketError, match="export 1 was released"):
            await waiting

    asyncio.run(scene())


@pytest.mark.parametrize("state", [ExportState.PENDING, ExportState.READY, ExportState.FAILED])
def test_an_id_in_use_cannot_be_defined_again(state):
    exported = table()
    in_state(exported, state)
    with pytest.raises(ExportExistsError, match="export 1 is in use"):
        exported.define(1)
    exported.release(1)
    exported.define(1)


def test_releasing_again_is_as_good_as_once():
    exported = table()
    exported.define(1).fulfil(lease())
    exported.release(1)
    exported.release(1)
    with pytest.raises(TicketError, match="was released"):
        exported.find(1)


def test_releasing_what_nobody_has_defined():
    exported = table()
    with pytest.raises(ReleaseError, match="export 5 is not defined"):
        exported.release(5)
    exported.find(5)
    with pytest.raises(ReleaseError):
        exported.release(5)


def test_only_so_many_released_ids_are_remembered(monkeypatch):
    monkeypatch.setattr(exports, "RELEASED_REMEMBERED", 3)
    exported = table()
    for export_id in range(1, 6):
        exported.define(export_id)
        exported.release(export_id)
    exported.release(3)
    with pytest.raises(ReleaseError):
        exported.release(2)


def test_old_failures_do_not_fill_the_table(monkeypatch):
    monkeypatch.setattr(exports, "FAILED_REMEMBERED", 2)
    exported = table()
    for export_id in range(1, 6):
        exported.define(export_id).fail(SchemaError("no"))
    assert [export.export_id for export in exported] == [4, 5]
    exported.release(1)


@pytest.mark.parametrize("export_id", [0, EXPORT_ID_MAX + 1, -EXPORT_ID_MAX - 1])
def test_numbers_that_are_no_export_ids(export_id):
    with pytest.raises(RemoteProtocolError, match="not an export id"):
        table().define(export_id)


def test_negative_ids_are_the_servers():
    exported = table()
    with pytest.raises(TicketError, match="export -1 does not exist"):
        exported.find(-1)
    exported.define(-1).fulfil(lease())
    assert exported.find(-1).state is ExportState.READY


def test_exports_at_the_limit_and_one_past_it():
    exported = table(session_exports_max=2)
    exported.define(1)
    exported.find(2)
    for attempt in (exported.define, exported.find):
        with pytest.raises(LimitExceededError, match="exports"):
            attempt(3)
    exported.release(1)
    exported.define(3)


def test_changes_are_told_until_one_stops_listening():
    exported = table()
    told: list[tuple[int, ExportState]] = []
    stop = exported.on_change(lambda export: told.append((export.export_id, export.state)))
    exported.define(1).fulfil(lease())
    exported.define(2).fail(SchemaError("no"))
    exported.release(1)
    stop()
    exported.release(2)
    assert told == [(1, ExportState.READY), (2, ExportState.FAILED), (1, ExportState.RELEASED)]


def test_closing_releases_everything_for_good():
    exported = table()
    ready, pending = exported.define(1), exported.define(2)
    ready.fulfil(lease())
    gone: list[int] = []
    ready.on_release(lambda: gone.append(1))
    exported.close()
    assert gone == [1]
    assert {ready.state, pending.state} == {ExportState.RELEASED}
    pending.fulfil(lease())
    assert pending.lease is None
    pending.on_release(lambda: gone.append(2))
    assert gone == [1, 2]
    with pytest.raises(TicketError, match="the session is closed"):
        exported.define(3)
