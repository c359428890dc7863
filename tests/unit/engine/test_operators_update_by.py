"""Running values: which rows a cycle computes, numbers at their ends, and what is refused."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pytest

from barrage.engine import AppendOnlyTable, KeyedTable, RingTable, StaticTable, UpdateGraph, derive
from barrage.engine.operators import update_by as update_by_module
from barrage.engine.running import Running, running_values
from barrage.errors import EngineError, ExpressionError, SchemaError
from tests.helpers import model

SCHEMA = pa.schema([("k", pa.int64()), ("g", pa.string()), ("n", pa.int64()), ("x", pa.float64())])
FORMULAS = {"total": "cum_sum(n)", "smooth": "ema_tick(x, 3)"}


def rows(*parts: tuple[int, str, int | None, float | None]) -> pa.Table:
    columns = dict(zip(SCHEMA.names, map(list, zip(*parts, strict=True)), strict=True))
    return pa.table(columns, schema=SCHEMA)


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows were computed, each time."""
    found: list[int] = []

    def noting(running, cells, lengths, states):
        found.append(len(cells))
        return running_values(running, cells, lengths, states)

    monkeypatch.setattr(update_by_module, "running_values", noting)
    return found


def one(function: str, cells: pa.Array, ticks: float | None = None) -> list:
    column = pa.table({"c": cells})
    text = f"{function}(c)" if ticks is None else f"{function}(c, {ticks})"
    return derive.update_by(StaticTable(UpdateGraph(), column), r=text).to_arrow()["r"].to_pylist()


def test_a_group_is_continued_where_it_got_rows_and_computed_from_a_change_on(computed) -> None:
    graph = UpdateGraph()
    source = KeyedTable(graph, SCHEMA, key="k")
    source.stage_upsert(rows(*((i, "AB"[i % 2], i, float(i)) for i in range(20))))
    graph.run_cycle()
    view = derive.update_by(source, "g", **FORMULAS)

    def check(count: int) -> None:
        expected = model.rounded(model.running_rows(model.rows_of(source), ["g"], FORMULAS))
        assert model.rounded(model.rows_of(view)) == expected
        assert computed == [count] * len(FORMULAS)

    check(20)
    for change, count in (
        (lambda: source.stage_upsert(rows((20, "A", 1, 1.0), (21, "C", 2, None))), 2),
        (lambda: source.stage_upsert(rows((15, "B", 0, 0.5))), 3),  # 15, 17 and 19
        (lambda: source.stage_upsert(rows((14, "B", 14, 14.0))), 20),  # it moves: A is done anew
        (lambda: source.stage_remove(pa.table({"k": [21]})), 0),  # the only row of its group
        (lambda: source.stage_remove(pa.table({"k": [0]})), 9),
    ):
        computed.clear()
        change()
        graph.run_cycle()
        if count == 20:
            # A has ten rows left and B those from 14 on: 14, 15, 17, 19.
            count = 10 + 4
        if count == 0:
            assert computed == []
        else:
            check(count)


def test_only_cells_that_changed_are_told() -> None:
    graph = UpdateGraph()
    source = KeyedTable(graph, SCHEMA, key="k")
    source.stage_upsert(rows(*((i, "A", 1, 1.0) for i in range(5))))
    graph.run_cycle()
    view = derive.update_by(source, **FORMULAS)
    source.stage_upsert(rows((2, "A", 1, 9.0)))
    update = graph.run_cycle().updates[view]
    assert [len(keys) for keys in update.modified_keys_post] == [0, 0, 0, 1, 0, 3]


def test_what_only_grows_only_grows(computed) -> None:
    graph = UpdateGraph()
    source = AppendOnlyTable(graph, SCHEMA)
    view = derive.update_by(source, total="cum_sum(n)")
    assert view.is_append_only
    for number in range(6):
        source.stage_add(rows((number, "A", None if number == 2 else number, None)))
        graph.run_cycle()
    assert view.to_arrow()["total"].to_pylist() == [0, 1, 1, 4, 8, 13]
    assert computed == [1] * 6


def test_groups_that_come_and_go_take_no_more_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("barrage.engine.grouping.FREE_GROUPS_MIN", 4)
    graph = UpdateGraph()
    source = RingTable(graph, SCHEMA, capacity=3)
    view = derive.update_by(source, "g", total="cum_sum(n)")
    for number in range(40):
        source.stage_add(rows((number, str(number), 1, None), (number, "A", 2, None)))
        graph.run_cycle()
        expected = model.running_rows(model.rows_of(source), ["g"], {"total": "cum_sum(n)"})
        assert model.rows_of(view) == expected
    assert len(view._last_row) < 30


