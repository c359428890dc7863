"""Subscriptions that go on where they were, against a scripted server."""

from __future__ import annotations

import asyncio
import functools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrage.client.connection.reconnect import Backoff
from barrage.client.subscriptions.resume import NO_HISTORY, SWITCHED_OFF
from barrage.client.subscriptions.state import State
from barrage.client.updates.rekeying import Rekeying, shifts_between
from barrage.errors import ConfigError, ConnectionLostError, CursorError, SchemaError
from barrage.model.cursor import Cursor
from barrage.model.update import FullUpdate
from barrage.proto.resumption import (
    CURSOR_HEADER,
    EPOCH_HEADER,
    RESUME_HEADER,
    RESUMED_HEADER,
    Outcome,
    ResumeMode,
    ResumeRequest,
    parse_epoch,
    parse_outcome,
)
from barrage.rowset import RowSet, RowSetShiftData
from barrage.wire.updates.update_codec import EncodeOptions, UpdateEncoder
from tests.unit.client.scripted import EMPTY, SCHEMA, cells, run, scripted_session, until

EPOCH = "0123456789abcdef"
AT_ONCE = Backoff(first_seconds=0.0)


def asynchronous(test):
    """A test with a scripted server."""

    @functools.wraps(test)
    def runs(**arguments):
        async def body():
            async with scripted_session() as (session, server):
                await test(session, server, **arguments)

        run(body)

    del runs.__wrapped__
    return runs


def xs(live):
    return live.to_arrow().column("x").to_pylist()


def told(outcome=None):
    """A server's headers."""
    return {EPOCH_HEADER: EPOCH} | ({} if outcome is None else {RESUMED_HEADER: outcome})


def rows(*numbers):
    return pa.table(list(cells(numbers)), schema=SCHEMA)


async def first_life(server, *, keys="0,10,20", numbers=(1, 2, 3), step=7):
    """A full subscription of a journaled table that breaks; the stream that follows."""
    stream = await server.accept()
    await stream.request()
    stream.answer = told()
    stream.schema()
    stream.full(RowSet.parse(keys), numbers, is_snapshot=True, step=step)
    return stream


@asynchronous
async def test_a_full_subscription_goes_on_from_its_rows(session, server):
    states = []
    async with session.table("t").subscribe(reconnect=AT_ONCE) as live:
        live.on_state(states.append)
        stream = await first_life(server)
        await live.wait_ready(60)
        assert live.cursor == Cursor(EPOCH, 7)
        assert live.resumption is None
        updates = live.updates()
        assert (await anext(updates)).cursor == Cursor(EPOCH, 7)
        stream.end(ConnectionLostError("gone"))

        second = await server.accept()
        assert second.request_headers[CURSOR_HEADER] == f"{EPOCH}:7"
        assert second.request_headers[RESUME_HEADER] == "coalesced"
        second.answer = told("replayed 17")
        second.schema()
        # Row 1 goes; rows 0 and 2 move to the keys 0 and 30; row 40 comes.
        second.full(
            RowSet.parse("40"), [4], removed=RowSet.parse("1"),
            shifts=RowSetShiftData.from_shifts([(2, 2, 28)]), step=24,
            modified=(RowSet.parse("0"), [11]),
        )  # fmt: skip
        update = await anext(updates)
        assert not update.is_replacement
        assert not update.is_snapshot
        # In the keys the consumer knows: 10 goes, 20 becomes 30.
        assert update.removed_rows == RowSet.parse("10")
        assert update.removed.column("x").to_pylist() == [2]
        assert list(update.shifts) == [(20, 20, 10)]
        assert update.added_rows == RowSet.parse("40")
        assert update.modified["x"].to_pylist() == [11]
        assert update.cursor == live.cursor == Cursor(EPOCH, 24)
        assert xs(live) == [11, 3, 4]
        assert live.resumption == "replayed 17 steps"
        assert live.state is State.LIVE
        # And on, in the new keys.
        second.full(removed=RowSet.parse("30"), step=25)
        update = await anext(updates)
        assert update.removed_rows == RowSet.parse("30")
        assert xs(live) == [11, 4]
    assert states == [
        State.SNAPSHOT, State.LIVE, State.RECONNECTING, State.SNAPSHOT, State.RESUMED, State.LIVE,
        State.CLOSED,
    ]  # fmt: skip


