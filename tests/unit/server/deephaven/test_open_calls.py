"""Calls that stay open as long as their session: names of tables, sizes of exports, logs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pyarrow as pa
import pytest

from barrage.errors import (
    AuthenticationError,
    BarrageError,
    LocalProtocolError,
    SubscriptionClosedError,
    TransportError,
)
from barrage.server.deephaven import table_updates
from barrage.server.deephaven.application_calls import ApplicationCalls
from barrage.server.deephaven.console_calls import ConsoleCalls
from barrage.server.deephaven.session_calls import SessionCalls
from barrage.server.deephaven.session_end import until_session_ends
from barrage.server.deephaven.table_updates import TableUpdates
from barrage.server.policy.access_gate import AccessGate
from barrage.server.tables.table_service import Change
from barrage.transport.deephaven_messages import MESSAGES
from tests.unit.server.deephaven.conftest import Bench, WrittenContext, run

ROWS = pa.table({"x": [1, 2]})
GONE = AuthenticationError("the session was closed")
STOPPING = TransportError("the server is shutting down")

Call = Callable[[bytes, Any, Any], Coroutine[Any, Any, None]]


def list_fields(bench: Bench) -> Call:
    return ApplicationCalls(bench.tables, AccessGate()).list_fields


def sizes(_: Bench) -> Call:
    return TableUpdates().exported_table_updates


def logs(bench: Bench) -> Call:
    return ConsoleCalls(bench.resolver, bench.tables, gate=AccessGate()).subscribe_to_logs


def tasks_left() -> int:
    return len(asyncio.all_tasks()) - 1


# --- the end of a session ---


@pytest.mark.parametrize(
    ("make", "error"), [(list_fields, SubscriptionClosedError), (sizes, None), (logs, None)]
)
def test_a_closed_session_ends_the_call(bench, make, error):
    """As the reference server does: ListFields is cancelled, the others end well."""

    async def follow() -> None:
        call = asyncio.create_task(make(bench)(b"", WrittenContext(), bench.session))
        await asyncio.sleep(0.05)
        assert not call.done()
        bench.session._close(GONE)
        if error is None:
            await call
        else:
            with pytest.raises(error, match="subscription cancelled"):
                await call
        assert tasks_left() == 0

    run(follow())


@pytest.mark.parametrize("make", [list_fields, sizes, logs])
def test_a_server_that_goes_away_says_so(bench, make):
    async def follow() -> None:
        call = asyncio.create_task(make(bench)(b"", WrittenContext(), bench.session))
        await asyncio.sleep(0.02)
        bench.session._close(STOPPING)
        with pytest.raises(TransportError, match="shutting down"):
            await call
        assert tasks_left() == 0

    run(follow())


@pytest.mark.parametrize("make", [list_fields, sizes, logs])
def test_a_cancelled_call_leaves_nothing(bench, make):
    async def follow() -> None:
        call = asyncio.create_task(make(bench)(b"", WrittenContext(), bench.session))
        await asyncio.sleep(0.02)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert tasks_left() == 0
        assert not bench.session._listeners
        assert not bench.session.exports._listeners
        await asyncio.wrap_future(bench.tables.listing())
        assert not bench.catalog._listeners

    run(follow())


@pytest.mark.parametrize("make", [list_fields, sizes, logs])
def test_headers_go_out_before_there_is_anything_to_tell(bench, make):
    async def steps(context: WrittenContext) -> None:
        await asyncio.sleep(0)
        assert context.has_headers

    run(following(bench, make, steps))


def test_work_that_fails_fails_the_call(bench):
    async def work() -> None:
        raise LocalProtocolError("wrong")

    async def follow() -> None:
        with pytest.raises(LocalProtocolError):
            await until_session_ends(bench.session, work())

    run(follow())


def test_work_that_is_done_ends_the_call(bench):
    async def work() -> None:
        pass

    async def follow() -> None:
        assert await until_session_ends(bench.session, work()) is None

    run(follow())


# --- ListFields ---


def fields(messages: list[bytes]) -> list[tuple[list[str], list[str], list[str]]]:
    decoded = [MESSAGES.decode("FieldsChangeUpdate", message) for message in messages]
    return [
        tuple([f.field_name for f in group] for group in (m.created, m.updated, m.removed))
        for m in decoded
    ]


async def following(bench: Bench, make: Callable[[Bench], Call], steps: Any) -> None:
    context = WrittenContext()
    call = asyncio.create_task(make(bench)(b"", context, bench.session))
    try:
        await steps(context)
    finally:
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)


def test_fields_are_told_as_the_real_server_tells_them(bench):
    bench.create("quotes", ROWS)

    async def steps(context: WrittenContext) -> None:
        (first,) = await context.wait_for(1)
        (field,) = MESSAGES.decode("FieldsChangeUpdate", first).created
        assert field.typed_ticket.ticket.ticket == b"s/quotes"
        assert field.typed_ticket.type == "Table"
        assert field.field_name == "quotes"
        assert (field.application_id, field.application_name) == ("scope", "")
        assert field.field_description

    run(following(bench, list_fields, steps))


def test_fields_follow_the_catalog(bench):
    bench.create("b", ROWS)
    bench.create("a", ROWS)

    async def steps(context: WrittenContext) -> None:
        await context.wait_for(1)
        await asyncio.to_thread(bench.create, "c", ROWS)
        await context.wait_for(2)
        bound = await asyncio.to_thread(lambda: bench.tables.create_static(ROWS).result())
        await asyncio.wrap_future(bench.tables.bind("b", bound))
        await context.wait_for(3)
        await asyncio.wrap_future(bench.tables.drop("a"))
        assert fields(await context.wait_for(4)) == [
            (["a", "b"], [], []),
            (["c"], [], []),
            ([], ["b"], []),
            ([], [], ["a"]),
        ]

    run(following(bench, list_fields, steps))


def test_the_first_message_comes_without_any_table(bench):
    async def steps(context: WrittenContext) -> None:
        assert fields(await context.wait_for(1)) == [([], [], [])]

    run(following(bench, list_fields, steps))


# --- ExportedTableUpdates ---


def told(messages: list[bytes]) -> list[tuple[bytes, int]]:
    decoded = [MESSAGES.decode("ExportedTableUpdateMessage", message) for message in messages]
    return [(bytes(m.export_id.ticket), m.size) for m in decoded]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_updates, "LOOK_INTERVAL_S", 0.05)


def test_sizes_start_with_the_exports_there_are(bench, quick):
    bench.static(1, ROWS)
    bench.static(7, ROWS.slice(2))

    async def steps(context: WrittenContext) -> None:
        assert told(await context.wait_for(2)) == [
            (b"e\x01\x00\x00\x00", 2),
            (b"e\x07\x00\x00\x00", 0),
        ]

    run(following(bench, sizes, steps))


def test_sizes_are_told_when_they_change_and_only_then(bench, quick):
    bench.static(1, ROWS)
    ticking = bench.create("t", ROWS)
    bench.export(2, ticking)

    async def steps(context: WrittenContext) -> None:
        await context.wait_for(2)
        await asyncio.sleep(0.12)
        assert len(context.messages) == 2
        await asyncio.wrap_future(bench.tables.change([Change(ticking, "stage_add", (ROWS,))]))
        assert told(await context.wait_for(3))[2] == (b"e\x02\x00\x00\x00", 4)
        bench.static(3, ROWS)
        assert told(await context.wait_for(4))[3] == (b"e\x03\x00\x00\x00", 2)

    run(following(bench, sizes, steps))


def test_many_changes_between_two_looks_are_one_message(bench, monkeypatch):
    looks = asyncio.Semaphore(1)

    async def wait(sizes: table_updates.ExportSizes) -> bool:
        await looks.acquire()
        return True

    monkeypatch.setattr(table_updates.ExportSizes, "wait", wait)
    ticking = bench.create("t", ROWS)
    bench.export(1, ticking)

    async def steps(context: WrittenContext) -> None:
        await context.wait_for(1)
        for _ in range(100):
            bench.tables.change([Change(ticking, "stage_add", (ROWS,))])
        await asyncio.wrap_future(bench.tables.change([Change(ticking, "stage_add", (ROWS,))]))
        looks.release()
        messages = await context.wait_for(2)
        assert len(messages) == 2
        assert told(messages)[-1][1] == 204

    run(following(bench, sizes, steps))


def test_released_exports_are_forgotten_and_their_ids_start_anew(bench, quick):
    bench.export(1, bench.create("t", ROWS))

    async def steps(context: WrittenContext) -> None:
        await context.wait_for(1)
        bench.session.exports.release(1)
        bench.static(1, ROWS)
        assert told(await context.wait_for(2))[1] == (b"e\x01\x00\x00\x00", 2)

    run(following(bench, sizes, steps))


def test_an_export_that_fails_is_not_told(bench, quick):
    async def steps(context: WrittenContext) -> None:
        bench.session.exports.define(1).fail(GONE)
        bench.static(2, ROWS)
        assert told(await context.wait_for(1)) == [(b"e\x02\x00\x00\x00", 2)]

    run(following(bench, sizes, steps))


def test_a_table_that_fails_is_told_once(bench, quick):
    table = bench.create("t", ROWS)
    bench.export(1, table)

    async def steps(context: WrittenContext) -> None:
        await context.wait_for(1)
        await asyncio.wrap_future(bench.tables.run(lambda: table.fail(STOPPING)))
        await context.wait_for(2)
        await asyncio.sleep(0.12)
        message = MESSAGES.decode("ExportedTableUpdateMessage", context.messages[-1])
        assert "shutting down" in message.update_failure_message
        assert len(context.messages) == 2

    run(following(bench, sizes, steps))


# --- exports whose call fails ---


@pytest.mark.parametrize("error", [KeyError("x"), asyncio.CancelledError(), GONE], ids=repr)
def test_an_export_whose_call_fails_in_any_way_fails_at_once(bench, monkeypatch, error):
    async def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(bench.resolver, "resolve", fail)
    calls = SessionCalls(None, bench.resolver, bench.limits)
    request = MESSAGES.encode(
        "ExportRequest",
        source_id=MESSAGES.new("Ticket", ticket=b"e\x01\0\0\0"),
        result_id=MESSAGES.new("Ticket", ticket=b"e\x02\0\0\0"),
    )

    async def scene() -> None:
        with pytest.raises(type(error)):
            await calls.export_from_ticket(request, None, bench.session)
        with pytest.raises(BarrageError):
            await bench.session.exports.find(2).table_lease()

    run(scene())