@pytest.mark.parametrize("kind", [pa.int8(), pa.uint64(), pa.int64(), pa.bool_()], ids=str)
def test_whole_numbers_are_added_exactly(kind: pa.DataType) -> None:
    cells = pa.array([1, None, 1, 0], pa.int8()).cast(kind)
    assert one("cum_sum", cells) == [1, 1, 2, 2]


def test_sums_at_the_ends_of_int64() -> None:
    most, least = 2**63 - 1, -(2**63)
    assert one("cum_sum", pa.array([least, most, 1, most])) == [least, -1, 0, most]
    for cells in ([most, 1], [least, -1]):
        with pytest.raises(EngineError, match="does not fit int64"):
            one("cum_sum", pa.array(cells))
    with pytest.raises(EngineError, match="does not fit int64"):
        one("cum_sum", pa.array([2**63], pa.uint64()))
    graph = UpdateGraph()
    source = AppendOnlyTable(graph, SCHEMA)
    view = derive.update_by(source, total="cum_sum(n)")
    source.stage_add(rows((1, "A", most, None), (2, "A", most, None)))
    assert isinstance(graph.run_cycle().failed[view], EngineError)


def test_infinities_and_nan_stay_in_their_group_and_order() -> None:
    inf, nan = math.inf, math.nan
    shown = one("cum_sum", pa.array([None, 1.0, inf, 2.0, -inf, 3.0]))
    assert repr(shown) == repr([None, 1.0, inf, inf, nan, nan])
    assert repr(one("cum_sum", pa.array([1.0, nan, 1.0]))) == repr([1.0, nan, nan])
    assert repr(one("ema_tick", pa.array([nan, 1.0, nan, 1.0, inf]), 2)) == repr(
        [None, 1.0, 1.0, 1.0, inf]
    )
    assert one("cum_sum", pa.array([0.5, 0.25], pa.float32())) == [0.5, 0.75]
    assert one("ema_tick", pa.array([4, 4, None]), 1e-9) == [4.0, 4.0, 4.0]


def test_a_long_group_is_what_one_row_after_another_gives() -> None:
    cells = np.random.default_rng(1).normal(size=3000)
    expected, last, decay = [], None, math.exp(-1 / 50)
    for cell in cells.tolist():
        last = cell if last is None else decay * last + (1 - decay) * cell
        expected.append(last)
    running = Running("r", "ema_tick", "c", 50.0)
    states = pa.nulls(1, pa.float64())
    found = running_values(running, pa.array(cells), np.array([3000]), states)
    assert found.to_pylist() == pytest.approx(expected, rel=1e-12)
    rest = running_values(
        running, pa.array(cells[1000:]), np.array([2000]), pa.array([expected[999]])
    )
    assert rest.to_pylist() == pytest.approx(expected[1000:], rel=1e-12)


@pytest.mark.parametrize(
    ("formula", "error", "message"),
    [
        ("n", ExpressionError, "is no running value"),
        ("cum_sum()", ExpressionError, "is no running value"),
        ("cum_sun(n)", ExpressionError, "did you mean 'cum_sum'"),
        ("median(n)", ExpressionError, "there are cum_sum, ema_tick"),
        ("cum_sum(n, 3)", ExpressionError, "takes one column"),
        ("ema_tick(n)", ExpressionError, "a column and a number of ticks"),
        ("ema_tick(n, 0)", ExpressionError, "above 0"),
        ("ema_tick(n, nan)", ExpressionError, "above 0"),
        ("ema_tick(n, x)", ExpressionError, "above 0"),
        ("cum_sum(g)", SchemaError, "takes numbers and booleans, but column 'g' is string"),
        ("cum_sum(m)", SchemaError, "unknown column 'm'"),
        ("cum_sum(" + "n" * 20000 + ")", ExpressionError, "characters"),
    ],
)
def test_what_cannot_be_is_refused(formula, error, message) -> None:
    source = AppendOnlyTable(UpdateGraph(), SCHEMA)
    with pytest.raises(error, match=message):
        derive.update_by(source, "g", r=formula)


def test_names_and_groups_are_checked() -> None:
    source = AppendOnlyTable(UpdateGraph(), SCHEMA)
    with pytest.raises(ExpressionError, match="wants a formula"):
        derive.update_by(source, "g")
    with pytest.raises(SchemaError, match="two columns 'n'"):
        derive.update_by(source, n="cum_sum(n)")
    with pytest.raises(SchemaError, match="'h' does not exist"):
        derive.update_by(source, "h", t="cum_sum(n)")
    same = derive.update_by(source, "g", t="cum_sum( n )")
    assert derive.update_by(source, "g", t="cum_sum(`n`)") is same