@asynchronous
async def test_equal_keys_need_no_shifts(session, server):
    async with session.table("t").subscribe(reconnect=AT_ONCE) as live:
        stream = await first_life(server)
        await live.wait_ready(60)
        updates = live.updates()
        await anext(updates)
        stream.end(ConnectionLostError("gone"))
        second = await server.accept()
        second.answer = told("live")
        second.schema()
        shifts = RowSetShiftData.from_shifts([(1, 1, 9), (2, 2, 18)])
        second.full(shifts=shifts, step=7)
        update = await anext(updates)
        assert update.shifts.is_empty
        assert update.row_count == 0
        assert live.resumption == "live"
        second.full(RowSet.parse("21"), [9], step=8)
        assert (await anext(updates)).added_rows == RowSet.parse("21")
        assert xs(live) == [1, 2, 3, 9]


@asynchronous
async def test_a_resumed_stream_that_breaks_at_once_is_resumed_again(session, server):
    async with session.table("t").subscribe(reconnect=AT_ONCE) as live:
        stream = await first_life(server)
        await live.wait_ready(60)
        stream.end(ConnectionLostError("gone"))
        for _ in range(2):
            stream = await server.accept()
            assert stream.request_headers[CURSOR_HEADER] == f"{EPOCH}:7"
            stream.answer = told("replayed 1")
            stream.schema()
            stream.end(ConnectionLostError("gone again"))
        stream = await server.accept()
        # A late reader starts from the keys of before, which nobody has replaced yet.
        updates = live.updates()
        assert (await anext(updates)).added_rows == RowSet.parse("0,10,20")
        stream.answer = told("replayed 1")
        stream.schema()
        stream.full(removed=RowSet.parse("2"), step=8)
        update = await anext(updates)
        assert update.removed_rows == RowSet.parse("20")
        assert list(update.shifts) == [(10, 10, -9)]
        assert xs(live) == [1, 2]


@asynchronous
async def test_a_snapshot_instead_says_why(session, server):
    async with session.table("t").subscribe(reconnect=AT_ONCE) as live:
        stream = await first_life(server)
        await live.wait_ready(60)
        updates = live.updates()
        await anext(updates)
        stream.end(ConnectionLostError("gone"))
        second = await server.accept()
        second.answer = told("resnapshot the journal begins at step 9")
        second.schema()
        second.snapshot([8, 9], step=11)
        update = await anext(updates)
        assert update.is_replacement
        assert live.resumption == "resnapshot (the journal begins at step 9)"
        assert live.cursor == Cursor(EPOCH, 11)


@asynchronous
async def test_without_history_nothing_is_asked(session, server):
    async with session.table("t").subscribe(reconnect=AT_ONCE) as live:
        stream = await server.accept()
        stream.schema()
        stream.snapshot([1])
        await live.wait_ready(60)
        assert live.cursor is None
        stream.end(ConnectionLostError("gone"))
        second = await server.accept()
        assert CURSOR_HEADER not in second.request_headers
        second.schema()
        second.snapshot([2])
        await live.wait_ready(60)
        assert live.resumption == f"resnapshot ({NO_HISTORY})"


@asynchronous
async def test_resuming_can_be_switched_off(session, server):
    async with session.table("t").subscribe(reconnect=AT_ONCE, resume="off") as live:
        stream = await first_life(server)
        await live.wait_ready(60)
        assert live.cursor == Cursor(EPOCH, 7)
        stream.end(ConnectionLostError("gone"))
        second = await server.accept()
        assert CURSOR_HEADER not in second.request_headers
        second.answer = told()
        second.schema()
        second.snapshot([2])
        await live.wait_ready(60)
        assert live.resumption == f"resnapshot ({SWITCHED_OFF})"


@asynchronous
async def test_a_server_that_ignores_the_cursor(session, server):
    async with session.table("t").subscribe(reconnect=AT_ONCE) as live:
        stream = await first_life(server)
        await live.wait_ready(60)
        stream.end(ConnectionLostError("gone"))
        second = await server.accept()
        second.schema()
        second.snapshot([2])
        await live.wait_ready(60)
        assert live.resumption == "resnapshot (the server knows nothing of cursors)"
        assert live.cursor is None


@asynchronous
async def test_steps_come_one_by_one(session, server):
    async with session.table("t").subscribe(reconnect=AT_ONCE, resume="steps") as live:
        stream = await first_life(server, keys="0-2")
        await live.wait_ready(60)
        stream.end(ConnectionLostError("gone"))
        second = await server.accept()
        assert second.request_headers[RESUME_HEADER] == "steps"
        second.answer = told("replayed 3 in 3 updates")
        second.schema()
        updates = live.updates()
        await anext(updates)
        for step in (8, 9, 10):
            assert live.state is State.SNAPSHOT
            second.full(RowSet.of_span(step, step + 1), [step], step=step)
            update = await anext(updates)
            assert update.last_step == step
            assert live.cursor == Cursor(EPOCH, step)
        await live.wait_ready(60)
        assert live.state is State.LIVE
        assert xs(live) == [1, 2, 3, 8, 9, 10]


