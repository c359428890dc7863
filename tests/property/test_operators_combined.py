"""Tables made of several tables, checked against whole-table recomputation each cycle: joins,
merges and diamonds over two random sources, with stacks of other operators below and above them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from barrage.engine import SourceTable, Table, UpdateGraph
from barrage.engine.aggregation import grouping as grouping_module
from barrage.engine.keys import gaps as gaps_module
from barrage.engine.keys import key_map as key_map_module
from barrage.engine.operators import derive
from barrage.engine.operators import merge as merge_module
from barrage.engine.operators import natural_join as natural_join_module
from barrage.errors import RowError, TableFailedError
from tests.helpers import model
from tests.property.test_operators_stacks import (
    SCHEMA,
    SOURCES,
    Step,
    cells,
    last_by_step,
    steps,
    table_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

Pairs = list[tuple[str, str]]

stacks = st.lists(steps, max_size=2)

KEYS: list[Pairs] = [
    [("k", "k")],
    [("a", "a")],
    [("s", "s"), ("a", "a")],
    [("s", "d")],
    [("d", "s")],
    [("f", "f")],
    [("d", "d"), ("k", "k")],
    [("k", "k"), ("a", "a")],
]
ADDED: list[Pairs] = [
    [("rk", "k"), ("rf", "f")],
    [("rs", "s"), ("rd", "d"), ("ra", "a")],
    [(f"r{name}", name) for name in SCHEMA.names],
    [("rf", "f")],
]


def names_of(pairs: Pairs) -> list[str]:
    return [left if left == right else f"{left}={right}" for left, right in pairs]


@dataclass(frozen=True)
class Join:
    """``left`` and ``right`` choose among the tables there are; ``is_unique`` sees to it that the
    right side has one row per key."""

    left: int
    right: int
    on: Pairs
    add: Pairs
    is_unique: bool
    above: list[Step]


@dataclass(frozen=True)
class Merge:
    members: list[int]
    above: list[Step]


joins = st.builds(
    Join,
    left=st.integers(0, 9),
    right=st.integers(0, 9),
    on=st.sampled_from(KEYS),
    add=st.sampled_from(ADDED),
    is_unique=st.booleans(),
    above=stacks,
)
merges = st.builds(Merge, members=st.lists(st.integers(0, 9), min_size=2, max_size=4), above=stacks)


class CombinedTables(RuleBasedStateMachine):
    """Two sources with a stack each, combinations of what there is, random edits, full checks."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = pytest.MonkeyPatch()
        self.patches.setattr(merge_module, "ROOM_MIN", 4)
        self.patches.setattr(natural_join_module, "FREE_NUMBERS_MIN", 0)
        self.patches.setattr(natural_join_module, "PACKED_TOGETHER", 3)
        self.patches.setattr(grouping_module, "FREE_GROUPS_MIN", 1)
        self.patches.setattr(grouping_module, "PACKED_TOGETHER", 3)

    def teardown(self) -> None:
        self.patches.undo()

    @initialize(
        kinds=st.tuples(st.sampled_from(sorted(SOURCES)), st.sampled_from(sorted(SOURCES))),
        below=st.tuples(stacks, stacks),
        combinations=st.lists(st.one_of(joins, merges), min_size=1, max_size=3),
        first=st.tuples(st.lists(cells, max_size=12), st.lists(cells, max_size=12)),
    )
    def start(
        self,
        kinds: tuple[str, str],
        below: tuple[list[Step], list[Step]],
        combinations: list[Join | Merge],
        first: tuple[list[dict[str, Any]], list[dict[str, Any]]],
    ) -> None:
        self.graph = UpdateGraph()
        self.kinds = kinds
        self.sources = [SOURCES[kind](self.graph) for kind in kinds]
        self.next_keys = [0, 0]
        for side in (0, 1):
            self.add_rows(side, first[side])
        self.graph.run_cycle()
        self.checks: list[tuple[Table, Any, Step | None]] = []
        """A table, how to compute its rows from those of its parents, and the step it is made by:
        combinations show exactly those rows in that order."""
        self.tables: list[Table] = []
        for source, stack in zip(self.sources, below, strict=True):
            self.tables.append(source)
            self.put_above(source, stack)
        plain = [table for table in self.tables if table.schema.names == SCHEMA.names]
        for combination in combinations:
            if isinstance(combination, Join):
                self.join(combination, plain)
            else:
                self.merge(combination, plain)
        self.tables = list(dict.fromkeys(self.tables))
        self.contents = {table: model.content_of(table) for table in self.tables}
        self.check_rows()

    def put_above(self, table: Table, stack: Sequence[Step]) -> None:
        for step in stack:
            child = step.derive(table)
            if child is table:
                # Flattening a flat table gives that table.
                continue
            self.add(child, lambda t=table, s=step: s.naive(model.rows_of(t)), step)
            table = child

    def add(self, table: Table, naive: Any, step: Step | None = None) -> None:
        self.tables.append(table)
        self.checks.append((table, naive, step))

    def join(self, join: Join, plain: Sequence[Table]) -> None:
        left, right = plain[join.left % len(plain)], plain[join.right % len(plain)]
        if join.is_unique:
            step = last_by_step([name for _, name in join.on])
            self.put_above(right, [step])
            unique = step.derive(right)
        else:
            unique = right

        def naive() -> list[model.Row] | None:
            return model.join_rows(model.rows_of(left), model.rows_of(unique), join.on, join.add)

        if naive() is None:
            with pytest.raises(RowError, match="occurs twice on the right side"):
                derive.natural_join(left, unique, names_of(join.on), names_of(join.add))
            return
        joined = derive.natural_join(left, unique, names_of(join.on), names_of(join.add))
        self.add(joined, naive)
        self.put_above(joined, join.above)

    def merge(self, merge: Merge, plain: Sequence[Table]) -> None:
        members = [plain[number % len(plain)] for number in merge.members]
        merged = derive.merge(members[0], *members[1:])
        self.add(merged, lambda: [row for table in members for row in model.rows_of(table)])
        self.put_above(merged, merge.above)

    def add_rows(self, side: int, values: list[dict[str, Any]]) -> None:
        start = self.next_keys[side]
        self.next_keys[side] += len(values)
        self.sources[side].stage_add(table_of(list(range(start, start + len(values))), values))

    @rule(side=st.integers(0, 1), values=st.lists(cells, min_size=1, max_size=8))
    def append(self, side: int, values: list[dict[str, Any]]) -> None:
        self.add_rows(side, values)

    @rule(side=st.integers(0, 1), data=st.data(), values=st.lists(cells, min_size=1, max_size=6))
    def edit(self, side: int, data: st.DataObject, values: list[dict[str, Any]]) -> None:
        source: Any = self.sources[side]
        if self.kinds[side] == "keyed":
            self.edit_keyed(source, data, values)
        elif self.kinds[side] == "list":
            self.edit_list(source, data, values)

    def edit_keyed(
        self, source: SourceTable, data: st.DataObject, values: list[dict[str, Any]]
    ) -> None:
        count = len(values)
        keys = data.draw(st.lists(st.integers(0, 15), min_size=count, max_size=count, unique=True))
        match data.draw(st.sampled_from(["upsert", "remove", "replace"])):
            case "upsert":
                source.stage_upsert(table_of(keys, values))
            case "remove":
                source.stage_remove(pa.table({"k": pa.array(keys, pa.int64())}))
            case _:
                source.stage_replace(table_of(keys, values))

    def edit_list(self, source: Any, data: st.DataObject, values: list[dict[str, Any]]) -> None:
        count = len(values)
        size = source.staged_size
        position = data.draw(st.integers(0, size))
        rows = table_of(data.draw(st.permutations(range(count))), values)
        match data.draw(st.sampled_from(["insert", "delete", "overwrite"])):
            case "insert":
                source.stage_insert(position, rows)
            case "delete":
                source.stage_delete(position, min(size, position + count))
            case _:
                source.stage_overwrite(position, rows.slice(0, size - position))

    @rule()
    def cycle(self) -> None:
        result = self.graph.run_cycle()
        self.check_failures(result.failed)
        for table in self.tables:
            after = model.content_of(table)
            update = result.updates.get(table)
            if update is None:
                assert after == self.contents[table]
            else:
                assert update.first_step == update.last_step == result.step
                assert not update.is_empty
                model.check_update(self.contents[table], update, after)
            self.contents[table] = after
        self.check_rows()

    def check_failures(self, failed: Any) -> None:
        """Only joins with two right rows for one key fail, and what depends on them."""
        for table, naive, _ in self.checks:
            if isinstance(failed.get(table), RowError):
                assert naive() is None
            elif table in failed:
                assert isinstance(failed[table], TableFailedError)
                assert any(parent in failed for parent in table.parents)
        self.tables = [table for table in self.tables if table not in failed]
        self.checks = [check for check in self.checks if check[0] not in failed]

    def check_rows(self) -> None:
        for table, naive, step in self.checks:
            rows, found = naive(), model.rows_of(table)
            if step is not None and step.is_rounded:
                rows, found = model.rounded(rows), model.rounded(found)
            expected, actual = model.shown(rows), model.shown(found)
            if step is None or step.is_ordered:
                assert actual == expected
            else:
                assert sorted(actual) == sorted(expected)


CombinedTables.TestCase.settings = settings(stateful_step_count=25, deadline=None)
TestCombinedTables = CombinedTables.TestCase


class CrowdedCombinedTables(CombinedTables):
    """The same with the smallest key spacing, so that parents shift their rows often, and sparse
    key maps."""

    def __init__(self) -> None:
        super().__init__()
        self.patches.setattr(gaps_module, "SPACING", 2)
        self.patches.setattr(gaps_module, "WINDOW_ROWS", 1)
        self.patches.setattr(key_map_module, "DENSE_SLACK", 4)


CrowdedCombinedTables.TestCase.settings = settings(stateful_step_count=25, deadline=None)
TestCrowdedCombinedTables = CrowdedCombinedTables.TestCase
