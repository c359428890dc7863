"""A client's heavy request is under way for as long as a test likes; everybody else goes on."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.flight as flight
import pytest

import barrage
from barrage.engine import Table
from barrage.engine.aggregation.grouping import RowGroups
from barrage.engine.changelog.making import Making
from barrage.engine.operators.sort import SortTable
from barrage.engine.operators.sort_order import SortOrder
from barrage.engine.operators.where import WhereTable
from barrage.errors import BarrageError
from barrage.transport.deephaven_messages import MESSAGES, TABLE_SERVICE
from tests.helpers.deephaven_peer import DeephavenPeer, reference
from tests.helpers.deephaven_peer import ticket as ticket_message
from tests.helpers.server_process import wait_until

HANG_S = 180
"""Only for a test that hangs."""

ROWS = 200_000
BIG = pa.table(
    {
        "n": pa.array(range(ROWS, 0, -1), pa.int64()),
        "text": pa.array([f"text {i % 1000}" for i in range(ROWS)]),
    }
)


class Gate:
    """Holds whoever comes through until the test lets go."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.opened = threading.Event()

    def pass_through(self) -> None:
        self.reached.set()
        assert self.opened.wait(HANG_S)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """What the first evaluation of a sort, a filter or groups has to pass."""
    made = Gate()
    sorted_all, enter_all, passing = (
        SortOrder.sorted_all,
        RowGroups.enter_all,
        WhereTable._passing,
    )

    def held_sort(self):
        made.pass_through()
        return sorted_all(self)

    def held_groups(self):
        made.pass_through()
        yield from enter_all(self)

    def held_filter(self, keys):
        if len(keys) > ROWS // 2:
            made.pass_through()
        return passing(self, keys)

    monkeypatch.setattr(SortOrder, "sorted_all", held_sort)
    monkeypatch.setattr(RowGroups, "enter_all", held_groups)
    monkeypatch.setattr(WhereTable, "_passing", held_filter)
    yield made
    made.opened.set()


@pytest.fixture
def held_reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """What every read of a large part of a sorted table has to pass."""
    made = Gate()
    read_cells = SortTable.read_cells

    def held_read(self, keys, columns):
        if len(keys) > ROWS // 2:
            made.pass_through()
        return read_cells(self, keys, columns)

    monkeypatch.setattr(SortTable, "read_cells", held_read)
    yield made
    made.opened.set()


def ticket(*operations: list[object]) -> bytes:
    query = {"table": "big", "ops": list(operations)}
    return b"q/" + json.dumps(query, separators=(",", ":")).encode()


TERMS = "n" + "+n" * 1_899 + " > 0"

QUERIES = {
    "sort": ["sort", ["text", "n"]],
    "agg_by": ["agg_by", ["text"], {"total": "sum(n)"}],
    "select_distinct": ["select_distinct", ["text"]],
    "last_by": ["last_by", ["text"]],
    "where": ["where", TERMS],
}


@pytest.fixture
def server() -> Iterator[barrage.Server]:
    with barrage.Server() as running:
        running.create_table("big", data=BIG)
        running.create_table("small", pa.schema([("x", pa.int64())]))
        yield running


@pytest.mark.parametrize("name", QUERIES)
def test_others_get_their_updates_while_a_heavy_query_is_derived(name, server, gate) -> None:
    small, big = server.table("small"), server.table("big")
    read = ReadingThread(server.uri, ticket(QUERIES[name]))
    with barrage.connect(server.address) as watching:
        try:
            with watching.table("small").subscribe(interval_ms=10) as seen:
                assert gate.reached.wait(HANG_S)
                seen.wait_ready(timeout=HANG_S)
                for x in range(3):
                    small.add({"x": [x]})
                    wait_until(lambda x=x: seen.to_arrow()["x"].to_pylist() == list(range(x + 1)))
                # So does the table of the query.
                big.add({"n": [-7], "text": ["new"]})
        finally:
            gate.opened.set()
    assert_is_right(name, read.result())


def test_others_get_their_updates_while_a_large_sorted_table_is_read(server, held_reads) -> None:
    server.publish("sorted", server.table("big").sort("text", "n"))
    small, big = server.table("small"), server.table("big")
    read = ReadingThread(server.uri, b"s/sorted")
    try:
        assert held_reads.reached.wait(HANG_S)
        for x in range(3):
            small.add({"x": [x]})
        big.add({"n": [-7], "text": ["new"]})
    finally:
        held_reads.opened.set()
    # The rows are those of the moment at which they were asked for.
    assert read.result().equals(BIG.sort_by([("text", "ascending"), ("n", "ascending")]))


def test_others_get_their_updates_while_a_column_is_looked_at(server, monkeypatch) -> None:
    gate = Gate()
    to_arrow = Table.to_arrow

    def held_read(self):
        if self.size > ROWS // 2:
            gate.pass_through()
        return to_arrow(self)

    monkeypatch.setattr(Table, "to_arrow", held_read)
    small = server.table("small")
    peer = DeephavenPeer(server.address)
    request = MESSAGES.encode(
        "ColumnStatisticsRequest",
        result_id=ticket_message(peer.new_ticket()),
        source_id=reference(b"s/big"),
        column_name="n",
    )
    asked = peer.begin(TABLE_SERVICE, "ComputeColumnStatistics", request)
    try:
        assert gate.reached.wait(HANG_S)
        for x in range(3):
            small.add({"x": [x]})
    finally:
        gate.opened.set()
    answer = MESSAGES.decode("ExportedTableCreationResponse", asked.result(HANG_S))
    assert answer.success
    peer.close()


