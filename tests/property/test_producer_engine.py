"""The producer over the engine's own tables, shifts and all: naive receivers equal the table after
every propagation, for the seven subscription shapes."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pyarrow as pa
import pytest

from barrage.engine import AppendOnlyTable, KeyedTable, ListTable, RingTable, UpdateGraph
from barrage.engine.changelog.subscription import SubscriptionSpec
from barrage.engine.operators import derive
from barrage.engine.propagation.producer import Producer
from barrage.limits import NANOS_PER_MS
from barrage.model.viewport import Viewport
from barrage.rowset import RowSet
from tests.helpers.receivers import KeyReceiver, ViewReceiver
from tests.helpers.told import each_told, views_together_from

SCHEMA = pa.schema([("id", pa.int64()), ("x", pa.int64()), ("name", pa.string())])
VIEWPORTS = [
    None,
    Viewport.of(0, 6),
    Viewport.of(5, 12),
    Viewport.of(0, 6, is_reverse=True),
    Viewport.of(3, 9, is_reverse=True),
    Viewport(positions=RowSet.parse("0-2,6-7,12-20")),
    Viewport(positions=RowSet.parse("1,4-5,9-11"), is_reverse=True),
]


@pytest.fixture(autouse=True, scope="module")
def _every_view_is_told_together() -> Iterator[None]:
    with views_together_from(1):
        yield


def rows(draw: Random, ids) -> pa.Table:
    ids = list(ids)
    numbers = [draw.randrange(50) for _ in ids]
    names = [None if number % 9 == 0 else f"n{number % 7}" for number in numbers]
    return pa.table([ids, numbers, names], schema=SCHEMA)


def fresh_ids(draw: Random, most: int):
    first = draw.randrange(10**6)
    return range(first, first + draw.randrange(most + 1))


def change_list(table: ListTable, draw: Random) -> None:
    size = table.size
    if draw.random() < 0.6:
        start = draw.randrange(size + 1)
        stop = min(size, start + draw.randrange(4))
        table.stage_delete(start, stop)
        size -= stop - start
    table.stage_insert(draw.randrange(size + 1), rows(draw, fresh_ids(draw, 3)))


def change_keyed(table: KeyedTable, draw: Random) -> None:
    table.stage_upsert(rows(draw, sorted(draw.sample(range(40), draw.randrange(6)))))
    if table.size > 5 and draw.random() < 0.5:
        gone = draw.sample(table.to_arrow()["id"].to_pylist(), 2)
        table.stage_remove(pa.table({"id": gone}))


def change_appended(table: AppendOnlyTable | RingTable, draw: Random) -> None:
    table.stage_add(rows(draw, fresh_ids(draw, 4)))


def made_table(kind: str, graph: UpdateGraph):
    """A source, how it changes, and the table to subscribe to."""
    source, change = {
        "list": (lambda: ListTable(graph, SCHEMA), change_list),
        "keyed": (lambda: KeyedTable(graph, SCHEMA, key="id"), change_keyed),
        "append": (lambda: AppendOnlyTable(graph, SCHEMA), change_appended),
        "ring": (lambda: RingTable(graph, SCHEMA, capacity=15), change_appended),
    }[kind.partition(" ")[0]]
    made = source()
    views = {
        "": lambda: made,
        "sorted": lambda: derive.sort(made, "-x"),
        "where": lambda: derive.where(made, "x > 15"),
        "last_by": lambda: derive.last_by(made, "name"),
        "tail": lambda: derive.tail(made, 9),
        "sorted head": lambda: derive.head(derive.sort(made, "name", "x"), 11),
        "sorted where": lambda: derive.sort(derive.where(made, "x < 40"), "x"),
    }
    return made, change, views[kind.partition(" ")[2]]()


KINDS = [
    "list",
    "list sorted",
    "list where",
    "keyed",
    "keyed sorted",
    "keyed sorted where",
    "keyed sorted head",
    "append",
    "append tail",
    "append sorted",
    "append last_by",
    "ring",
    "ring sorted",
]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(2))
def test_receivers_follow_engine_tables(kind: str, seed: int) -> None:
    draw = Random(f"{kind} {seed}")
    graph = UpdateGraph()
    source, change, table = made_table(kind, graph)
    producer = Producer(table)
    receivers = {}
    for number, viewport in enumerate(VIEWPORTS * 2):
        columns = None if number < len(VIEWPORTS) else (0, 2)
        receivers[number] = KeyReceiver(3) if viewport is None else ViewReceiver(3)
        spec = SubscriptionSpec(
            columns=columns,
            viewport=viewport,
            interval_ns=(10 if number % 3 else 50) * NANOS_PER_MS,
            is_key_space=viewport is None,
            encoding="plain",
        )
        producer.add(number, spec, 0)
    held: set[int] = set()
    for step in range(60):
        change(source, draw)
        update = graph.run_cycle().updates.get(table)
        if update is not None:
            producer.record(update, step)
        number = draw.randrange(len(receivers))
        if number in held:
            producer.release(number)
            held.discard(number)
        elif draw.random() < 0.3:
            producer.hold(number)
            held.add(number)
        for each in each_told(producer.propagate(step * 20 * NANOS_PER_MS)):
            contents = table.to_arrow().to_pylist()
            tuples = [tuple(row.values()) for row in contents]
            for told in each.subscription_ids:
                assert told not in held
                receiver = receivers[told]
                receiver.receive(each.message)
                if isinstance(receiver, ViewReceiver):
                    receiver.check(tuples)
                else:
                    receiver.check(dict(zip(table.row_keys, tuples, strict=True)))
        producer.validate()
    assert all(receiver.messages > 3 for receiver in receivers.values())
