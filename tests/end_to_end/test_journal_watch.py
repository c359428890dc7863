"""The watch, leases and cursors: what consumers are told, what history is kept for them, and that
those who have gone are forgotten."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import flight

import barrage
from barrage.limits import Limits
from barrage.proto.read_exchange import HEADER, QUESTION_BYTES_MAX, READ
from barrage.server.history import journal_watch
from barrage.server.serving.app import THREADS
from barrage.server.settings.config import ServerConfig
from barrage.server.statistics.statistics_table import StatisticsTable
from barrage.server.statistics.thread_statistics import ThreadStatistics
from tests.helpers.journal_client import JournalClient
from tests.helpers.server_process import wait_until

X = pa.schema({"x": pa.int64()})
SHORT_MS = 300
LONG_MS = 60_000
CYCLE_ROWS = 4_000
CYCLE_BYTES = 17 * CYCLE_ROWS
"""What a cycle of so many rows weighs in a journal: a number, a row id and an operation each."""


@pytest.fixture
def server() -> Iterator[barrage.Server]:
    with barrage.Server(journal="memory") as running:
        yield running


@pytest.fixture
def client(server) -> Iterator[JournalClient]:
    with JournalClient(server.uri) as opened:
        yield opened


class Watched:
    """A watch in a thread of its own: everything it was told."""

    def __init__(self, client: JournalClient, table: str, **ticket: Any) -> None:
        ticket = {"consumer": "c", "lease_ms": LONG_MS, **ticket}
        self.reader = client.reader(mode="watch", table=table, **ticket)
        self.told: list[dict[str, Any]] = []
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        try:
            for chunk in self.reader:
                self.told += chunk.data.to_pylist()
        except (pa.ArrowException, OSError, KeyError) as error:
            self.error = error

    def has_come_to(self, version: int) -> bool:
        return bool(self.told) and self.told[-1]["version"] >= version

    def wait_for_end(self) -> str:
        self._thread.join(60)
        assert not self._thread.is_alive()
        return str(self.error)

    def __enter__(self) -> Watched:
        return self

    def __exit__(self, *_: object) -> None:
        self.reader.cancel()
        self.wait_for_end()


def consumers(server: barrage.Server) -> dict[str, Any]:
    """Consumers with a live lease, as the loop that owns them sees them."""

    async def look() -> dict[str, Any]:
        leases = server._running.journals.leases
        return {consumer.name: consumer for consumer in leases.consumers}

    assert server._loop is not None
    return asyncio.run_coroutine_threadsafe(look(), server._loop).result()


def test_a_watch_tells_the_version_at_once_and_each_that_follows(server, client):
    table = server.create_table("t", X)
    first = table.add({"x": [1, 2]})
    epoch = client.info("t")["epoch"]
    with Watched(client, "t") as watch:
        wait_until(lambda: watch.has_come_to(first))
        assert watch.told[0].keys() == {"epoch", "version", "rows", "bytes", "timestamp_us"}
        for value in range(5):
            step = table.add({"x": [value]})
            wait_until(lambda step=step: watch.has_come_to(step))
    assert {told["epoch"] for told in watch.told} == {epoch}
    assert [told["rows"] for told in watch.told][-1] == 7
    versions = [told["version"] for told in watch.told]
    assert versions == sorted(versions)
    assert abs(watch.told[-1]["timestamp_us"] / 1e6 - time.time()) < 60


def test_many_versions_in_short_order_are_told_as_the_last_of_them(server, client):
    table = server.create_table("t", X)
    with Watched(client, "t") as watch:
        futures = [table.add({"x": [n]}, wait=False) for n in range(2000)]
        last = futures[-1].result()
        wait_until(lambda: watch.has_come_to(last))
        assert watch.told[-1]["rows"] == 2000
        assert len(watch.told) <= server.stats.cycles + 10


def test_only_durable_versions_are_told(tmp_path):
    with (
        barrage.Server(data=str(tmp_path), journal="durable") as server,
        JournalClient(server.uri) as client,
    ):
        table = server.create_table("t", X)
        journal = server._parts.journals.journal_named("t")
        with Watched(client, "t") as watch:
            for value in range(50):
                table.add({"x": [value]}, wait=False)
                newest = watch.told[-1]["version"] if watch.told else 0
                assert newest <= journal.durable_version
            last = table.add({"x": [0]})
            wait_until(lambda: watch.has_come_to(last))


def test_a_quiet_watch_keeps_its_consumer_alive(server, client):
    server.create_table("t", X)
    with Watched(client, "t", lease_ms=SHORT_MS) as watch:
        wait_until(lambda: len(watch.told) >= 8)
        assert list(consumers(server)) == ["c"]
    wait_until(lambda: consumers(server) == {})


def test_a_broken_watch_keeps_the_lease_for_its_time(server, client):
    table = server.create_table("t", X)
    table.add({"x": [1]})
    with JournalClient(server.uri) as gone, Watched(gone, "t", lease_ms=LONG_MS) as watch:
        wait_until(lambda: bool(watch.told))
        assert consumers(server)["c"].watch_count == 1
    wait_until(lambda: consumers(server)["c"].watch_count == 0)
    assert client.act("journal.release", table="t", consumer="c") == {"known": True}
    assert client.act("journal.release", table="t", consumer="c") == {"known": False}
    assert consumers(server) == {}


def test_a_consumer_that_comes_back_stands_where_it_was(server, client):
    table = server.create_table("t", X)
    first = table.add({"x": [1]})
    table.add({"x": [2]})
    client.act("journal.cursor", table="t", consumer="c", version=first, lease_ms=LONG_MS)
    with Watched(client, "t") as watch:
        wait_until(lambda: bool(watch.told))
        assert consumers(server)["c"].version == first
    with Watched(client, "t", version=watch.told[-1]["version"]) as again:
        wait_until(lambda: bool(again.told))
        assert consumers(server)["c"].version == watch.told[-1]["version"]


def test_a_watch_ends_with_its_table(server, client):
    server.create_table("t", X)
    with Watched(client, "t", lease_ms=SHORT_MS) as watch:
        wait_until(lambda: bool(watch.told))
        server.drop_table("t")
        assert "not found" in watch.wait_for_end()


def test_a_watch_of_a_table_made_anew_ends_with_its_epoch(server, client):
    server.create_table("t", X)
    with Watched(client, "t", lease_ms=SHORT_MS) as watch:
        wait_until(lambda: bool(watch.told))
        server.drop_table("t")
        server.create_table("t", X)
        assert "history-lost: epoch" in watch.wait_for_end()


def test_a_server_that_stops_ends_its_watches():
    with barrage.Server(journal="memory") as server:
        server.create_table("t", X)
        client = JournalClient(server.uri)
        watch = Watched(client, "t")
        wait_until(lambda: bool(watch.told))
        server.stop()
        assert "shutting down" in watch.wait_for_end()
        client.client.close()


def test_watches_are_bounded():
    config = ServerConfig(limits=Limits(journal_consumers_max=3))
    with barrage.Server(config=config, journal="memory") as server:
        server.create_table("t", X)
        with JournalClient(server.uri) as client:
            names = ("a", "b", "c")
            watches = [Watched(client, "t", consumer=name) for name in names]
            wait_until(lambda: all(watch.told for watch in watches))
            with pytest.raises(pa.ArrowException, match="the limit is 3"):
                client.reader(mode="watch", table="t", consumer="a")
            for watch in watches:
                watch.__exit__()


def test_two_hundred_watches_are_told_of_every_version(server, client):
    table = server.create_table("t", X)
    watches = [Watched(client, "t", consumer=f"c{n}") for n in range(200)]
    wait_until(lambda: all(watch.told for watch in watches))
    last = table.add({"x": [1]})
    wait_until(lambda: all(watch.has_come_to(last) for watch in watches))
    for watch in watches:
        watch.__exit__()
    wait_until(lambda: server._running.journals.read_count == 0)


# --- history that is kept for consumers ---


@pytest.fixture
def small() -> Iterator[barrage.Server]:
    """A server whose journals keep some ten cycles of :func:`write_cycles`."""
    config = ServerConfig(journal_memory_bytes=20 * CYCLE_BYTES)
    with barrage.Server(config=config, journal="memory") as running:
        yield running


def write_cycles(server: barrage.Server, count: int) -> None:
    """Replace the content of table t with other rows, cycle by cycle."""
    table = server.table("t")
    assert isinstance(table, barrage.server.PublishedTable)
    for _ in range(count):
        table.replace({"x": np.random.randint(0, 2**62, CYCLE_ROWS)})


def test_history_is_kept_for_a_consumer_whose_lease_lives(small):
    server = small
    server.create_table("t", X, kind="list")
    with JournalClient(server.uri) as client:
        write_cycles(server, 2)
        start = client.info("t")["version"]
        client.act("journal.cursor", table="t", consumer="c", version=start, lease_ms=LONG_MS)
        write_cycles(server, 40)
        assert client.info("t")["earliest"] <= start
        feed = client.changes("t", start)
        assert feed.num_rows == 40 * 2 * CYCLE_ROWS
        moved = client.info("t")["version"]
        client.act("journal.cursor", table="t", consumer="c", version=moved)
        write_cycles(server, 30)
        wait_until(lambda: client.info("t")["earliest"] > start)
        assert client.info("t")["earliest"] <= moved


@pytest.mark.parametrize("way", ["expired", "released"])
def test_history_goes_when_a_lease_has_ended(small, way):
    server = small
    server.create_table("t", X, kind="list")
    with JournalClient(server.uri) as client:
        write_cycles(server, 2)
        start = client.info("t")["version"]
        lease_ms = SHORT_MS if way == "expired" else LONG_MS
        at = {"table": "t", "consumer": "c"}
        client.act("journal.cursor", **at, version=start, lease_ms=lease_ms)
        if way == "expired":
            wait_until(lambda: consumers(server) == {})
        else:
            client.act("journal.release", **at)
        write_cycles(server, 60)
        wait_until(lambda: client.info("t")["earliest"] > start)
        for call in (
            lambda: client.changes("t", start),
            lambda: client.act("journal.cursor", **at, version=start),
            lambda: client.snapshot("t", to=start),
        ):
            with pytest.raises(pa.ArrowException, match="history-lost: truncated"):
                call()


def test_a_slow_consumer_loses_at_the_hard_cap(monkeypatch):
    from barrage.server.serving import serving

    plain = serving.journal_options
    monkeypatch.setattr(
        serving,
        "journal_options",
        lambda config: dataclasses.replace(plain(config), hold_bytes_max=60 * CYCLE_BYTES),
    )
    config = ServerConfig(journal_memory_bytes=20 * CYCLE_BYTES)
    with (
        barrage.Server(config=config, journal="memory") as server,
        JournalClient(server.uri) as client,
    ):
        server.create_table("t", X, kind="list")
        write_cycles(server, 1)
        start = client.info("t")["version"]
        client.act("journal.cursor", table="t", consumer="c", version=start, lease_ms=LONG_MS)
        write_cycles(server, 25)
        assert client.info("t")["earliest"] <= start
        write_cycles(server, 100)
        wait_until(lambda: client.info("t")["earliest"] > start)
        with pytest.raises(pa.ArrowException, match="history-lost: truncated"):
            client.changes("t", start)
        assert list(consumers(server)) == ["c"]


def test_a_watch_alone_keeps_history(small):
    server = small
    server.create_table("t", X, kind="list")
    with JournalClient(server.uri) as client:
        write_cycles(server, 1)
        with Watched(client, "t") as watch:
            wait_until(lambda: bool(watch.told))
            start = watch.told[0]["version"]
            write_cycles(server, 40)
            assert client.changes("t", start).num_rows == 40 * 2 * CYCLE_ROWS


def test_a_read_group_keeps_its_version(small):
    server = small
    server.create_table("t", X, kind="list")
    with JournalClient(server.uri) as client:
        write_cycles(server, 1)
        plan = client.plan("t", mode="snapshot", read_group="g")
        rows = client.fetched(plan)
        write_cycles(server, 40)
        assert client.fetched(plan).equals(rows)


def test_the_statistics_tables_tell_versions_and_lags(server, client):
    assert "_journal" not in server.table_names()
    table = server.create_table("t", X)
    first = table.add({"x": [1]})
    last = table.add({"x": [2, 3]})
    client.act("journal.cursor", table="t", consumer="c", version=first, lease_ms=LONG_MS)
    wait_until(lambda: "_journal_consumers" in server.table_names())
    wait_until(lambda: server.table("_journal_consumers").to_arrow().num_rows == 1)
    (journal,) = server.table("_journal").to_arrow().to_pylist()
    info = client.info("t")
    assert (journal["table"], journal["epoch"]) == ("t", info["epoch"])
    assert (journal["version"], journal["rows"], journal["offset"]) == (last, 3, 3)
    (consumer,) = server.table("_journal_consumers").to_arrow().to_pylist()
    assert (consumer["table"], consumer["consumer"], consumer["version"]) == ("t", "c", first)
    assert (consumer["versions_behind"], consumer["rows_behind"]) == (1, 2)
    assert 0 <= consumer["seconds_behind"] < 60
    client.act("journal.cursor", table="t", consumer="c", version=last)

    def lag() -> int:
        rows = server.table("_journal_consumers").to_arrow().to_pylist()
        return int(rows[0]["rows_behind"])

    wait_until(lambda: lag() == 0)
    client.act("journal.release", table="t", consumer="c")
    wait_until(lambda: server.table("_journal_consumers").to_arrow().num_rows == 0)


def test_what_upkeep_fails_of_is_told_until_it_succeeds(server, monkeypatch):
    table = server.create_table("t", X)
    fails = [True]
    journal = server._parts.journals.journal_named("t")
    maintain = journal.maintain

    def failing() -> None:
        if fails:
            raise KeyError("segment")
        maintain()

    monkeypatch.setattr(journal, "maintain", failing)

    def told() -> dict[str, object]:
        rows = server.table("_journal").to_arrow().to_pylist()
        return next((row for row in rows if row["table"] == "t"), {})

    table.add({"x": [1]})
    wait_until(lambda: "_journal" in server.table_names())
    wait_until(lambda: told().get("upkeep_failures", 0) > 0)
    assert told()["upkeep_failure"] == "KeyError: 'segment'"
    fails.clear()
    wait_until(lambda: told()["upkeep_failures"] == 0)
    assert told()["upkeep_failure"] is None


@pytest.mark.held_up("it says so itself")
def test_stretches_above_the_bound_are_counted_and_the_longest_is_told(server):
    async def refresh() -> None:
        statistics = ThreadStatistics(server._parts.watchdog, server._parts.tables)
        statistics._table = StatisticsTable(server._parts.tables, "_again", key=("thread",))
        await statistics.refresh()

    server.create_table("t", X)
    wait_until(lambda: "_threads" in server.table_names())
    wait_until(lambda: server.table("_threads").to_arrow().num_rows == 2)
    watch = server._parts.watchdog.engine
    before = {row["thread"]: row for row in server.table("_threads").to_arrow().to_pylist()}
    assert set(before) == {"engine", "loop"}
    assert before["engine"]["bound_ms"] == 250

    def hold_up() -> None:
        watch.excluded_ns -= 3600 * 10**9

    server._parts.runtime.submit(hold_up).result(60)
    server._parts.runtime.submit(hold_up).result(60)
    asyncio.run_coroutine_threadsafe(refresh(), server._loop).result(60)
    rows = {row["thread"]: row for row in server.table("_again").to_arrow().to_pylist()}
    assert rows["engine"]["above_bound"] >= 2
    assert rows["engine"]["longest_ms"] >= 3_600_000
    assert "hold_up" in rows["engine"]["longest_what"]


def test_statistics_of_an_idle_server_cost_no_cycles(server, client):
    table = server.create_table("t", X)
    table.add({"x": [1]})
    wait_until(lambda: "_journal_consumers" in server.table_names())
    journals = server._running.journals

    async def take_over() -> None:
        """From here on they are looked at when this test says so."""
        (watching,) = [
            task for task in server._running._background if task.get_name() == THREADS.name
        ]
        for keeping in (journals._keeping, watching):
            keeping.cancel()
            await asyncio.wait([keeping])
        await journals._statistics.refresh()

    def on_loop(work) -> None:
        asyncio.run_coroutine_threadsafe(work, server._loop).result(60)

    on_loop(take_over())
    (told,) = server.table("_journal").to_arrow().to_pylist()
    assert 0 < client.info("t")["bytes"] == told["bytes"]
    server._parts.runtime.submit(server._parts.runtime.flush).result(60)
    cycles = server.stats.cycles
    for _ in range(5):
        on_loop(journals._statistics.refresh())
    assert server.stats.cycles == cycles
    table.add({"x": [2]})
    on_loop(journals._statistics.refresh())
    assert server.stats.cycles == cycles + 2


def test_a_client_cannot_write_the_statistics(server, client):
    server.create_table("t", X)
    wait_until(lambda: "_journal" in server.table_names())
    rows = server.table("_journal").to_arrow()
    put, _ = client.client.do_put(flight.FlightDescriptor.for_path("_journal"), rows.schema)
    put.done_writing()
    with pytest.raises((pa.ArrowException, OSError), match="reading only"):
        put.close()


# --- questions ------------------------------------------------------------------------------------


class Asked:
    """A watch that is asked: what it was told, an answer as bytes and a version as a number."""

    def __init__(self, client: JournalClient, table: str, **options: Any) -> None:
        ticket = {"mode": "watch", "table": table, "consumer": "c", "lease_ms": LONG_MS, **options}
        self.writer, self.reader = client.client.do_exchange(
            flight.FlightDescriptor.for_command(b"j/" + json.dumps(ticket).encode()),
            flight.FlightCallOptions(headers=[(HEADER.encode(), READ.encode())]),
        )

    def told(self) -> int | bytes:
        chunk = self.reader.read_chunk()
        if chunk.data is None:
            return chunk.app_metadata.to_pybytes()
        return chunk.data.column("version")[-1].as_py()

    def __enter__(self) -> Asked:
        return self

    def __exit__(self, *_: object) -> None:
        self.reader.cancel()
        with contextlib.suppress(pa.ArrowException, OSError):
            self.writer.close()


@pytest.fixture
def untold(monkeypatch) -> None:
    """No watch hears of a version by itself, before its next heartbeat."""
    monkeypatch.setattr(journal_watch, "_wake", lambda loop, news: None)
    monkeypatch.setattr(journal_watch, "HEARTBEAT_S", 600)


@pytest.mark.usefixtures("untold")
def test_a_question_comes_back_behind_all_that_was_durable_when_it_came(server, client):
    table = server.create_table("t", X)
    with Asked(client, "t") as watch:
        assert watch.told() == 0
        for number in (b"1", b"2", b"3"):
            table.add({"x": [1]})
            watch.writer.write_metadata(number)
            assert (watch.told(), watch.told()) == (table.cursor.version, number)
        # Nothing is said twice.
        watch.writer.write_metadata(b"again")
        assert watch.told() == b"again"


@pytest.mark.usefixtures("untold")
def test_of_many_questions_the_last_is_answered(server, client):
    table = server.create_table("t", X)
    with Asked(client, "t") as watch:
        assert watch.told() == 0
        for number in range(4_000):
            watch.writer.write_metadata(b"%d" % number)
        table.add({"x": [1]})
        watch.writer.write_metadata(b"last")
        answers = list(iter(watch.told, b"last"))
        (version,) = (answer for answer in answers if isinstance(answer, int))
        assert version == client.info("t")["version"]
        numbers = [int(answer) for answer in answers if isinstance(answer, bytes)]
        assert numbers == sorted(numbers)


def test_a_watch_goes_on_when_its_client_asks_nothing_more(server, client):
    table = server.create_table("t", X)
    with Asked(client, "t") as watch:
        assert watch.told() == 0
        watch.writer.done_writing()
        table.add({"x": [1]})
        assert watch.told() == table.cursor.version


def test_what_is_no_question_ends_the_watch(server, client):
    server.create_table("t", X)
    with Asked(client, "t") as watch:
        assert watch.told() == 0
        watch.writer.write_metadata(bytes(QUESTION_BYTES_MAX))
        assert watch.told() == bytes(QUESTION_BYTES_MAX)
        watch.writer.write_metadata(bytes(QUESTION_BYTES_MAX + 1))
        with pytest.raises(pa.ArrowInvalid, match="no ticket"):
            watch.told()
    wait_until(lambda: not server._app.journals.calls.watches.watch_count)


def test_a_watch_that_is_asked_ends_with_its_table(server, client):
    server.create_table("t", X)
    with Asked(client, "t") as watch:
        assert watch.told() == 0
        server.drop_table("t")
        with pytest.raises(KeyError):
            list(iter(watch.told, None))
