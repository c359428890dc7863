"""One row of a keyed table as the next cycle will have it."""

from __future__ import annotations

import pyarrow as pa
import pytest

from barrage.engine.tables.graph import UpdateGraph
from barrage.engine.tables.keyed import KeyedTable
from barrage.errors import BarrageError

SCHEMA = pa.schema([("id", pa.int64()), ("part", pa.string()), ("n", pa.int64())])


def rows(*cells: tuple[int, str, int]) -> pa.Table:
    columns = list(zip(*cells, strict=True))
    return pa.table(dict(zip(SCHEMA.names, columns, strict=True)), schema=SCHEMA)


def key(number: int, part: str | None) -> pa.Table:
    return pa.table({"id": [number], "part": [part]}, schema=SCHEMA.remove(2))


def test_what_is_staged_counts() -> None:
    graph = UpdateGraph()
    table = KeyedTable(graph, SCHEMA, key=["id", "part"])

    def latest(number: int, part: str = "a") -> int | None:
        found = table.latest_row(key(number, part))
        return None if found is None else found["n"][0].as_py()

    assert latest(1) is None
    table.stage_upsert(rows((1, "a", 10), (2, "a", 20)))
    assert (latest(1), latest(2), latest(1, "b")) == (10, 20, None)
    graph.run_cycle()
    assert (latest(1), latest(2)) == (10, 20)
    table.stage_upsert(rows((2, "a", 21)))
    table.stage_remove(key(1, "a"))
    assert (latest(1), latest(2)) == (None, 21)
    table.stage_upsert(rows((1, "a", 12)))
    assert latest(1) == 12
    graph.run_cycle()
    assert (latest(1), latest(2)) == (12, 21)
    with pytest.raises(BarrageError, match="part"):
        table.latest_row(key(1, None))
