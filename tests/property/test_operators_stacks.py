"""Random stacks of operators over every kind of source, checked against whole-table recomputation
each cycle."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from barrage.engine import (
    AppendOnlyTable,
    BlinkTable,
    KeyedTable,
    ListTable,
    RingTable,
    SourceTable,
    Table,
    UpdateGraph,
)
from barrage.engine.aggregation import grouping as grouping_module
from barrage.engine.expressions.expression import Expression
from barrage.engine.keys import gaps as gaps_module
from barrage.engine.keys import key_map as key_map_module
from barrage.engine.operators import derive
from barrage.engine.operators import select as select_module
from barrage.engine.operators.convert import ColumnConversion, convert
from barrage.engine.operators.sort import SortKey
from barrage.model.operators import OPERATORS
from barrage.server.policy.keyed_hash import hashed_cells
from barrage.server.policy.restricted_tables import restricted_table
from barrage.server.policy.rules import Restriction
from tests.helpers import model

if TYPE_CHECKING:
    from collections.abc import Callable

SCHEMA = pa.schema(
    [
        pa.field("k", pa.int64()),
        pa.field("a", pa.int32()),
        pa.field("f", pa.float64()),
        pa.field("s", pa.string()),
        pa.field("d", pa.dictionary(pa.int32(), pa.string())),
    ]
)

cells = st.fixed_dictionaries(
    {
        "a": st.none() | st.integers(0, 3) | st.integers(-99, 99),
        "f": st.none()
        | st.sampled_from([0.0, -0.0, 1.5, -2.0, math.inf, math.nan])
        | st.floats(-9, 9, width=16),
        "s": st.none() | st.sampled_from(["", "x", "y", "a longer text"]),
        "d": st.none() | st.sampled_from(["u", "v", "w"]),
    }
)


@dataclass(frozen=True)
class Step:
    """One operator: how the engine derives it and what it must show."""

    derive: Callable[[Table], Table]
    naive: Callable[[list[model.Row]], list[model.Row]]
    is_ordered: bool = True
    is_rounded: bool = False
    """Floating results may differ in the last digits."""
    is_exact: bool = False
    """Only cells that changed are told as modified, whatever the parent tells."""


def select_step() -> Step:
    def naive(rows: list[model.Row]) -> list[model.Row]:
        return [
            {
                **{name: row[name] for name in SCHEMA.names},
                "t": None if None in (row["a"], row["k"]) else row["a"] * 2 + row["k"],
            }
            for row in rows
        ]

    return Step(lambda table: derive.select(table, *SCHEMA.names, t="a * 2 + k"), naive)


def where_step(text: str, condition: Callable[[model.Row], bool | None]) -> Step:
    return Step(
        lambda table: derive.where(table, text), lambda rows: model.where_rows(rows, condition)
    )


def sort_step(keys: list[tuple[str, bool, bool]]) -> Step:
    parsed = [
        SortKey(column=name, is_descending=descending, has_nulls_first=first)
        for name, descending, first in keys
    ]
    return Step(lambda table: derive.sort(table, *parsed), lambda rows: model.sort_rows(rows, keys))


def last_by_step(names: list[str]) -> Step:
    return Step(
        lambda table: derive.last_by(table, *names),
        lambda rows: model.last_rows(rows, names),
        is_ordered=False,
    )


@st.composite
def end_steps(draw: st.DrawFn, is_from_end: bool) -> Step:
    """The first or last rows of each group."""
    count = draw(st.integers(0, 4))
    by = draw(st.lists(st.sampled_from(["a", "s", "d", "f"]), max_size=2, unique=True))
    operator = derive.tail_by if is_from_end else derive.head_by
    return Step(
        lambda table: operator(table, count, *by),
        lambda rows: model.end_rows(rows, count, by, is_from_end=is_from_end),
    )


def listed(cells: pa.Array) -> pa.Array:
    """Each cell as often as itself says."""
    return pa.array([listed_cell(cell) for cell in cells.to_pylist()], pa.list_(cells.type))


def listed_cell(cell: int | None) -> list[int | None] | None:
    return None if cell is None else [cell, *range(abs(cell) % 4)][: abs(cell) % 4]


def ungroup_step() -> Step:
    """Two columns of lists from one of numbers, which are made rows again."""
    conversion = ColumnConversion(apply=listed)

    def apply(table: Table) -> Table:
        twice = derive.select(table, *SCHEMA.names, b="a")
        indices = [twice.schema.get_field_index(name) for name in ("a", "b")]
        lists = [
            field.with_type(pa.list_(field.type)) if index in indices else field
            for index, field in enumerate(twice.schema)
        ]
        grouped = convert(
            twice, pa.schema(lists), "listed", conversions=dict.fromkeys(indices, conversion)
        )
        return derive.select(derive.ungroup(grouped), *SCHEMA.names)

    def naive(rows: list[model.Row]) -> list[model.Row]:
        plain = [{name: row[name] for name in SCHEMA.names} for row in rows]
        grouped = [{**row, "a": listed_cell(row["a"])} for row in plain]
        return model.ungroup_rows(grouped, ["a"])

    return Step(apply, naive)


@st.composite
def running_steps(draw: st.DrawFn) -> Step:
    """Running values in the places of the columns they come from."""
    by = draw(st.lists(st.sampled_from(["a", "s", "d", "f"]), max_size=2, unique=True))
    floats = draw(st.sampled_from(["cum_sum(f)", "ema_tick(f, 2)", "ema_tick(a, 0.3)"]))
    # Other operators rely on it that k is never null.
    formulas = {"running": "cum_sum(k)", "smooth": floats}

    def apply(table: Table) -> Table:
        running = derive.update_by(table, *by, **formulas)
        return derive.select(running, k="running", a="a", f="smooth", s="s", d="d")

    def naive(rows: list[model.Row]) -> list[model.Row]:
        return [
            {"k": row["running"], "a": row["a"], "f": row["smooth"], "s": row["s"], "d": row["d"]}
            for row in model.running_rows(rows, by, formulas)
        ]

    return Step(apply, naive, is_rounded=True)


AGGREGATIONS = {
    "k": ["sum(k)", "abs_sum(k)", "min(k)", "last(k)", "count()", "count(s)", "sum(a)"],
    "a": ["min(a)", "max(a)", "first(a)", "last(a)"],
    "f": [
        *(f"{name}(f)" for name in ("sum", "abs_sum", "min", "max", "avg", "var", "std", "last")),
        *("avg(a)", "var(a)", "wavg(f, a)", "wsum(f, a)", "wavg(a, f)"),
    ],
    "s": ["min(s)", "max(s)", "first(s)", "last(s)"],
    "d": ["min(d)", "max(d)", "first(d)", "last(d)"],
}
"""What may stand for each column of the schema, so that other operators fit on top."""


@st.composite
def agg_by_steps(draw: st.DrawFn) -> Step:
    by = draw(st.lists(st.sampled_from(["a", "s", "d", "f"]), max_size=2, unique=True))
    chosen = {
        name: draw(st.sampled_from(texts)) for name, texts in AGGREGATIONS.items() if name not in by
    }

    def naive(rows: list[model.Row]) -> list[model.Row]:
        found = model.aggregate_rows(rows, by, chosen)
        return [{name: row[name] for name in SCHEMA.names} for row in found]

    return Step(
        lambda table: derive.select(derive.agg_by(table, *by, **chosen), *SCHEMA.names),
        naive,
        is_ordered=False,
        is_rounded=True,
        is_exact=True,
    )


def distinct_step() -> Step:
    return Step(
        lambda table: derive.select_distinct(table, *SCHEMA.names),
        lambda rows: model.distinct_rows(rows, SCHEMA.names),
        is_ordered=False,
        is_exact=True,
    )


def slice_step(span: tuple[int, int]) -> Step:
    return Step(lambda table: derive.slice(table, *span), lambda rows: model.slice_of(rows, *span))


slices = st.one_of(
    st.tuples(st.integers(0, 8), st.integers(0, 8)).map(lambda ends: (min(ends), max(ends))),
    st.tuples(st.integers(-8, -1), st.integers(-8, 0)).map(lambda ends: (min(ends), max(ends))),
    st.tuples(st.integers(0, 8), st.integers(-8, -1)),
)


def convert_step() -> Step:
    """A conversion that keeps the schema, so that other operators fit on top."""
    conversion = ColumnConversion(apply=pc.negate, may_fail=True)

    def naive(rows: list[model.Row]) -> list[model.Row]:
        return [{**row, "a": None if row["a"] is None else -row["a"]} for row in rows]

    return Step(
        lambda table: convert(
            table,
            table.schema,
            "negated",
            conversions={table.schema.get_field_index("a"): conversion},
        ),
        naive,
    )


def restrict_step(text: str, condition: Callable[[model.Row], bool | None]) -> Step:
    """What a rule shows: some rows, a column left out, others masked or hashed."""
    key = bytes(range(16))
    shown = Restriction(
        rows=Expression.parse(text) if text else None,
        hide=("more",),
        mask=(("f", 0.5), ("d", "z")),
        hash=("s",),
    )

    def apply(table: Table) -> Table:
        wider = derive.select(table, *SCHEMA.names, more="a")
        return restricted_table(wider, "t", shown, key=key)

    def hashed(cell: str | None) -> str | None:
        return hashed_cells(pa.array([cell], pa.string()), key)[0].as_py()

    def naive(rows: list[model.Row]) -> list[model.Row]:
        return [
            {name: row[name] for name in SCHEMA.names} | {"f": 0.5, "d": "z", "s": hashed(row["s"])}
            for row in model.where_rows(rows, condition)
        ]

    return Step(apply, naive)


restricted_steps = st.sampled_from(
    [
        restrict_step("", lambda _: True),
        restrict_step("a > 1", lambda row: None if row["a"] is None else row["a"] > 1),
        restrict_step(
            "d in ('u', 'z') or k < 9", lambda row: row["d"] in ("u", "z") or row["k"] < 9
        ),
    ]
)
"""No operator somebody can ask for, but below all that some may ask for."""


def drop_step() -> Step:
    """A column more, which goes again."""

    def apply(table: Table) -> Table:
        return derive.drop(derive.select(table, *SCHEMA.names, more="a"), "more")

    return Step(apply, lambda rows: [{name: row[name] for name in SCHEMA.names} for row in rows])


def head_step(count: int) -> Step:
    return Step(lambda table: derive.head(table, count), lambda rows: rows[:count])


def tail_step(count: int) -> Step:
    return Step(
        lambda table: derive.tail(table, count), lambda rows: rows[max(0, len(rows) - count) :]
    )


sort_keys = st.tuples(st.sampled_from(["a", "f", "s", "d", "k"]), st.booleans(), st.booleans())

STEPS: dict[str, st.SearchStrategy[Step]] = {
    "select": st.builds(select_step),
    "where": st.sampled_from(
        [
            where_step("a > 1", lambda row: None if row["a"] is None else row["a"] > 1),
            where_step("s = 'x' or isnull(a)", lambda row: row["s"] == "x" or row["a"] is None),
            where_step("d in ('u', 'v')", lambda row: row["d"] in ("u", "v")),
            where_step("not k < 20", lambda row: None if row["k"] is None else row["k"] >= 20),
        ]
    ),
    "sort": st.lists(sort_keys, min_size=1, max_size=3, unique_by=lambda key: key[0]).map(
        sort_step
    ),
    "drop": st.builds(drop_step),
    "head": st.integers(0, 12).map(head_step),
    "tail": st.integers(0, 12).map(tail_step),
    "last_by": st.lists(
        st.sampled_from(["a", "s", "d", "f"]), min_size=1, max_size=2, unique=True
    ).map(last_by_step),
    "agg_by": agg_by_steps(),
    "head_by": end_steps(False),
    "tail_by": end_steps(True),
    "ungroup": st.builds(ungroup_step),
    "update_by": running_steps(),
    "select_distinct": st.builds(distinct_step),
    "flatten": st.just(Step(lambda table: derive.flatten(table), lambda rows: rows)),
    "slice": slices.map(slice_step),
}
"""The operators of one table, by name."""

OF_SEVERAL_TABLES = {"natural_join", "merge"}
"""What tests/property/test_operators_combined.py is about."""

steps = st.one_of(*STEPS.values(), st.builds(convert_step), restricted_steps)


def test_every_operator_has_a_step() -> None:
    assert set(STEPS) | OF_SEVERAL_TABLES == set(OPERATORS)


def table_of(keys: list[int], values: list[dict[str, Any]]) -> pa.Table:
    columns = {"k": keys, **{name: [v[name] for v in values] for name in ("a", "f", "s")}}
    arrays = [pa.array(columns[f.name], type=f.type) for f in list(SCHEMA)[:4]]
    arrays.append(pa.array([v["d"] for v in values], type=pa.string()).dictionary_encode())
    return pa.table(arrays, schema=SCHEMA)


SOURCES: dict[str, Callable[[UpdateGraph], SourceTable]] = {
    "append": lambda graph: AppendOnlyTable(graph, SCHEMA),
    "keyed": lambda graph: KeyedTable(graph, SCHEMA, key="k"),
    "list": lambda graph: ListTable(graph, SCHEMA),
    "ring": lambda graph: RingTable(graph, SCHEMA, capacity=9),
    "blink": lambda graph: BlinkTable(graph, SCHEMA),
}


class OperatorStacks(RuleBasedStateMachine):
    """A source, a few stacks of operators on it, random edits, and a full check after every
    cycle."""

    @initialize(
        kind=st.sampled_from(sorted(SOURCES)),
        stacks=st.lists(st.lists(steps, min_size=1, max_size=4), min_size=1, max_size=3),
        first=st.lists(cells, max_size=20),
    )
    def start(self, kind: str, stacks: list[list[Step]], first: list[dict[str, Any]]) -> None:
        self.begin(kind, stacks, first)

    def begin(self, kind: str, stacks: list[list[Step]], first: list[dict[str, Any]]) -> None:
        self.kind = kind
        self.graph = UpdateGraph()
        self.source = SOURCES[kind](self.graph)
        self.next_key = 0
        self.add_rows(first)
        self.graph.run_cycle()
        self.derived: list[tuple[Table, Table, Step]] = []
        for stack in stacks:
            table: Table = self.source
            for step in stack:
                child = step.derive(table)
                self.derived.append((table, child, step))
                table = child
        # Equal operators are one table.
        derived = (child for _, child, _ in self.derived)
        self.tables = list(dict.fromkeys((self.source, *derived)))
        self.contents = {table: model.content_of(table) for table in self.tables}

    def add_rows(self, values: list[dict[str, Any]]) -> None:
        keys = list(range(self.next_key, self.next_key + len(values)))
        self.next_key += len(values)
        self.source.stage_add(table_of(keys, values))

    @rule(values=st.lists(cells, min_size=1, max_size=8))
    def add(self, values: list[dict[str, Any]]) -> None:
        self.add_rows(values)

    @precondition(lambda self: self.kind == "keyed" and self.next_key)
    @rule(data=st.data(), values=st.lists(cells, min_size=1, max_size=8))
    def upsert(self, data: st.DataObject, values: list[dict[str, Any]]) -> None:
        size = min(len(values), self.next_key)
        keys = data.draw(
            st.lists(st.integers(0, self.next_key), min_size=size, max_size=size, unique=True)
        )
        self.source.stage_upsert(table_of(keys, values[:size]))

    @precondition(lambda self: self.kind == "keyed")
    @rule(keys=st.lists(st.integers(0, 40), max_size=12))
    def remove(self, keys: list[int]) -> None:
        self.source.stage_remove(pa.table({"k": pa.array(keys, pa.int64())}))

    @precondition(lambda self: self.kind in ("keyed", "list"))
    @rule(values=st.lists(cells, max_size=8), start=st.integers(0, 30))
    def replace(self, values: list[dict[str, Any]], start: int) -> None:
        self.source.stage_replace(table_of(list(range(start, start + len(values))), values))

    @precondition(lambda self: self.kind == "list")
    @rule(data=st.data(), values=st.lists(cells, min_size=1, max_size=5))
    def insert(self, data: st.DataObject, values: list[dict[str, Any]]) -> None:
        position = data.draw(st.integers(0, self.source.staged_size))
        self.source.stage_insert(position, table_of(list(range(len(values))), values))

    @precondition(lambda self: self.kind == "list")
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        start = data.draw(st.integers(0, self.source.staged_size))
        stop = data.draw(st.integers(start, min(start + 6, self.source.staged_size)))
        self.source.stage_delete(start, stop)

    @precondition(lambda self: self.kind == "list" and self.source.staged_size)
    @rule(data=st.data(), values=st.lists(cells, min_size=1, max_size=5))
    def overwrite(self, data: st.DataObject, values: list[dict[str, Any]]) -> None:
        count = min(len(values), self.source.staged_size)
        position = data.draw(st.integers(0, self.source.staged_size - count))
        self.source.stage_overwrite(position, table_of(list(range(count)), values[:count]))

    @rule()
    def cycle(self) -> None:
        result = self.graph.run_cycle()
        assert not result.failed
        exact = {child for _, child, step in self.derived if step.is_exact}
        for table in self.tables:
            after = model.content_of(table)
            update = result.updates.get(table)
            if update is None:
                assert after == self.contents[table]
            else:
                assert update.first_step == update.last_step == result.step
                assert not update.is_empty
                model.check_update(self.contents[table], update, after)
                if table in exact:
                    model.check_exact(self.contents[table], update, after)
            self.contents[table] = after
        for parent, child, step in self.derived:
            rows, found = step.naive(model.rows_of(parent)), model.rows_of(child)
            if step.is_rounded:
                rows, found = model.rounded(rows), model.rounded(found)
            expected, actual = model.shown(rows), model.shown(found)
            if step.is_ordered:
                assert actual == expected
            else:
                assert sorted(actual) == sorted(expected)

    @invariant()
    def untouched_between_cycles(self) -> None:
        if hasattr(self, "tables"):
            for table in self.tables:
                assert table.size == len(self.contents[table])


OperatorStacks.TestCase.settings = settings(stateful_step_count=25, deadline=None)
TestOperatorStacks = OperatorStacks.TestCase


class CrowdedStacks(OperatorStacks):
    """The same with the smallest key spacing, sparse key maps, groups that are renumbered at the
    first occasion, and computed cells that are kept, so that all of it is common."""

    _SETTINGS = (
        (gaps_module, "SPACING", 2),
        (gaps_module, "WINDOW_ROWS", 1),
        (key_map_module, "DENSE_SLACK", 4),
        (grouping_module, "FREE_GROUPS_MIN", 1),
        (grouping_module, "PACKED_TOGETHER", 3),
        (select_module, "KEPT_OPERATIONS", 1),
    )

    def __init__(self) -> None:
        super().__init__()
        self._saved = [getattr(module, name) for module, name, _ in self._SETTINGS]
        for module, name, value in self._SETTINGS:
            setattr(module, name, value)

    def teardown(self) -> None:
        for (module, name, _), value in zip(self._SETTINGS, self._saved, strict=True):
            setattr(module, name, value)


CrowdedStacks.TestCase.settings = settings(stateful_step_count=25, deadline=None)
TestCrowdedStacks = CrowdedStacks.TestCase


class GroupedStacks(CrowdedStacks):
    """What groups rows, and nothing else."""

    @initialize(
        kind=st.sampled_from(["keyed", "list", *sorted(SOURCES)]),
        stacks=st.lists(
            st.lists(
                st.one_of(
                    agg_by_steps(),
                    st.booleans().flatmap(end_steps),
                    running_steps(),
                    st.builds(distinct_step),
                ),
                min_size=1,
                max_size=2,
            ),
            min_size=1,
            max_size=4,
        ),
        first=st.lists(cells, max_size=20),
    )
    def start(self, kind: str, stacks: list[list[Step]], first: list[dict[str, Any]]) -> None:
        self.begin(kind, stacks, first)

    @precondition(lambda self: self.kind in ("keyed", "list"))
    @rule(
        names=st.lists(st.sampled_from(["a", "f", "s", "d"]), min_size=1, max_size=2),
        values=st.lists(cells, min_size=1, max_size=6),
        start=st.integers(0, 20),
    )
    def rewrite(self, names: list[str], values: list[dict[str, Any]], start: int) -> None:
        """Change some columns of rows that exist, and nothing else in the cycle."""
        self.cycle()
        present = model.rows_of(self.source)
        start = min(start, max(0, len(present) - len(values)))
        rows = [
            {**row, **{name: value[name] for name in names}}
            for row, value in zip(present[start:], values, strict=False)
        ]
        if rows:
            table = table_of([row["k"] for row in rows], rows)
            if self.kind == "keyed":
                self.source.stage_upsert(table)
            else:
                self.source.stage_overwrite(start, table)
            self.cycle()


GroupedStacks.TestCase.settings = settings(stateful_step_count=25, deadline=None)
TestGroupedStacks = GroupedStacks.TestCase
