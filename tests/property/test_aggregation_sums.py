"""Floating sums under rows that come and go, against exact sums: no drift, whatever was in a group
before."""

from __future__ import annotations

import math
from fractions import Fraction

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrage.engine import KeyedTable, UpdateGraph
from barrage.engine.operators import derive
from tests.helpers import model

SCHEMA = pa.schema([("id", pa.int64()), ("g", pa.int64()), ("x", pa.float64()), ("i", pa.int64())])

numbers = st.one_of(
    st.none(),
    st.floats(-1e6, 1e6),
    st.floats(min_value=-1e150, max_value=1e150),
    st.sampled_from([1e300, -1e300, 1e150, 0.1, 1e-300, math.inf, -math.inf, math.nan, 1e16]),
)
wholes = st.none() | st.integers(-(2**58), 2**58)
changes = st.lists(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 2), numbers, wholes), max_size=6),
    min_size=1,
    max_size=12,
)


def staged(table: KeyedTable, change: list[tuple[int, int, float | None, int | None]]) -> None:
    rows = list({row[0]: row for row in change}.values())
    arrays = [pa.array([row[i] for row in rows], f.type) for i, f in enumerate(SCHEMA)]
    table.stage_upsert(pa.table(arrays, schema=SCHEMA))


@given(changes=changes, removals=st.lists(st.lists(st.integers(0, 9), max_size=4), max_size=12))
def test_sums_and_variances_stay_right(
    changes: list[list[tuple[int, int, float | None, int | None]]], removals: list[list[int]]
) -> None:
    graph = UpdateGraph()
    table = KeyedTable(graph, SCHEMA, key="id")
    texts = {"s": "sum(x)", "a": "avg(x)", "v": "var(x)", "w": "sum(i)", "m": "avg(i)"}
    result = derive.agg_by(table, "g", **texts)
    for index, change in enumerate(changes):
        staged(table, change)
        if index < len(removals):
            table.stage_remove(pa.table({"id": pa.array(removals[index], pa.int64())}))
        assert not graph.run_cycle().failed
        rows = {row["g"]: row for row in model.rows_of(result)}
        groups = model.groups_of(model.rows_of(table), ["g"])
        assert len(rows) == len(groups)
        for group in groups:
            check_group(rows[group[0]["g"]], group)


def check_group(found: model.Row, group: list[model.Row]) -> None:
    cells = [row["x"] for row in group if row["x"] is not None]
    if not cells:
        assert found["s"] is found["a"] is found["v"] is None
    elif not all(map(math.isfinite, cells)):
        assert found["s"] == pytest.approx(sum(cells), nan_ok=True)
        assert math.isnan(found["v"])
    else:
        exact = sum(map(Fraction, cells))
        # What the present cells themselves cost, summed in pairs of doubles.
        noise = 2.0**-90 * max(map(abs, cells))
        assert found["s"] == pytest.approx(float(exact), rel=1e-14, abs=noise)
        assert found["a"] == pytest.approx(float(exact / len(cells)), rel=1e-14, abs=noise)
        check_variance(found["v"], cells)
    wholes = [row["i"] for row in group if row["i"] is not None]
    assert found["w"] == (sum(wholes) if wholes else None)


def check_variance(found: float, cells: list[float]) -> None:
    if len(cells) < 2 or max(map(abs, cells)) > 1e150:
        return
    mean = sum(map(Fraction, cells)) / len(cells)
    exact = sum((Fraction(cell) - mean) ** 2 for cell in cells) / (len(cells) - 1)
    noise = 2.0**-95 * max(map(abs, cells)) ** 2
    assert found == pytest.approx(float(exact), rel=1e-12, abs=noise + 1e-290)