@asynchronous
async def test_a_moved_view_resumes_with_the_old_rows_and_moves_then(session, server):
    table = session.table("t")
    async with table.subscribe(viewport=(0, 3), reconnect=AT_ONCE) as live:
        stream = await server.accept()
        await stream.request()
        stream.answer = told()
        stream.schema()
        stream.view("0-2", [1, 2, 3], viewport=RowSet.parse("0-2"))
        await live.wait_ready(60)
        updates = live.updates()
        await anext(updates)
        stream.end(ConnectionLostError("gone"))
        await until(lambda: live.state is State.RECONNECTING)
        await live.set_viewport((5, 7))
        second = await server.accept()
        request = await second.request()
        assert request.viewport == RowSet.parse("0-2")
        second.answer = told("replayed 2")
        second.schema()
        second.view("2", [4], removed="0", size=101)
        update = await anext(updates)
        assert not update.is_replacement
        assert xs(live) == [2, 3, 4]
        request = await second.request()
        assert request.viewport == RowSet.parse("5-6")
        waiting = asyncio.ensure_future(live.wait_ready(60))
        await asyncio.sleep(0)
        assert not waiting.done()
        second.view("0-1", [6, 7], removed="0-2", viewport=RowSet.parse("5-6"), size=101)
        await waiting
        assert xs(live) == [6, 7]
        assert live.table_size == 101


@asynchronous
async def test_a_view_that_did_not_move_asks_for_nothing_more(session, server):
    table = session.table("t")
    async with table.subscribe(viewport=(0, 2), columns=["s", "x"], reconnect=AT_ONCE) as live:
        stream = await server.accept()
        stream.answer = told()
        stream.schema()
        stream.view("0-1", [1, 2], viewport=RowSet.parse("0-1"))
        await live.wait_ready(60)
        stream.end(ConnectionLostError("gone"))
        second = await server.accept()
        await second.request()
        second.answer = told("live")
        second.schema()
        second.view()
        await live.wait_ready(60)
        assert live.resumption == "live"
        assert second._to_server.empty()
        assert live.to_arrow().column_names == ["s", "x"]


@asynchronous
async def test_a_change_while_resuming_waits(session, server):
    async with session.table("t").subscribe(viewport=(0, 1), reconnect=AT_ONCE) as live:
        stream = await server.accept()
        stream.answer = told()
        stream.schema()
        stream.view("0", [1], viewport=RowSet.parse("0"))
        await live.wait_ready(60)
        stream.end(ConnectionLostError("gone"))
        second = await server.accept()
        await second.request()
        second.answer = told("live")
        second.schema()
        await until(lambda: second.frames_read == 1)
        await live.set_viewport((3, 4))
        assert second._to_server.empty()
        second.view()
        assert (await second.request()).viewport == RowSet.parse("3")


@asynchronous
async def test_a_state_in_the_making_is_not_lost(session, server):
    """The stream breaks between an old view and its new one: the old one is resumed."""
    async with session.table("t").subscribe(viewport=(0, 2), reconnect=AT_ONCE) as live:
        stream = await server.accept()
        stream.answer = told()
        stream.schema()
        stream.view("0-1", [1, 2], viewport=RowSet.parse("0-1"))
        await live.wait_ready(60)
        await live.set_viewport((4, 8))
        # A part of the new view: the old rows stay on show.
        stream.view("0", [5], removed="0-1", viewport=RowSet.parse("4"))
        await until(lambda: stream.frames_read >= 3)
        stream.end(ConnectionLostError("gone"))
        second = await server.accept()
        assert xs(live) == [1, 2]
        assert (await second.request()).viewport == RowSet.parse("0-1")
        second.answer = told("replayed 1")
        second.schema()
        second.view("0", [0], removed="1")
        await until(lambda: xs(live) == [0, 1])
        assert (await second.request()).viewport == RowSet.parse("4-7")


