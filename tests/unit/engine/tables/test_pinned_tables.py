"""Tables that are pinned: nothing is copied, they stay as they were, and nothing is kept for those
that nobody has."""

from __future__ import annotations

import dataclasses
import random
import weakref

import pyarrow as pa
import pytest

from barrage.engine import KeyedTable, UpdateGraph
from barrage.engine.planning.derivation import check_copies
from barrage.engine.tables import keyed
from barrage.engine.tables.table import Table
from barrage.limits import Limits
from barrage.model.storage import column_store, growth, log, pinning, thawing

SCHEMA = pa.schema(
    [
        ("k", pa.int64()),
        ("number", pa.int32()),
        ("flag", pa.bool_()),
        ("text", pa.string()),
        ("word", pa.dictionary(pa.int32(), pa.string())),
    ]
)


@pytest.fixture
def few_rows_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyed, "FREE_SLOTS_MIN", 8)
    monkeypatch.setattr(keyed, "PACKED_CELLS", 20)
    monkeypatch.setattr(keyed, "MOVED_TOGETHER", 2)
    monkeypatch.setattr(column_store, "THAWED_AT_ONCE_MAX", 10)
    monkeypatch.setattr(thawing, "THAWED_TOGETHER", 5)
    monkeypatch.setattr(log, "GARBAGE_ROWS_MIN", 3)
    monkeypatch.setattr(log, "CLEANED_TOGETHER", 4)
    monkeypatch.setattr(growth, "SLACK_ROWS_MIN", 1)
    monkeypatch.setattr(growth, "COPIED_ENTRIES_MAX", 1)
    monkeypatch.setattr(growth, "PINS_MAX", 3)
    monkeypatch.setattr(growth, "MOVED_TOGETHER", 5)
    monkeypatch.setattr(pinning, "SAVED_TOGETHER_MAX", 8)


def rows_of(keys: list[int], salt: int) -> pa.Table:
    return pa.table(
        {
            "k": pa.array(keys, pa.int64()),
            "number": pa.array([None if (k + salt) % 5 == 0 else salt for k in keys], pa.int32()),
            "flag": pa.array([(k + salt) % 3 == 0 for k in keys]),
            "text": pa.array([f"{k} {salt}" for k in keys]),
            "word": pa.array([str(salt % 4) for _ in keys]).dictionary_encode(),
        },
        schema=SCHEMA,
    )


def overwritten_table(row_count: int) -> tuple[UpdateGraph, KeyedTable]:
    """A table whose cells have all been written in place, but those of the key."""
    graph = UpdateGraph()
    table = KeyedTable(graph, SCHEMA, key="k")
    for salt in (1, 2):
        table.stage_upsert(rows_of(list(range(row_count)), salt))
        graph.run_cycle()
    for _ in range(20):
        table.stage_upsert(rows_of([0], 3))
        graph.run_cycle()
    return graph, table


def shown(table: Table) -> list[dict[str, object]]:
    return table.to_arrow().to_pylist()


@pytest.mark.parametrize("seed", range(12))
def test_a_pinned_table_stays_as_it_was(few_rows_at_a_time: None, seed: int) -> None:
    drawn = random.Random(seed)
    graph, table = overwritten_table(30)
    pins: list[tuple[Table, list[dict[str, object]]]] = []
    for salt in range(60):
        some = drawn.sample(range(90), drawn.randrange(30))
        if drawn.random() < 0.3:
            table.stage_remove(pa.table({"k": pa.array(some, pa.int64())}))
        elif drawn.random() < 0.05:
            table.stage_replace(rows_of(some, salt))
        else:
            table.stage_upsert(rows_of(some, salt))
        graph.run_cycle()
        if drawn.random() < 0.4:
            pins.append((table.pinned(), shown(table)))
        if pins and drawn.random() < 0.3:
            pins.append((pins[-1][0].pinned(), pins[-1][1]))
        if pins and drawn.random() < 0.3:
            del pins[drawn.randrange(len(pins))]
        for pin, rows in pins:
            assert shown(pin) == rows


def test_to_pin_a_large_table_copies_nothing() -> None:
    graph, table = overwritten_table(150_000)
    assert table.overwritten_nbytes > 150_000 * 12
    pins = []
    for salt in range(growth.PINS_MAX):
        # Bitmaps of so many rows are not large.
        check_copies([table], dataclasses.replace(Limits(), query_copied_bytes_max=100_000))
        pins.append((table.pinned(), salt))
        table.stage_upsert(rows_of([7], salt))
        graph.run_cycle()
    with pytest.raises(Exception, match="cells to be copied"):
        check_copies([table], dataclasses.replace(Limits(), query_copied_bytes_max=100_000))
    del pins[3]
    check_copies([table], dataclasses.replace(Limits(), query_copied_bytes_max=100_000))


def test_a_pinned_table_that_nobody_has_is_gone_at_once() -> None:
    graph, table = overwritten_table(150_000)
    pin = table.pinned()
    array = pin.storage.columns[1]._cells._values  # type: ignore[attr-defined]
    entries = weakref.ref(array._entries)
    table.stage_upsert(rows_of(list(range(1000)), 9))
    graph.run_cycle()
    assert entries()._marks is not None  # type: ignore[union-attr]
    del pin, array
    # Without a collection of garbage: pins that are held make every write dearer.
    assert entries() is None
