"""What is resumed and at what price, and how those who come together are served together."""

from __future__ import annotations

import re
import threading
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

import barrage
from barrage.engine.resume.resume import ResumeBuilder
from barrage.errors import RemoteProtocolError
from barrage.journal.records.record import Entry
from barrage.limits import DEFAULT_LIMITS
from barrage.model.update import TableUpdate
from barrage.proto.resumption import CURSOR_HEADER, RESUME_HEADER, RESUMED_HEADER
from barrage.rowset import RowSet, RowSetShiftData
from barrage.server.exchange.resume_planner import ResumePlanner, recorded_entry
from barrage.server.settings.config import ServerConfig
from tests.helpers.server_process import RawExchange, raw_channel, subscription_request, wait_until

SCHEMA = {"k": "int64", "v": "int64"}


def entry(ops, values, *, removed="", modified="", added=""):
    """An entry of a table with one column."""
    rows = pa.record_batch(
        {
            "op": pa.array(ops, pa.int8()),
            "row_id": pa.array(range(len(ops)), pa.int64()),
            "v": pa.array(values, pa.int64()),
        }
    )
    update = TableUpdate(
        first_step=5,
        last_step=5,
        removed_keys_pre=RowSet.parse(removed),
        shifts=RowSetShiftData.empty(),
        added_keys_post=RowSet.parse(added),
        modified_keys_post=(RowSet.parse(modified),),
    )
    return Entry(
        step=5, wall_ns=0, update=update, rows=rows, first_offset=0, positions={}
    )  # fmt: skip


def test_an_entry_gives_added_rows_and_new_values():
    recorded = recorded_entry(
        entry(
            [1, 1, 2, 3, 2, 3, 0, 0, 0], range(9), removed="0-1", modified="4,6", added="7-9"
        ),
        is_blink=False,
        has_cells=True,
    )  # fmt: skip
    assert [column.to_pylist() for column in recorded.added] == [[6, 7, 8]]
    assert [column.to_pylist() for column in recorded.after] == [[3, 5]]


@pytest.mark.parametrize(
    ("what", "added", "after"),
    [
        (entry([1, 1], [1, 2], removed="0-1"), [], []),
        (entry([2, 3], [1, 2], modified="7"), [], [2]),
        (entry([0], [1], added="7"), [1], []),
        (entry([], []), [], []),
    ],
)
def test_entries_of_one_kind(what, added, after):
    recorded = recorded_entry(what, is_blink=False, has_cells=True)
    assert recorded.added[0].to_pylist() == added
    assert recorded.after[0].to_pylist() == after
    bare = recorded_entry(what, is_blink=False, has_cells=False)
    assert bare.update is what.update
    assert len(bare.added) == len(bare.after) == 0


def test_a_blink_table_records_no_removed_rows():
    recorded = recorded_entry(
        entry([0, 0], [1, 2], removed="0-4", added="5-6"), is_blink=True, has_cells=True
    )
    assert recorded.added[0].to_pylist() == [1, 2]


# --- the price ------------------------------------------------------------------------------------


def outcome(server, cursor, *, table="t", mode=None, **request):
    """What a subscription with a cursor is told."""
    headers = ((CURSOR_HEADER, str(cursor)),)
    if mode is not None:
        headers += ((RESUME_HEADER, mode),)
    with raw_channel(server.address) as channel, RawExchange(channel, headers=headers) as call:
        call.send(subscription_request(table, **request))
        update = call.read_update()
        told = dict(call.call.initial_metadata())[RESUMED_HEADER]
        assert update.is_snapshot == told.startswith("resnapshot")
        return told


def test_at_the_limit_of_steps_is_replayed_and_one_past_it_is_not():
    limits = replace(DEFAULT_LIMITS, resume_steps_max=3)
    with barrage.Server(config=ServerConfig(port=0, journal="memory", limits=limits)) as server:
        table = server.create_table("t", SCHEMA, key="k")
        cursor = table.cursor
        for number in range(3):
            table.upsert({"k": [number], "v": [number]})
        assert outcome(server, cursor) == "replayed 3"
        table.upsert({"k": [9], "v": [9]})
        assert outcome(server, cursor) == "resnapshot 4 steps were missed, the limit is 3"