@asynchronous
async def test_a_fresh_process_goes_on_from_kept_rows(session, server):
    opening = session.table("t").subscribe(resume_from=f"{EPOCH}:5", rows=rows(1, 2))
    async with opening as live:
        assert live.cursor == Cursor(EPOCH, 5)
        assert xs(live) == [1, 2]
        updates = live.updates()
        first = await anext(updates)
        assert first.is_replacement
        assert first.added_rows == RowSet.parse("0-1")
        stream = await server.accept()
        assert stream.request_headers[CURSOR_HEADER] == f"{EPOCH}:5"
        stream.answer = told("replayed 1")
        stream.schema()
        stream.full(
            RowSet.parse("9"), [3], step=6,
            shifts=RowSetShiftData.from_shifts([(0, 1, 5)]),
        )  # fmt: skip
        update = await anext(updates)
        assert list(update.shifts) == [(0, 1, 5)]
        assert xs(live) == [1, 2, 3]
        cursor, table = live.checkpoint()
        assert cursor == Cursor(EPOCH, 6)
        assert table.column("s").to_pylist() == ["s1", "s2", "s3"]
        assert live.resumption == "replayed 1 step"


@asynchronous
async def test_kept_rows_of_a_view_and_some_columns(session, server):
    kept = rows(1, 2).select(["s"])
    opening = session.table("t").subscribe(
        columns=["s"], viewport=(0, 2), resume_from=Cursor(EPOCH, 5), rows=kept
    )
    async with opening as live:
        stream = await server.accept()
        request = await stream.request()
        assert request.columns == (1,)
        stream.answer = told("replayed 1")
        stream.schema()
        stream.view("1", [3], removed="0", columns=(1,))
        await live.wait_ready(60)
        assert live.to_arrow().to_pydict() == {"s": ["s2", "s3"]}


@asynchronous
async def test_kept_rows_that_do_not_fit_are_refused(session, server):
    opening = session.table("t").subscribe(
        resume_from=Cursor(EPOCH, 5), rows=pa.table({"x": [1], "other": ["a"]})
    )
    async with opening as live:
        stream = await server.accept()
        stream.answer = told("live")
        stream.schema()
        with pytest.raises(SchemaError, match="other"):
            await live.wait_ready(60)


@asynchronous
async def test_kept_rows_may_be_of_a_wider_type(session, server):
    kept = rows(1, 2).cast(pa.schema([("x", pa.int32()), ("s", pa.large_string())]))
    async with session.table("t").subscribe(resume_from=Cursor(EPOCH, 5), rows=kept) as live:
        stream = await server.accept()
        stream.answer = told("live")
        stream.schema()
        stream.full(step=5)
        await live.wait_ready(60)
        assert live.to_arrow().schema.types == SCHEMA.types


@asynchronous
async def test_a_table_with_other_columns_is_taken_anew(session, server):
    async with session.table("t").subscribe(reconnect=AT_ONCE) as live:
        stream = await first_life(server)
        await live.wait_ready(60)
        stream.end(ConnectionLostError("gone"))
        second = await server.accept()
        second.answer = told("live")
        other = pa.schema([("y", pa.int64()), ("s", pa.string())])
        second.encoder = UpdateEncoder(other, EncodeOptions())
        second.schema()
        third = await server.accept()
        assert CURSOR_HEADER not in third.request_headers
        third.answer = told()
        third.schema()
        third.snapshot([5])
        await live.wait_ready(60)
        assert live.resumption == "resnapshot (the table's columns changed)"
        assert xs(live) == [5]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"resume": "sometimes"}, ConfigError),
        ({"resume_from": Cursor(EPOCH, 1)}, ConfigError),
        ({"rows": rows(1)}, ConfigError),
        ({"resume_from": "nonsense", "rows": rows(1)}, CursorError),
        ({"resume_from": 17, "rows": rows(1)}, CursorError),
    ],
)
def test_wrong_wishes_are_refused_at_once(arguments, error):
    async def test():
        async with scripted_session() as (session, _):
            with pytest.raises(error):
                session.table("t").subscribe(**arguments)

    run(test)


# --- headers --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outcome", "header", "text"),
    [
        (Outcome.live(), "live", "live"),
        (Outcome.replayed(1), "replayed 1", "replayed 1 step"),
        (Outcome.replayed(17), "replayed 17", "replayed 17 steps"),
        (Outcome.replayed(9, 7), "replayed 9 in 7 updates", "replayed 9 steps"),
        (
            Outcome.resnapshot("another\nepoch"),
            "resnapshot another epoch",
            "resnapshot (another\nepoch)",
        ),
    ],
)
def test_outcomes_travel(outcome, header, text):
    assert outcome.header() == header
    assert str(outcome) == text
    assert parse_outcome(header).kind is outcome.kind
    assert parse_outcome(header).header() == header


