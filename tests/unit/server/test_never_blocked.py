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
from barrage.engine.grouping import RowGroups
from barrage.engine.operators.sort import SortTable
from barrage.engine.operators.sort_order import SortOrder
from barrage.engine.operators.where import WhereTable
from barrage.transport.deephaven_messages import MESSAGES, TABLE_SERVICE
from tests.helpers.deephaven_peer import DeephavenPeer, reference
from tests.helpers.deephaven_peer import ticket as ticket_message
from tests.helpers.server_process import wait_until

HANG_S = 60
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


def test_others_get_their_updates_while_a_large_sorted_table_is_read(server, monkeypatch) -> None:
    gate = Gate()
    read_cells = SortTable.read_cells

    def held_read(self, keys, columns):
        if len(keys) > ROWS // 2:
            gate.pass_through()
        return read_cells(self, keys, columns)

    server.publish("sorted", server.table("big").sort("text", "n"))
    monkeypatch.setattr(SortTable, "read_cells", held_read)
    small, big = server.table("small"), server.table("big")
    read = ReadingThread(server.uri, b"s/sorted")
    try:
        assert gate.reached.wait(HANG_S)
        for x in range(3):
            small.add({"x": [x]})
        big.add({"n": [-7], "text": ["new"]})
    finally:
        gate.opened.set()
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
