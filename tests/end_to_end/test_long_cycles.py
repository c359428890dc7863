"""A derived table of a client that a cycle would take too long for is ended, and made again beside
the engine: whoever follows it has all rows in the end, and nobody else notices."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

import barrage
from barrage.client import RemoteTable, State
from barrage.client.tables import remote_table
from barrage.engine.operators import derive
from barrage.engine.propagation.producer import Producer
from barrage.errors import ConnectionLostError, CycleTooLongError, StatusCode
from barrage.limits import Limits
from barrage.server.runtime.snapshot_work import SnapshotWork
from barrage.server.settings.config import ServerConfig
from tests.helpers.server_process import wait_until

Read = Callable[[RemoteTable], pa.Table]

HANG_S = 180
ROWS = 20_000
FEW = 5_000


def rows(count: int, salt: int) -> pa.Table:
    scattered = [(i * 7_919 + salt) % 100_003 for i in range(count)]
    return pa.table({"k": range(count), "a": scattered, "g": [0] * count})


@pytest.fixture
def server() -> Iterator[barrage.Server]:
    limits = Limits(cycle_work_once_max=1_000_000)
    with barrage.Server("127.0.0.1", config=ServerConfig(limits=limits)) as running:
        running.create_table("t", key="k", data=rows(FEW, 0))
        running.create_table("one", key="g", data=pa.table({"g": [0], "b": [1]}))
        yield running


def test_a_sorted_view_is_there_again_when_most_rows_have_changed_at_once(
    server: barrage.Server,
) -> None:
    with barrage.connect(server.uri) as session:
        other = session.table("t").where("k >= 0").subscribe()
        view = session.table("t").sort("a").subscribe()
        view.wait_ready(HANG_S)
        other.wait_ready(HANG_S)
        server.table("t").upsert(rows(ROWS, 1))
        expected = rows(ROWS, 1).sort_by("a")["a"].combine_chunks()
        wait_until(lambda: view.to_arrow()["a"].combine_chunks().equals(expected), HANG_S)
        assert view.stats.reconnects == 1
        assert other.stats.reconnects == 0
        server.table("t").upsert({"k": [3], "a": [-1], "g": [0]})
        wait_until(lambda: view.to_arrow()["k"][0].as_py() == 3, HANG_S)
        wait_until(lambda: other.to_arrow().num_rows == ROWS, HANG_S)
        assert view.stats.reconnects == 1


def test_a_view_that_has_got_a_name_is_the_servers_and_never_ends(server: barrage.Server) -> None:
    """As Deephaven's clients give one to a table; nobody who asks for the name could make it."""
    tables = server._parts.tables
    source = tables.look_up("t").result().table
    made = tables.derive(lambda: derive.sort(source, "a"), "a client").result()
    assert made.admitted_work is not None
    tables.bind("shown", made, is_read_only=True).result()
    with barrage.connect(server.uri) as session:
        view = session.table("shown").subscribe()
        view.wait_ready(HANG_S)
        server.table("t").upsert(rows(ROWS, 1))
        wait_until(lambda: len(view) == ROWS, HANG_S)
        assert view.stats.reconnects == 0
        assert session.table("shown").snapshot()["a"].to_pylist() == sorted(
            rows(ROWS, 1)["a"].to_pylist()
        )


def test_a_session_with_several_servers_stays_with_the_one_that_has_ended_a_view(
    server: barrage.Server,
) -> None:
    """It is there, and what the others have is not asked for."""
    with barrage.Server("127.0.0.1") as other, barrage.connect([server.uri, other.uri]) as session:
        view = session.table("t").sort("a").subscribe()
        view.wait_ready(HANG_S)
        server.table("t").upsert(rows(ROWS, 1))
        wait_until(lambda: len(view) == ROWS, HANG_S)
        assert view.stats.reconnects == 1
        assert server.address in repr(session)
        assert session.table("t").snapshot().num_rows == ROWS


@pytest.fixture(params=["named", "opened", "uploaded"])
def exported(request: pytest.FixtureRequest, server: barrage.Server) -> Iterator[RemoteTable]:
    """Views that belong to a session of the server: their tickets stand for the table as it was
    made, until another is."""
    is_uploaded = request.param == "uploaded"
    uri = server.uri if is_uploaded else server.uri.replace("grpc:", "dh:")
    with barrage.connect(uri) as session:
        table = session.open_table("t") if request.param == "opened" else session.table("t")
        if is_uploaded:
            table = table.natural_join(session.upload({"g": [0], "b": [1]}), on="g")
        yield table.sort("a")


def test_a_view_within_a_session_is_made_again_for_all_who_follow_it(
    server: barrage.Server, exported: RemoteTable
) -> None:
    views = [exported.subscribe() for _ in range(3)]
    for view in views:
        view.wait_ready(HANG_S)
    server.table("t").upsert(rows(ROWS, 1))
    expected = rows(ROWS, 1).sort_by("a")["a"].combine_chunks()
    for view in views:
        wait_until(lambda v=view: v.to_arrow()["a"].combine_chunks().equals(expected), HANG_S)
        assert view.stats.reconnects >= 1
    assert exported.snapshot()["a"].combine_chunks().equals(expected)


