"""The watch: it blocks for the first news only, comes back by itself, and gives up in time."""

from __future__ import annotations

import threading
import time

import pytest

import barrage
from barrage.server.history import journal_watch
from spark_sink.connection import Failure, ServerConnection, ServerError
from spark_sink.watch import Marks, Question, TableWatch, VersionMark
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
    wait_until(lambda: len(server.asked("journal.info")) > 2)
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


# --- questions ------------------------------------------------------------------------------------


@pytest.fixture
def real():
    with barrage.Server(journal="memory") as made:
        made.create_table("trades", TRADES).add(trades(2))
        yield made


@pytest.fixture
def untold(monkeypatch):
    """No watch hears of a version by itself, before its next heartbeat."""
    monkeypatch.setattr(journal_watch, "_wake", lambda loop, news: None)
    monkeypatch.setattr(journal_watch, "HEARTBEAT_S", 600)


@pytest.mark.usefixtures("untold")
def test_who_asks_is_told_what_was_written_before(real, watching):
    watch = watching(real.uri)
    first = watch.newest()
    for at in range(1, 50):
        real.table("trades").add(trades(1, at))
        assert watch.newest_asked().rows == first.rows + at
    assert watch.away_seconds == 0


def test_an_older_server_is_asked_nothing(server, watching):
    watch = watching()
    assert watch.newest_asked().version == 1
    server.commit("trades", add=trades(1, 2))
    wait_until(lambda: watch.newest_asked().version == 2)
    assert watch.away_seconds == 0
    assert len(server.asked("get")) == 1


@pytest.mark.usefixtures("untold")
def test_a_stream_that_has_just_broken_is_waited_for(real, watching):
    watch = watching(real.uri, reconnectTimeoutMs="60000")
    first = watch.newest()
    for at in range(1, 10):
        watch._stream.cancel()
        real.table("trades").add(trades(1, at))
        assert watch.newest_asked().rows == first.rows + at


def test_a_stream_that_breaks_while_it_is_asked_is_asked_anew(real, watching, monkeypatch):
    monkeypatch.setattr("spark_sink.watch.ANSWER_SECONDS_MAX", 600)
    watch = watching(real.uri, reconnectTimeoutMs="60000")
    watch.newest()
    question = watch._question
    monkeypatch.setattr(question, "answered", lambda _: None)
    asking = threading.Thread(target=watch.newest_asked)
    asking.start()
    wait_until(lambda: question._asked == 1)
    real.table("trades").add(trades(1, 2))
    watch._stream.cancel()
    asking.join(60)
    assert not asking.is_alive()
    assert watch.newest().rows == 3


def test_many_ask_at_once(real, watching):
    watch = watching(real.uri)
    seen = []

    def ask(at):
        for number in range(20):
            real.table("trades").add(trades(1, 100 * at + number))
            before = real.table("trades").to_arrow().num_rows
            seen.append(watch.newest_asked().rows >= before)

    askers = [threading.Thread(target=ask, args=(at,)) for at in range(4)]
    for each in askers:
        each.start()
    for each in askers:
        each.join(60)
    assert seen == [True] * 80


def test_what_was_not_asked_is_no_answer():
    question = Question(None)
    for answer in (b"\xff" * 16, b"\0", b"", b"\1"):
        question.answered(answer)
    assert question._answered == 0


def test_a_watch_that_ends_says_nothing(real, watching, caplog):
    for at in range(20):
        watch = watching(real.uri)
        watch.newest_asked()
        real.table("trades").add(trades(1, at))
        watch.close()
    assert caplog.messages == []


def test_a_server_that_owes_an_answer_is_waited_for_once(real, watching, monkeypatch):
    monkeypatch.setattr("spark_sink.watch.ANSWER_SECONDS_MAX", 0.01)
    watch = watching(real.uri)
    watch.newest()
    question = watch._question
    answers = []
    monkeypatch.setattr(question, "answered", answers.append)
    watch.newest_asked()
    wait_until(lambda: answers)
    monkeypatch.setattr("spark_sink.watch.ANSWER_SECONDS_MAX", 600)
    for _ in range(100):
        assert watch.newest_asked().rows == 2
    assert len(answers) == 1
    Question.answered(question, answers[0])
    watch_again = threading.Thread(target=watch.newest_asked)
    watch_again.start()
    wait_until(lambda: len(answers) == 2)
    Question.answered(question, answers[1])
    watch_again.join(60)
    assert not watch_again.is_alive()
