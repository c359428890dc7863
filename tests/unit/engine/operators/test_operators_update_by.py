"""Running values: which rows a cycle computes, numbers at their ends, and what is refused."""

from __future__ import annotations

import math
import random

import numpy as np
import pyarrow as pa
import pytest

from barrage.engine import (
    AppendOnlyTable,
    KeyedTable,
    ListTable,
    RingTable,
    StaticTable,
    UpdateGraph,
)
from barrage.engine.aggregation.running import Running, has_settled, recurrence, running_values
from barrage.engine.operators import derive
from barrage.engine.operators import update_by as update_by_module
from barrage.engine.tables.work import FOUND_ROW, RESERVED_BEHIND
from barrage.errors import EngineError, ExpressionError, SchemaError
from tests.helpers import model

SCHEMA = pa.schema([("k", pa.int64()), ("g", pa.string()), ("n", pa.int64()), ("x", pa.float64())])
CELLS = [None, 0.0, 0.25, -3.0, 1e6]
FORMULAS = {"total": "cum_sum(n)", "smooth": "ema_tick(x, 3)"}


def rows(*parts: tuple[int, str, int | None, float | None]) -> pa.Table:
    columns = dict(zip(SCHEMA.names, map(list, zip(*parts, strict=True)), strict=True))
    return pa.table(columns, schema=SCHEMA)


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows were computed, each time."""
    found: list[int] = []

    def noting(running, cells, lengths, *, states):
        found.append(len(cells))
        return running_values(running, cells, lengths, states=states)

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
        # It moves: 16, 18 and 20 are left behind it in A, and B has 14, 15, 17 and 19 from it on.
        (lambda: source.stage_upsert(rows((14, "B", 14, 14.0))), 7),
        (lambda: source.stage_remove(pa.table({"k": [21]})), 0),  # the only row of its group
        (lambda: source.stage_remove(pa.table({"k": [0]})), 9),
    ):
        computed.clear()
        change()
        graph.run_cycle()
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


def test_a_change_of_an_average_costs_the_rows_until_it_has_faded(
    computed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(update_by_module, "AHEAD", 128)
    graph = UpdateGraph()
    source = KeyedTable(graph, SCHEMA, key="k")
    numbers = np.random.default_rng(1).normal(size=6000).tolist()
    source.stage_upsert(rows(*((i, "AB"[i % 2], i, numbers[i]) for i in range(6000))))
    graph.run_cycle()
    view = derive.update_by(source, "g", **FORMULAS)
    for change, counts in (
        # The sum goes on to the end of the group, the average for a piece.
        (rows((10, "A", 9, 10.0)), [129, 129, 129 * 16, 2995 - 129 * 17]),
        (rows((10, "A", 9, 1.0)), [129, 129]),
        # The changes of the sum cancel out.
        (rows((20, "A", 19, 1.0), (2000, "A", 2001, 1.0)), [991 + 128] * 2),
    ):
        computed.clear()
        source.stage_upsert(change)
        update = graph.run_cycle().updates[view]
        assert computed == counts
        expected = model.rounded(model.running_rows(model.rows_of(source), ["g"], FORMULAS))
        assert model.rounded(model.rows_of(view)) == expected
    assert len(update.modified_keys_post[4]) == 990


@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", range(6))
def test_any_changes_give_what_the_rows_give(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(update_by_module, "AHEAD", 1)
    monkeypatch.setattr(update_by_module, "FURTHER", 2)
    chance = random.Random(seed)
    graph = UpdateGraph()
    source = ListTable(graph, SCHEMA)
    view = derive.update_by(source, "g", **FORMULAS)
    groups = "AB" if seed % 2 else "ABCDEFGH"

    def some(count: int) -> pa.Table:
        return rows(
            *(
                (i, chance.choice(groups), chance.choice([None, 0, 1, 5]), chance.choice(CELLS))
                for i in range(count)
            )
        )

    source.stage_add(some(30))
    for _ in range(40):
        for _ in range(chance.randrange(3)):
            position = chance.randrange(source.size + 1)
            source.stage_insert(position, some(chance.randrange(1, 5)))
        graph.run_cycle()
        if source.size:
            start = chance.randrange(source.size)
            source.stage_delete(start, min(source.size, start + chance.randrange(8)))
        graph.run_cycle()
        expected = model.running_rows(model.rows_of(source), ["g"], FORMULAS)
        assert model.rounded(model.rows_of(view)) == model.rounded(expected)


class Noting:
    """A meter that admits everything."""

    def __init__(self) -> None:
        self.per_cycle: list[int] = []

    def admit(self, key, estimate) -> bool:
        self.per_cycle.append(estimate.per_cycle)
        return True

    def keep(self, key, table) -> None:
        pass


def test_what_may_have_to_be_computed_again_is_paid_for_in_every_cycle() -> None:
    graph, meter = UpdateGraph(), Noting()
    keyed, growing = KeyedTable(graph, SCHEMA, key="k"), AppendOnlyTable(graph, SCHEMA)
    many = rows(*((i, "A", i, 1.0) for i in range(10_000)))
    keyed.stage_upsert(many)
    growing.stage_add(many)
    graph.run_cycle()
    with graph.metered(meter):
        views = [derive.update_by(table, "g", **FORMULAS) for table in (keyed, growing)]
    assert meter.per_cycle[0] - meter.per_cycle[1] == (FOUND_ROW + 2 * RESERVED_BEHIND) * keyed.size
    del views


def test_what_a_row_shows_has_settled() -> None:
    shown = pa.array([1.0, 1.0, math.nan, math.inf, None, None, 1e300, 0.0])
    now = pa.array([1.0 + 2**-52, 1.0 + 2**-40, math.nan, 1.0, None, 0.0, math.inf, 1e-300])
    average, total = Running("r", "ema_tick", "c", 5.0), Running("r", "cum_sum", "c")
    expected = [True, False, True, False, True, False, False, False]
    assert has_settled(average, shown, now).tolist() == expected
    assert has_settled(total, shown, now).tolist() == [False, *expected[1:]]


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
    monkeypatch.setattr("barrage.engine.aggregation.grouping.FREE_GROUPS_MIN", 4)
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


@pytest.mark.parametrize("count", [1, 2, 3, 16, 17, 255, 1000])
@pytest.mark.parametrize("decay", [1.0, 0.9, 1e-9])
def test_blocks_of_rows_give_what_one_row_after_another_gives(count: int, decay: float) -> None:
    chance = np.random.default_rng(count)
    inputs = chance.normal(size=count)
    starts = np.unique(np.append(0, chance.integers(0, count, count // 3)))
    for begins in (starts, starts[:1]):
        expected: list[float] = []
        for place, cell in enumerate(inputs.tolist()):
            expected.append(cell if place in begins else cell + decay * expected[-1])
        found = recurrence(inputs, begins, decay)
        assert found.tolist() == pytest.approx(expected, rel=1e-11, abs=1e-13)


def test_a_sum_that_overflows_stays_in_its_group() -> None:
    cells = pa.array([1e308, 1e308, 1.0, 1.0] * 300)
    running = Running("r", "cum_sum", "c")
    shown = running_values(running, cells, np.full(600, 2), states=pa.nulls(600, pa.float64()))
    assert shown.to_pylist() == [1e308, math.inf, 1.0, 2.0] * 300


def test_a_long_group_is_what_one_row_after_another_gives() -> None:
    cells = np.random.default_rng(1).normal(size=3000)
    expected, last, decay = [], None, math.exp(-1 / 50)
    for cell in cells.tolist():
        last = cell if last is None else decay * last + (1 - decay) * cell
        expected.append(last)
    running = Running("r", "ema_tick", "c", 50.0)
    states = pa.nulls(1, pa.float64())
    found = running_values(running, pa.array(cells), np.array([3000]), states=states)
    assert found.to_pylist() == pytest.approx(expected, rel=1e-12)
    rest = running_values(
        running, pa.array(cells[1000:]), np.array([2000]), states=pa.array([expected[999]])
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


def test_a_sum_of_float32_counts_on_past_what_float32_can_count() -> None:
    schema = pa.schema([("k", pa.int64()), ("x", pa.float32())])
    graph = UpdateGraph()
    source = KeyedTable(graph, schema, key="k")
    view = derive.update_by(source, total="cum_sum(x)")
    for key in range(20):
        cells = pa.array([1.0 if key else 2.0**24], pa.float32())
        source.stage_upsert(pa.table([pa.array([key]), cells], schema=schema))
        graph.run_cycle()
    assert view.schema.field("total").type == pa.float64()
    assert view.to_arrow()["total"][-1].as_py() == 2.0**24 + 19