def test_a_view_within_a_session_that_nobody_followed_is_made_again_for_who_reads_it(
    server: barrage.Server, exported: RemoteTable
) -> None:
    assert exported.snapshot().num_rows == FEW
    server.table("t").upsert(rows(ROWS, 1))
    assert exported.snapshot().num_rows == ROWS
    server.table("t").upsert(rows(ROWS, 2))
    with exported.subscribe() as view:
        view.wait_ready(HANG_S)
        assert len(view) == ROWS


def test_a_view_of_a_row_that_all_rows_show_is_made_again_each_time(server: barrage.Server) -> None:
    server.table("t").upsert(rows(ROWS, 1))
    with barrage.connect(server.uri) as session:
        joined = session.table("t").natural_join(session.table("one"), on="g", add="b")
        view = joined.sort("-b", "a").subscribe()
        view.wait_ready(HANG_S)
        for number in (2, 3):
            server.table("one").upsert({"g": [0], "b": [number]})
            wait_until(lambda b=number: set(view.to_arrow()["b"].to_pylist()) == {b}, HANG_S)
            assert view.to_arrow().num_rows == ROWS
        assert view.stats.reconnects >= 1


def test_the_program_of_the_server_has_its_view_all_the_time(server: barrage.Server) -> None:
    own = server.table("t").sort("a")
    server.table("t").upsert(rows(ROWS, 1))
    assert own.to_arrow().num_rows == ROWS
    assert own.to_arrow()["a"].equals(rows(ROWS, 1).sort_by("a")["a"])


def test_who_does_not_ask_again_is_told_to(server: barrage.Server) -> None:
    """By a status that says so: nothing is wrong with the request."""
    with barrage.connect(server.uri) as session:
        view = session.table("t").sort("a").subscribe(reconnect=False)
        view.wait_ready(HANG_S)
        server.table("t").upsert(rows(ROWS, 1))
        wait_until(lambda: view.error is not None, HANG_S)
        assert view.error is not None
        assert view.error.answered is not None
        code, text = view.error.answered
        assert code is StatusCode.ABORTED
        assert "ask for it again" in text


def test_a_shared_view_that_was_ended_is_not_asked_for_for_ever(server: barrage.Server) -> None:
    """Nobody but who has shared it can make it again."""
    with barrage.connect(server.uri) as one, barrage.connect(server.uri) as other:
        ticket = one.table("t").sort("a").publish_shared()
        view = other.shared(ticket).subscribe()
        view.wait_ready(HANG_S)
        server.table("t").upsert(rows(ROWS, 1))
        wait_until(lambda: view.state is State.FAILED, HANG_S)
        assert "Table is already failed" in str(view.error)


def test_a_view_that_was_ended_before_it_was_followed_is_asked_for_again(
    server: barrage.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing of the first one stays."""
    add, refused = Producer.add, [CycleTooLongError()]

    def add_later(self: Producer, *arguments: Any, **named: Any) -> None:
        if refused:
            raise refused.pop()
        add(self, *arguments, **named)

    def kept() -> int:
        tables = server._parts.tables
        return tables.run(lambda: tables.queries.cycle_work.total).result(HANG_S)

    monkeypatch.setattr(Producer, "add", add_later)
    gc.disable()
    try:
        with barrage.connect(server.uri) as session:
            view = session.table("t").sort("a").subscribe()
            view.wait_ready(HANG_S)
            assert view.stats.reconnects == 1
            view.close()
            wait_until(lambda: kept() == 0, HANG_S)
    finally:
        gc.enable()


@pytest.fixture(params=["stream", "arrow", "parts"])
def read(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Read:
    """The ways of a snapshot: our own stream, Arrow's client, and several reads beside it."""
    if request.param == "parts":
        return lambda view: view.snapshot(jobs=2)
    if request.param == "arrow":

        async def large(*_: object) -> bool:
            return True

        monkeypatch.setattr(remote_table, "_is_large", large)
    return lambda view: view.snapshot()


class Ending:
    """Snapshots of derived tables, of which the server ends the first few."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked = self.ended = 0
        original = SnapshotWork.begun

        def begun(work: SnapshotWork, *arguments: Any) -> Any:
            self.asked += 1
            if self.asked <= self.ended:
                raise CycleTooLongError("as many as a test likes")
            return original(work, *arguments)

        monkeypatch.setattr(SnapshotWork, "begun", begun)


@pytest.mark.parametrize("ended", [3, 4])
def test_a_snapshot_of_a_table_that_was_ended_meanwhile_is_asked_for_again(
    server: barrage.Server, monkeypatch: pytest.MonkeyPatch, read: Read, ended: int
) -> None:
    with barrage.connect(server.uri, bodies="inline") as session:
        view = session.table("t").sort("a")
        assert read(view).num_rows == FEW
        ending = Ending(monkeypatch)
        ending.ended = ended
        if ended == 3:
            assert read(view).num_rows == FEW
        else:
            with pytest.raises(ConnectionLostError, match="ask for it again"):
                read(view)
        assert ending.asked == 4
