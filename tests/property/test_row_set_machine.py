"""A row set that lives through many changes, against a sorted list."""

from __future__ import annotations

import bisect

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from barrage.rowset import RowSet

keys = st.integers(0, 80)


class RowSetMachine(RuleBasedStateMachine):
    """Rules change both; old versions must stay what they were."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = RowSet.empty()
        self.model: list[int] = []
        self.versions: list[tuple[RowSet, list[int]]] = []

    def become(self, rows: RowSet, model: set[int]) -> None:
        self.versions = [*self.versions[-4:], (self.rows, self.model)]
        self.rows, self.model = rows, sorted(model)

    @rule(first=keys, count=st.integers(1, 20))
    def add_range(self, first: int, count: int) -> None:
        added = RowSet.of_span(first, first + count)
        self.become(self.rows | added, {*self.model, *range(first, first + count)})

    @rule(chosen=st.sets(keys, max_size=10))
    def remove_keys(self, chosen: set[int]) -> None:
        self.become(self.rows - RowSet(chosen), set(self.model) - chosen)

    @rule(gap=st.integers(1, 3), count=st.integers(1, 5))
    def append(self, gap: int, count: int) -> None:
        start = (self.model[-1] if self.model else 0) + gap
        self.become(
            self.rows | RowSet.of_span(start, start + count),
            {*self.model, *range(start, start + count)},
        )

    @rule(chosen=st.sets(keys, max_size=40))
    def keep_only(self, chosen: set[int]) -> None:
        self.become(self.rows & RowSet(chosen), set(self.model) & chosen)

    @rule(chosen=st.sets(keys, max_size=10))
    def toggle(self, chosen: set[int]) -> None:
        self.become(self.rows ^ RowSet(chosen), set(self.model) ^ chosen)

    @rule(start=keys, stop=keys)
    def take_slice(self, start: int, stop: int) -> None:
        assert list(self.rows.slice(start, stop)) == self.model[start:stop]

    @rule(key=keys)
    def rank(self, key: int) -> None:
        assert self.rows.rank(key) == bisect.bisect_left(self.model, key)

    @invariant()
    def agrees(self) -> None:
        assert self.rows.to_numpy().tolist() == self.model
        assert [self.rows.select(position) for position in range(len(self.model))] == self.model
        for rows, model in self.versions:
            assert list(rows) == model


TestRowSetMachine = RowSetMachine.TestCase
