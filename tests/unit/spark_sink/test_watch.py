"""The watch: it blocks for the first news only, comes back by itself, and gives up in time."""

from __future__ import annotations

import time

import pytest

from spark_sink.connection import Failure, ServerConnection, ServerError
from spark_sink.watch import Marks, TableWatch, VersionMark
from tests.helpers.fake_journal import FakeJournalServer, FakeTable
from tests.helpers.server_process import wait_until
from tests.unit.spark_sink.tables import TRADES, trades


@pytest.fixture
def server():
    with FakeJournalServer() as running:
        running.tables["trades"] = FakeTable(TRADES)
        running.commit("trades", add=trades(2))
        yield running


@pytest.fixture
def watching(server):
    watches = []

    def open_it(uri: str = server.uri, table: str = "trades", **options: str) -> TableWatch:
        connection = ServerConnection.of({"uri": uri, "reconnectTimeoutMs": "500", **options})
        watches.append(TableWatch(connection, table, consumer="me", lease_ms=1000))
        return watches[-1]

    yield open_it
    for watch in watches:
        watch.close()


def test_news_come_without_asking(server, watching):
    watch = watching()
    assert watch.newest().version == 1
    server.commit("trades", add=trades(1, 2))
    wait_until(lambda: watch.newest().version == 2)
    assert watch.newest().rows == 3
    assert len(server.asked("get")) == 1


def test_a_broken_stream_is_opened_again(server, watching):
    watch = watching()
    watch.newest()
    watch._stream.cancel()
    server.commit("trades", add=trades(1, 2))
    wait_until(lambda: watch.newest().version == 2)
    assert len(server.asked("get")) == 2


def test_a_silent_stream_is_taken_for_dead(server, watching, monkeypatch):
    monkeypatch.setattr("spark_sink.watch.SILENCE_SECONDS_MAX", 0.1)
    watch = watching()
    watch.newest()
    time.sleep(0.15)
    wait_until(lambda: bool(watch.newest()) and len(server.asked("get")) > 1)


def test_no_server_is_an_error_after_a_while(watching):
    watch = watching("grpc://127.0.0.1:1")
    with pytest.raises(ServerError, match="reconnectTimeoutMs") as caught:
        watch.newest()
    assert caught.value.failure is Failure.UNREACHABLE


def test_a_server_that_went_away_is_an_error_after_a_while(server, watching):
    watch = watching()
    watch.newest()
    server.stop()

    def has_failed() -> bool:
        try:
            watch.newest()
        except ServerError as error:
            return error.failure is Failure.UNREACHABLE
        return False

    assert not has_failed(), "a short absence is nobody's business"
    wait_until(has_failed)


def test_a_table_that_is_not_there_is_an_error_at_once(watching):
    started = time.monotonic()
    with pytest.raises(ServerError, match="option table") as caught:
        watching(table="nothing", reconnectTimeoutMs="60000").newest()
    assert caught.value.failure is Failure.NOT_FOUND
    assert time.monotonic() - started < 50  # Of the 60 s that it is waited for a server


def test_a_table_that_was_there_may_come_back(server, watching):
    watch = watching(reconnectTimeoutMs="60000")
    watch.newest()
    table = server.tables.pop("trades")
    watch._stream.cancel()
    wait_until(lambda: len(server.asked("get")) > 2)
    assert watch.newest().version == 1
    server.tables["trades"] = table
    server.commit("trades", add=trades(1, 2))
    wait_until(lambda: watch.newest().version == 2)


def test_a_table_that_is_gone_ends_the_watch_with_its_name(server, watching):
    watch = watching()
    watch.newest()
    del server.tables["trades"]
    watch._stream.cancel()

    def failure() -> ServerError | None:
        try:
            watch.newest()
        except ServerError as error:
            return error
        return None

    wait_until(lambda: failure() is not None)
    assert failure().failure is Failure.NOT_FOUND
    assert "'trades'" in str(failure())
    assert "is gone" in str(failure())


def test_marks_are_of_one_epoch_and_conflated():
    marks = Marks()
    for version, rows in ((1, 10), (2, 20), (2, 20), (5, 50)):
        marks.add(VersionMark("a", version, rows, 0, version))
    assert marks.rows_between("a", 2, 5) == 30
    assert marks.rows_between("a", 3, 5) is None
    assert marks.before("a", 4) == VersionMark("a", 2, 20, 0, 2)
    marks.add(VersionMark("b", 1, 1, 0, 0))
    assert marks.at("a", 5) is None
    assert marks.newest == VersionMark("b", 1, 1, 0, 0)