class ReadingThread(threading.Thread):
    """Reads one ticket."""

    def __init__(self, uri: str, ticket: bytes) -> None:
        super().__init__()
        self._uri, self._ticket = uri, ticket
        self._found: list[pa.Table | Exception] = []
        self.start()

    def run(self) -> None:
        with flight.connect(self._uri) as client:
            try:
                self._found.append(client.do_get(flight.Ticket(self._ticket)).read_all())
            except Exception as error:
                self._found.append(error)

    def result(self) -> pa.Table:
        self.join(HANG_S)
        [found] = self._found
        if isinstance(found, Exception):
            raise found
        return found


def assert_is_right(name: str, found: pa.Table) -> None:
    everything = pa.concat_tables([BIG, pa.table({"n": [-7], "text": ["new"]})])
    if name == "sort":
        expected = everything.sort_by([("text", "ascending"), ("n", "ascending")])
        assert found.equals(expected)
    elif name == "where":
        assert found.num_rows == ROWS
    else:
        assert found.num_rows == 1001
        if name == "agg_by":
            assert sum(found["total"].to_pylist()) == sum(everything["n"].to_pylist())


WATCHES = {"full": {}, "viewport": {"viewport": (0, ROWS)}}


@pytest.mark.parametrize("name", WATCHES)
def test_others_get_their_updates_while_a_first_snapshot_is_read(name, server, held_reads) -> None:
    server.publish("sorted", server.table("big").sort("text", "n"))
    small, big = server.table("small"), server.table("big")
    with (
        barrage.connect(server.address) as session,
        session.table("sorted").subscribe(interval_ms=10, **WATCHES[name]) as large,
        barrage.connect(server.address) as other,
        other.table("small").subscribe(interval_ms=10) as seen,
    ):
        assert held_reads.reached.wait(HANG_S)
        seen.wait_ready(timeout=HANG_S)
        for x in range(3):
            small.add({"x": [x]})
            wait_until(lambda x=x: seen.to_arrow()["x"].to_pylist() == list(range(x + 1)))
        # Its own table goes on, too; it gets that after the snapshot, and once.
        big.add({"n": [-7], "text": ["a"]})
        big.add({"n": [-8], "text": ["a"]})
        held_reads.opened.set()
        large.wait_ready(timeout=HANG_S)
        wait_until(lambda: large.to_arrow()["n"].to_pylist()[:2] == [-8, -7])
        rows = ROWS if name == "viewport" else ROWS + 2
        assert large.to_arrow().num_rows == rows


def test_others_get_their_updates_while_the_program_itself_reads(server, held_reads) -> None:
    table = server.table("big").sort("text", "n")
    small = server.table("small")
    found: list[pa.Table] = []
    reading = threading.Thread(target=lambda: found.append(table.to_arrow()))
    reading.start()
    try:
        assert held_reads.reached.wait(HANG_S)
        for x in range(3):
            small.add({"x": [x]})
        server.table("big").add({"n": [-7], "text": ["a"]})
    finally:
        held_reads.opened.set()
    reading.join(HANG_S)
    assert found[0].equals(BIG.sort_by([("text", "ascending"), ("n", "ascending")]))


def test_who_waits_for_a_snapshot_gets_it_when_the_server_stops(held_reads) -> None:
    with barrage.Server("inproc://") as server, barrage.connect(server.uri) as session:
        big = server.create_table("big", data=BIG)
        server.publish("sorted", big.sort("text", "n"))
        states: list[int] = []
        with session.table("sorted").subscribe(interval_ms=10) as large:
            large.on_update(lambda update: states.append(large.to_arrow().num_rows))
            assert held_reads.reached.wait(HANG_S)
            big.add({"n": [-7], "text": ["a"]})
            stopping = threading.Thread(target=server.stop)
            stopping.start()
            held_reads.opened.set()
            stopping.join(HANG_S)
            wait_until(lambda: states[-1:] == [ROWS + 1])


def test_what_cannot_be_read_ends_who_waits_for_it_and_no_other(server, monkeypatch) -> None:
    read_cells = SortTable.read_cells

    def broken_read(self, keys, columns):
        if len(keys) > ROWS // 2:
            raise MemoryError
        return read_cells(self, keys, columns)

    monkeypatch.setattr(SortTable, "read_cells", broken_read)
    server.publish("sorted", server.table("big").sort("text", "n"))
    with (
        barrage.connect(server.address) as session,
        session.table("sorted").subscribe(viewport=(0, 3), interval_ms=10) as seen,
    ):
        seen.wait_ready(timeout=HANG_S)
        with (
            session.table("sorted").subscribe() as large,
            pytest.raises(BarrageError, match="internal error"),
        ):
            large.wait_ready(timeout=HANG_S)
        server.table("big").add({"n": [-7], "text": ["a"]})
        wait_until(lambda: seen.to_arrow()["n"].to_pylist()[0] == -7)


def test_when_the_thread_dies_who_waits_for_it_is_told_and_served_when_it_comes_again(
    server, monkeypatch
) -> None:
    deaths = [SystemExit(3)]
    deliveries = Making.deliveries

    def dying(self):
        if deaths:
            raise deaths.pop()
        return deliveries(self)

    monkeypatch.setattr(Making, "deliveries", dying)
    server.publish("sorted", server.table("big").sort("text", "n"))
    with (
        barrage.connect(server.address) as session,
        session.table("sorted").subscribe() as large,
    ):
        large.wait_ready(timeout=HANG_S)
        assert large.to_arrow().num_rows == ROWS
        assert not deaths