def test_a_reason_is_printable_and_bounded():
    header = Outcome.resnapshot("é" * 1000).header()
    assert header.isascii()
    assert len(header) <= 320


@pytest.mark.parametrize("text", ["", "replayed", "replayed -1", "replayed x", "alive", "live "])
def test_answers_that_cannot_be_read_are_snapshots(text):
    assert not parse_outcome(text).is_resumed


def test_a_snapshot_needs_no_reason():
    assert str(parse_outcome("resnapshot")) == "resnapshot (no reason was given)"


@pytest.mark.parametrize("text", [None, "", "0123", "0123456789ABCDEF", EPOCH + "0", EPOCH + "\n"])
def test_what_is_no_epoch_is_none(text):
    assert parse_epoch(text) is None


def test_requests_travel():
    request = ResumeRequest(Cursor(EPOCH, 3), ResumeMode.STEPS)
    assert ResumeRequest.of_headers(request.headers()) == request
    assert ResumeRequest.of_headers({}) is None
    only_cursor = ResumeRequest.of_headers({CURSOR_HEADER: f"{EPOCH}:3"})
    assert only_cursor == ResumeRequest(Cursor(EPOCH, 3), ResumeMode.COALESCED)
    with pytest.raises(CursorError):
        ResumeRequest.of_headers({CURSOR_HEADER: "x"})
    with pytest.raises(ConfigError):
        ResumeRequest.of_headers({CURSOR_HEADER: f"{EPOCH}:3", RESUME_HEADER: "x"})
    with pytest.raises(CursorError):
        ResumeRequest.of_headers({CURSOR_HEADER: f"{EPOCH}:3", RESUME_HEADER: "off"})


# --- keys -----------------------------------------------------------------------------------------


@st.composite
def rekeyed(draw):
    """Old keys, removed positions, and the keys the kept rows have afterwards."""
    old = sorted(draw(st.sets(st.integers(0, 60), max_size=20)))
    removed = (
        sorted(draw(st.sets(st.sampled_from(range(len(old))), max_size=len(old)))) if old else []
    )
    kept = len(old) - len(removed)
    new = sorted(draw(st.sets(st.integers(0, 80), min_size=kept, max_size=kept)))
    return old, removed, new


@given(rekeyed())
def test_rekeying_says_in_old_keys_what_was_said_in_positions(case):
    old, removed, new = case
    kept_positions = [i for i in range(len(old)) if i not in removed]
    shifts = shifts_between(RowSet.from_keys(kept_positions), RowSet.from_keys(new))
    update = FullUpdate(
        first_step=1, last_step=1, is_snapshot=False, effective_viewport=None,
        is_effective_reverse=False, effective_columns=None, table_size=0, added_columns=(),
        modified_columns=(), removed_keys_pre=RowSet.from_keys(removed), shifts=shifts,
        added_keys_post=EMPTY, included_keys_post=None, modified_keys_post=(),
    )  # fmt: skip
    gone, moved = Rekeying(RowSet.from_keys(old)).changes(update)
    left = RowSet.from_keys(old) - gone
    assert gone.to_numpy().tolist() == [old[i] for i in removed]
    assert moved.apply(left).to_numpy().tolist() == new
    assert moved.apply_keys(left.to_numpy()).tolist() == new


def test_no_shifts_between_equal_keys():
    keys = RowSet.from_keys(np.array([3, 9]))
    assert shifts_between(keys, keys).is_empty
    assert shifts_between(EMPTY, EMPTY).is_empty


@asynchronous
async def test_a_view_without_columns_is_taken_anew(session, server):
    """Kept rows without columns cannot be counted."""
    table = session.table("t")
    async with table.subscribe(viewport=(0, 2), columns=[], reconnect=AT_ONCE) as live:
        stream = await server.accept()
        stream.answer = told()
        stream.schema()
        stream.view("0-1", [1, 2], viewport=RowSet.parse("0-1"), columns=())
        await live.wait_ready(60)
        await live.set_viewport((4, 8))
        stream.view("0", [5], removed="0-1", viewport=RowSet.parse("4"), columns=())
        await until(lambda: stream.frames_read >= 3)
        stream.end(ConnectionLostError("gone"))
        second = await server.accept()
        second.answer = told("live")
        second.schema()
        third = await server.accept()
        assert CURSOR_HEADER not in third.request_headers
