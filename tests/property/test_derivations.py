"""Operators made beside the engine, upon tables that change meanwhile: they must show and tell what
operators made on the engine thread do. The machines of the operators run with every operator made
that way; the two sides take turns by hand."""

from __future__ import annotations

import random
import weakref
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, run_state_machine_as_test

from barrage.engine.operators.sort import SortTable
from barrage.engine.operators.sort_order import SortOrder
from barrage.engine.planning.derivation import Derivation
from barrage.engine.planning.operator_plan import OperatorPlan
from barrage.engine.tables.table import DerivedTable, Table
from barrage.errors import BarrageError
from barrage.limits import DEFAULT_LIMITS
from tests.property.test_operators_combined import CombinedTables, Join, Merge, joins, merges
from tests.property.test_operators_combined import stacks as short_stacks
from tests.property.test_operators_stacks import (
    SOURCES,
    CrowdedStacks,
    OperatorStacks,
    Step,
    cells,
    sort_step,
    steps,
    table_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from barrage.engine import SourceTable
    from barrage.model.update import TableUpdate

KINDS = sorted(set(SOURCES) - {"blink"})
"""Rows of a blink table are new in every cycle, so there is nothing to follow."""

STRICT = replace(DEFAULT_LIMITS, turn_work_max=0)
"""An operator joins only when nothing at all has changed."""


def edit(source: SourceTable, kind: str, chance: random.Random) -> None:
    """Stage something."""
    values = [
        {
            "a": chance.choice([None, 1, 2, 3]),
            "f": chance.choice([None, 0.0, 1.5]),
            "s": chance.choice([None, "", "x"]),
            "d": chance.choice([None, "u", "v"]),
        }
        for _ in range(chance.randint(1, 4))
    ]
    keys = chance.sample(range(40), len(values))
    rows = table_of(keys, values)
    if kind == "keyed" and chance.random() < 0.4:
        source.stage_remove(pa.table({"k": pa.array(keys, pa.int64())}))
    elif kind == "list" and chance.random() < 0.7:
        size = source.staged_size  # type: ignore[attr-defined]
        position = chance.randint(0, size)
        if chance.random() < 0.5:
            source.stage_delete(position, min(size, position + 2))
        else:
            source.stage_insert(position, rows)
    else:
        source.stage_add(rows)


class MadeBeside:
    """Makes every operator of a test beside, with ``disturb`` between any two steps."""

    def __init__(self, disturb: Callable[[], None], chance: random.Random) -> None:
        self.disturb = disturb
        self.chance = chance
        self.rounds = 0
        self.joined = 0

    def derive(self, plan: OperatorPlan) -> DerivedTable:
        plan = replace(plan, price=replace(plan.price, per_row=plan.price.per_row or 1))
        derivation = Derivation(plan, STRICT)
        try:
            made = self.made(derivation)
            stand_ins = [weakref.ref(each) for each in derivation._stand_ins]
        finally:
            derivation.close()
        assert all(parent.trails == [] for parent in plan.parents)
        assert [each() for each in stand_ins] == [None] * len(stand_ins)
        assert made.parents == plan.parents
        assert plan.existing() is made
        self.joined += 1
        return made

    def made(self, derivation: Derivation) -> DerivedTable:
        """All steps, with some rounds more than are needed."""
        derivation.begin()
        self.disturb()
        derivation.make()
        for _ in range(self.chance.randint(0, 3)):
            self.disturb()
            found = derivation.meet()
            if found is not None:
                return found
            self.disturb()
            derivation.follow()
            self.rounds += 1
        self.disturb()
        derivation._limits = DEFAULT_LIMITS
        found = derivation.meet()
        assert found is not None
        return found


def patched(patches: pytest.MonkeyPatch, maker: MadeBeside) -> None:
    patches.setattr(OperatorPlan, "made", lambda plan: maker.derive(plan))


class StacksBeside(OperatorStacks):
    """Stacks of operators made beside."""

    @initialize(
        kind=st.sampled_from(KINDS),
        stacks=st.lists(st.lists(steps, min_size=1, max_size=4), min_size=1, max_size=3),
        first=st.lists(cells, max_size=20),
        seed=st.integers(0, 2**32),
    )
    def start(  # type: ignore[override]
        self, kind: str, stacks: list[list[Step]], first: list[dict[str, Any]], seed: int
    ) -> None:
        chance = random.Random(seed)

        def disturb() -> None:
            if chance.random() < 0.7:
                edit(self.source, kind, chance)
                assert not self.graph.run_cycle().failed

        with pytest.MonkeyPatch.context() as patches:
            patched(patches, MadeBeside(disturb, chance))
            self.begin(kind, stacks, first)
        # The kind may be one whose keys the disturbance has used.
        self.next_key = 41 if kind == "keyed" else self.next_key


StacksBeside.TestCase.settings = settings(stateful_step_count=15, deadline=None)
TestStacksBeside = StacksBeside.TestCase


class CrowdedStacksBeside(StacksBeside, CrowdedStacks):
    """The same where keys are spread out again and groups renumbered at the first occasion."""


CrowdedStacksBeside.TestCase.settings = settings(stateful_step_count=15, deadline=None)
TestCrowdedStacksBeside = CrowdedStacksBeside.TestCase


class CombinedBeside(CombinedTables):
    """Joins and merges made beside."""

    @initialize(
        kinds=st.tuples(st.sampled_from(KINDS), st.sampled_from(KINDS)),
        below=st.tuples(short_stacks, short_stacks),
        combinations=st.lists(st.one_of(joins, merges), min_size=1, max_size=3),
        first=st.tuples(st.lists(cells, max_size=12), st.lists(cells, max_size=12)),
        seed=st.integers(0, 2**32),
    )
    def start(  # type: ignore[override]
        self,
        kinds: tuple[str, str],
        below: tuple[list[Step], list[Step]],
        combinations: list[Join | Merge],
        first: tuple[list[dict[str, Any]], list[dict[str, Any]]],
        seed: int,
    ) -> None:
        chance = random.Random(seed)
        self.is_disturbed = True

        def disturb() -> None:
            if self.is_disturbed and chance.random() < 0.7:
                side = chance.randint(0, 1)
                edit(self.sources[side], kinds[side], chance)
                self.check_failures(self.graph.run_cycle().failed)

        with pytest.MonkeyPatch.context() as patches:
            patched(patches, MadeBeside(disturb, chance))
            super().start(kinds, below, combinations, first)

    def join(self, join: Join, plain: Sequence[Table]) -> None:
        """Whether the right side has one row per key must not change on the way; and a table that
        has failed meanwhile has no operators."""
        self.is_disturbed = join.is_unique
        if not any(table.failure for table in plain):
            super().join(join, plain)
        self.is_disturbed = True

    def merge(self, merge: Merge, plain: Sequence[Table]) -> None:
        if not any(table.failure for table in plain):
            super().merge(merge, plain)


CombinedBeside.TestCase.settings = settings(stateful_step_count=15, deadline=None)
TestCombinedBeside = CombinedBeside.TestCase


# --- canaries -------------------------------------------------------------------------------------


def forget_what_changed() -> AbstractContextManager[object]:
    """An operator joins the graph as it was made, whatever has changed since."""

    def nothing(_: Derivation, updates: Sequence[TableUpdate | None]) -> list[TableUpdate]:
        return []

    def stay(table: Table, updates: Sequence[TableUpdate]) -> TableUpdate | None:
        return advance_all(table, updates) if updates else None

    advance_all = SortTable.advance_all
    patches = ExitStack()
    patches.enter_context(mock.patch.object(Derivation, "_aligned", nothing))
    patches.enter_context(mock.patch.object(SortTable, "advance_all", stay))
    return patches


def read_what_is_not_pinned() -> AbstractContextManager[object]:
    """Operators are made upon the tables themselves, which change meanwhile."""
    return mock.patch.object(Table, "pinned", lambda table, known=None: table)


def keep_the_stand_ins() -> AbstractContextManager[object]:
    """An operator that has joined goes on reading what its parents were."""
    return mock.patch.object(SortOrder, "parent", property(_first, _set_first), create=True)


def _first(order: SortOrder) -> Table:
    return order.__dict__["first"]  # type: ignore[no-any-return]


def _set_first(order: SortOrder, parent: Table) -> None:
    order.__dict__.setdefault("first", parent)


class SortsBeside(StacksBeside):
    """Sorts only, so that a fault in how they are made shows soon."""

    @initialize(
        kind=st.sampled_from(["keyed", "list"]),
        first=st.lists(cells, min_size=2, max_size=20),
        seed=st.integers(0, 2**32),
    )
    def start(self, kind: str, first: list[dict[str, Any]], seed: int) -> None:  # type: ignore[override]
        sorting = sort_step([("a", False, False)])
        super().start(kind, [[sorting]], first, seed)


SEEDED = settings(
    max_examples=100,
    stateful_step_count=10,
    deadline=None,
    database=None,
    derandomize=True,
    phases=[Phase.generate],
)


@pytest.mark.parametrize(
    "canary", [forget_what_changed, read_what_is_not_pinned, keep_the_stand_ins]
)
def test_canaries(canary: Callable[[], AbstractContextManager[object]]) -> None:
    """Each of these faults is found."""
    with canary(), pytest.raises((AssertionError, BarrageError, IndexError, ValueError)):
        run_state_machine_as_test(SortsBeside, settings=SEEDED)


@pytest.mark.further
def test_nothing_is_found_without_a_fault() -> None:
    run_state_machine_as_test(SortsBeside, settings=SEEDED)