def test_at_the_limit_of_rows_is_replayed_and_one_past_it_is_not():
    limits = replace(DEFAULT_LIMITS, resume_rows_max=4)
    with barrage.Server(config=ServerConfig(port=0, journal="memory", limits=limits)) as server:
        table = server.create_table("t", SCHEMA)
        cursor = table.cursor
        table.add({"k": [1, 2, 3, 4], "v": [1, 2, 3, 4]})
        assert outcome(server, cursor) == "replayed 1"
        table.add({"k": [5], "v": [5]})
        assert outcome(server, cursor) == "resnapshot 5 rows changed, the limit is 4 rows"


def test_bytes_have_a_limit():
    limits = replace(DEFAULT_LIMITS, resume_bytes_max=1000)
    with barrage.Server(config=ServerConfig(port=0, journal="memory", limits=limits)) as server:
        table = server.create_table("t", SCHEMA)
        cursor = table.cursor
        table.add({"k": range(1000), "v": range(1000)})
        assert "bytes of changes, the limit is 1000 bytes" in outcome(server, cursor)


def test_more_changes_than_rows_are_a_snapshot_unless_every_step_is_wanted():
    limits = replace(DEFAULT_LIMITS, resume_rows_free=0)
    with barrage.Server(config=ServerConfig(port=0, journal="memory", limits=limits)) as server:
        table = server.create_table("t", SCHEMA, key="k")
        table.upsert({"k": [1, 2], "v": [1, 2]})
        cursor = table.cursor
        table.upsert({"k": [1], "v": [5]})
        assert outcome(server, cursor) == "replayed 1"
        table.upsert({"k": [2], "v": [5]})
        assert outcome(server, cursor) == "resnapshot 4 rows changed, more than the 2 there are"
        assert outcome(server, cursor, mode="steps") == "replayed 2 in 2 updates"


def test_plans_that_wait_have_a_limit_together(monkeypatch):
    made = ResumePlanner._build
    is_building, goes_on = threading.Event(), threading.Event()

    def slow(self, work):
        is_building.set()
        assert goes_on.wait(60)
        made(self, work)

    limits = replace(DEFAULT_LIMITS, resume_rows_pending_max=4)
    with barrage.Server(config=ServerConfig(port=0, journal="memory", limits=limits)) as server:
        table = server.create_table("t", SCHEMA, key="k")
        server.publish("sorted", table.sort("-v"))
        table.upsert({"k": [1, 2, 3], "v": [1, 2, 3]})
        with (
            barrage.connect(server.address) as session,
            session.table("sorted").subscribe(interval_ms=10).wait_ready(60) as live,
        ):
            cursor = live.cursor
        table.upsert({"k": [4], "v": [4]})
        for _ in range(2):  # one alone has room, and gives it back
            assert outcome(server, cursor, table="sorted") == "replayed 1"
        monkeypatch.setattr(ResumePlanner, "_build", slow)
        headers = ((CURSOR_HEADER, str(cursor)),)
        with raw_channel(server.address) as channel, RawExchange(channel, headers=headers) as call:
            call.send(subscription_request("sorted"))
            assert is_building.wait(60)
            told = outcome(server, cursor, table="sorted", mode="steps")
            assert told == "resnapshot too many subscriptions are resumed at the moment"
            goes_on.set()
            assert not call.read_update().is_snapshot
        assert outcome(server, cursor, table="sorted", mode="steps") == "replayed 1"


# --- together -------------------------------------------------------------------------------------


def test_one_bad_request_of_a_crowd_fails_alone():
    with barrage.Server(port=0, journal="memory") as server:
        table = server.create_table("t", SCHEMA, key="k")
        headers = ((CURSOR_HEADER, str(table.cursor)),)
        table.upsert({"k": [1], "v": [1]})
        with raw_channel(server.address) as channel:
            calls = [RawExchange(channel, headers=headers) for _ in range(4)]
            for number, call in enumerate(calls):
                call.send(subscription_request("t", interval_ms=-1 if number == 0 else 10))
            assert "min_update_interval_ms" in calls[0].status()[1]
            for call in calls[1:]:
                assert call.read_update().added_keys_post == RowSet.parse("0")
            for call in calls:
                call.close()


def test_what_breaks_while_a_plan_is_made_is_a_snapshot(monkeypatch):
    def broken(self, work):
        raise RemoteProtocolError("the disk is gone")

    with barrage.Server(port=0, journal="memory") as server:
        table = server.create_table("t", SCHEMA, key="k")
        table.upsert({"k": [1], "v": [1]})
        monkeypatch.setattr(ResumePlanner, "_build", broken)
        expected = "resnapshot the journal cannot be read: the disk is gone"
        assert outcome(server, table.cursor) == expected
        monkeypatch.setattr(ResumePlanner, "_build", lambda self, work: 1 / 0)
        assert outcome(server, table.cursor).startswith("resnapshot ")


