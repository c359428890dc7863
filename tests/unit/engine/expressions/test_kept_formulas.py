"""Long formulas are evaluated once per change; whoever reads gets what was found then."""

from __future__ import annotations

import pyarrow as pa
import pytest

from barrage.engine import KeyedTable, UpdateGraph
from barrage.engine.expressions.expression import BoundExpression
from barrage.engine.operators import derive
from barrage.engine.operators.select import KEPT_OPERATIONS

SCHEMA = pa.schema([("k", pa.int64()), ("a", pa.int64())])


@pytest.fixture
def evaluated(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows each evaluation was of."""
    counts: list[int] = []
    evaluate = BoundExpression.evaluate

    def counted(self, cells, row_count):
        counts.append(row_count)
        return evaluate(self, cells, row_count)

    monkeypatch.setattr(BoundExpression, "evaluate", counted)
    return counts


def table_of(count: int) -> KeyedTable:
    table = KeyedTable(UpdateGraph(), SCHEMA, key="k")
    table.stage_upsert(pa.table({"k": range(count), "a": range(count)}, schema=SCHEMA))
    table.graph.run_cycle()
    return table


def formula(operations: int) -> str:
    return "a" + " + a" * operations


@pytest.mark.parametrize("is_kept", [False, True])
def test_reads_evaluate_short_formulas_only(evaluated, is_kept) -> None:
    source = table_of(10)
    count = KEPT_OPERATIONS if is_kept else KEPT_OPERATIONS - 1
    view = derive.select(source, "k", long=formula(count))
    assert evaluated == [10]
    for _ in range(3):
        assert view.to_arrow()["long"].to_pylist() == [(count + 1) * i for i in range(10)]
    assert evaluated == ([10] if is_kept else [10] * 4)
    assert view.reading == (2 if is_kept else 1 + 1 + count)


def test_what_is_kept_follows_the_rows(evaluated) -> None:
    source = table_of(10)
    view = derive.select(source, "k", long=formula(KEPT_OPERATIONS))
    source.stage_upsert(pa.table({"k": [3, 20], "a": [100, 200]}, schema=SCHEMA))
    source.stage_remove(pa.table({"k": [4]}, schema=SCHEMA.empty_table().select(["k"]).schema))
    source.graph.run_cycle()
    assert evaluated == [10, 1, 1]
    factor = KEPT_OPERATIONS + 1
    shown = dict(zip(*view.to_arrow().to_pydict().values(), strict=True))
    expected = {i: i * factor for i in range(10) if i not in (3, 4)}
    assert shown == expected | {3: 100 * factor, 20: 200 * factor}
    assert evaluated == [10, 1, 1]
