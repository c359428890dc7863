"""The keys of a table that a batch does not have, of the moment when they were pinned."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from barrage.engine import KeyedTable, UpdateGraph
from barrage.engine.tables import keyed
from barrage.errors import EngineError, TableFailedError
from barrage.server.ingest import pinned_keys
from barrage.server.ingest.pinned_keys import PinnedKeys

WORDS = pa.dictionary(pa.int32(), pa.string())
SCHEMA = pa.schema([("n", pa.float64()), ("w", WORDS), ("v", pa.int64())])


@pytest.fixture(autouse=True)
def _few_rows_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyed, "FREE_SLOTS_MIN", 8)
    monkeypatch.setattr(pinned_keys, "LOOKED_UP_TOGETHER", 3)


def rows(keys: list[tuple[float, str]]) -> pa.Table:
    columns = {"n": [n for n, _ in keys], "w": pa.array([w for _, w in keys]).cast(WORDS)}
    return pa.table({**columns, "v": range(len(keys))}, schema=SCHEMA)


def found(keys: PinnedKeys, batch: list[tuple[float, str]]) -> list[str]:
    absent = keys.absent_from(rows(batch))
    assert absent.schema == pa.schema([SCHEMA.field("n"), SCHEMA.field("w")])
    return sorted(map(repr, zip(absent["n"].to_pylist(), absent["w"].to_pylist(), strict=True)))


def test_absent_keys_are_those_of_the_moment_of_pinning_whatever_comes_later() -> None:
    drawn = random.Random(5)
    every: list[tuple[float, str]] = [
        (n, w) for n in (0.0, -0.0, float("nan"), 1.5) for w in map(str, range(20))
    ]
    graph = UpdateGraph()
    table = KeyedTable(graph, SCHEMA, key=("n", "w"))
    pinned: list[tuple[PinnedKeys, set[str]]] = []
    there: dict[str, tuple[float, str]] = {}
    for _ in range(60):
        coming, going = drawn.sample(every, 12), drawn.sample(every, 16)
        table.stage_upsert(rows(coming))
        table.stage_remove(rows(going).select(["n", "w"]))
        graph.run_cycle()
        there |= {repr(key): key for key in coming}
        for key in going:
            there.pop(repr(key), None)
        pinned.append((PinnedKeys(table), set(there)))
    for keys, present in pinned:
        batch = drawn.sample(every, drawn.randint(0, 40))
        assert found(keys, batch) == sorted(present - set(map(repr, batch)))


def test_a_table_without_rows_has_no_keys() -> None:
    table = KeyedTable(UpdateGraph(), SCHEMA, key=("n", "w"))
    assert found(PinnedKeys(table), [(1.0, "a")]) == []


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.binary(3), pa.bool_(), pa.date32(), WORDS], ids=str
)
def test_keys_of_any_type(kind: pa.DataType) -> None:
    values: dict[Any, list[Any]] = {
        pa.string(): ["", "a", "b" * 200],
        pa.binary(3): [b"abc", b"abd", b"\0\0\0"],
        pa.bool_(): [False, True],
        pa.date32(): [0, 1, -1],
        WORDS: ["x", "y", ""],
    }
    keys = pa.array(values[kind], pa.int32() if kind == pa.date32() else None).cast(kind)
    graph = UpdateGraph()
    table = KeyedTable(graph, pa.schema([("k", kind)]), key="k")
    table.stage_upsert(pa.table({"k": keys}))
    graph.run_cycle()
    absent = PinnedKeys(table).absent_from(pa.table({"k": keys[1:2]}))
    assert absent["k"].to_pylist() == keys[:1].to_pylist() + keys[2:].to_pylist()


def test_a_table_that_has_failed_has_no_keys_to_read() -> None:
    table = KeyedTable(UpdateGraph(), SCHEMA, key=("n", "w"))
    table.fail(EngineError("no more"))
    with pytest.raises(TableFailedError):
        PinnedKeys(table)