@pytest.mark.parametrize(("kind", "method"), [(ResumePlanner, "survey"), (ResumeBuilder, "plan")])
def test_what_nobody_expected_is_a_snapshot_and_is_logged(monkeypatch, caplog, kind, method):
    def broken(*_):
        raise ZeroDivisionError("a secret of ours")

    with barrage.Server(port=0, journal="memory") as server:
        table = server.create_table("t", SCHEMA, key="k")
        table.upsert({"k": [1], "v": [1]})
        monkeypatch.setattr(kind, method, broken)
        told = outcome(server, table.cursor)
        noted = re.fullmatch(r"resnapshot internal error, details are logged with id (\w+)", told)
        assert noted, told
        (record,) = [each for each in caplog.records if each.exc_info]
        assert noted[1] in record.getMessage()
        assert record.exc_info[0] is ZeroDivisionError
        monkeypatch.undo()
        assert outcome(server, table.cursor) == "live"


def test_a_table_that_is_replaced_while_a_plan_is_made(monkeypatch):
    made = ResumePlanner._build
    is_building, goes_on = threading.Event(), threading.Event()

    def slow(self, work):
        is_building.set()
        assert goes_on.wait(60)
        made(self, work)

    with barrage.Server(port=0, journal="memory") as server:
        table = server.create_table("t", SCHEMA, key="k")
        headers = ((CURSOR_HEADER, str(table.cursor)),)
        monkeypatch.setattr(ResumePlanner, "_build", slow)
        with raw_channel(server.address) as channel, RawExchange(channel, headers=headers) as call:
            call.send(subscription_request("t"))
            assert is_building.wait(60)
            server.drop_table("t")
            server.create_table("t", SCHEMA, key="k").upsert({"k": [7], "v": [7]})
            goes_on.set()
            update = call.read_update()
            assert update.is_snapshot
            assert update.added_columns[0].to_pylist() == [7]
            told = dict(call.call.initial_metadata())[RESUMED_HEADER]
            assert told == "resnapshot the cursor is of another history"


def test_changes_while_a_plan_is_made_are_in_it(monkeypatch):
    made = ResumePlanner._build
    is_building, goes_on = threading.Event(), threading.Event()

    def slow(self, work):
        made(self, work)
        is_building.set()
        assert goes_on.wait(60)

    with barrage.Server(port=0, journal="memory") as server:
        table = server.create_table("t", SCHEMA, key="k")
        server.publish("sorted", table.sort("-v"))
        table.upsert({"k": [1], "v": [1]})
        with barrage.connect(server.address) as session:
            with session.table("sorted").subscribe(interval_ms=10).wait_ready(60) as live:
                cursor, rows = live.checkpoint()
            table.upsert({"k": [2], "v": [2]})
            monkeypatch.setattr(ResumePlanner, "_build", slow)
            with session.table("sorted").subscribe(
                interval_ms=10, resume_from=cursor, rows=rows
            ) as live:
                assert is_building.wait(60)
                table.upsert({"k": [3], "v": [3]})
                goes_on.set()
                live.wait_ready(60)
                assert live.resumption == "replayed 2 steps"
                assert live.to_arrow().column("k").to_pylist() == [3, 2, 1]


def test_a_server_stops_while_a_plan_is_made(monkeypatch):
    is_building, goes_on = threading.Event(), threading.Event()

    def slow(self, work):
        is_building.set()
        goes_on.wait(60)

    with barrage.Server(port=0, journal="memory") as server:
        table = server.create_table("t", SCHEMA, key="k")
        monkeypatch.setattr(ResumePlanner, "_build", slow)
        headers = ((CURSOR_HEADER, str(table.cursor)),)
        with raw_channel(server.address) as channel, RawExchange(channel, headers=headers) as call:
            call.send(subscription_request("t"))
            assert is_building.wait(60)
            stopping = threading.Thread(target=server.stop, args=(0.2,))
            stopping.start()
            call.status()
            goes_on.set()
            stopping.join(60)
            assert not stopping.is_alive()
    wait_until(lambda: not np.any([t.name == "barrage-engine" for t in threading.enumerate()]))
