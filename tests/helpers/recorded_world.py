"""Recorded sources with views of them, and everything that was ever there: what a journal knows,
without a journal."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from barrage.engine import KeyedTable, SourceTable, Table, UpdateGraph
from barrage.engine.operators import derive
from barrage.engine.operators.convert import ColumnConversion, convert
from barrage.engine.operators.row_numbers import numbered
from barrage.engine.resume.replay import RecordedEntry
from barrage.engine.resume.resume import SourceHistory
from tests.helpers.source_edits import SCHEMA, Edits, source_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from barrage.model.update import TableUpdate
    from barrage.rowset import RowSet


def _converted(table: Table) -> Table:
    schema = SCHEMA.set(1, pa.field("a", pa.string()))
    turned = ColumnConversion(apply=lambda cells: pc.cast(cells, pa.string()), may_fail=True)
    return convert(table, schema, "as text", conversions={1: turned})


VIEWS: dict[str, Callable[[Table, Table], Table]] = {
    "source": lambda table, _: table,
    "where": lambda table, _: derive.where(table, "a > 1"),
    "select": lambda table, _: derive.select(table, "k", "s", twice="a * 2"),
    "sort": lambda table, _: derive.sort(table, "s", "-a"),
    "sorted where": lambda table, _: derive.sort(derive.where(table, "a < 3"), "a"),
    "sorted head": lambda table, _: derive.head(derive.sort(table, "-s"), 5),
    "tail": lambda table, _: derive.tail(table, 4),
    "slice": lambda table, _: derive.slice(table, 2, -1),
    "flat": lambda table, _: derive.flatten(derive.where(table, "a != 2")),
    "head by": lambda table, _: derive.head_by(table, 2, "a"),
    "tail by": lambda table, _: derive.tail_by(table, 2, "s", "d"),
    "running": lambda table, _: derive.update_by(table, "a", total="cum_sum(k)"),
    "convert": lambda table, _: _converted(table),
    "join": lambda table, other: derive.natural_join(table, other, ["k"], ["b=a", "t=s"]),
    "sorted join": lambda table, other: derive.sort(
        derive.natural_join(table, other, ["k"], ["b=a"]), "b", "k"
    ),
    "merge": lambda table, other: derive.merge(
        table, derive.where(other, "a > 1"), derive.tail(table, 2)
    ),
}

GROWING_VIEWS: dict[str, Callable[[Table, Table], Table]] = {
    "numbered": lambda table, _: numbered(table, {"n": pa.int64()}),
    "distinct": lambda table, _: derive.select_distinct(table, "a", "s", "d"),
    "last": lambda table, _: derive.last_by(table, "a", "d"),
}
"""Views that can only be followed, or resumed, where rows are only ever added."""


@dataclass(frozen=True)
class State:
    """The rows of a source."""

    keys: RowSet
    rows: pa.Table


class RecordedWorld:
    """Two sources, each change of them, and each state."""

    def __init__(self, kind: str, draw: Random) -> None:
        self.draw = draw
        self.graph = UpdateGraph(first_step=draw.choice([0, 1000]))
        self.table = source_of(kind, self.graph)
        self.other = KeyedTable(self.graph, SCHEMA, key="k")
        self.sources: tuple[SourceTable, ...] = (self.table, self.other)
        self._edits = (Edits(kind, draw), Edits("keyed", draw))
        self.states: dict[int, dict[SourceTable, State]] = {}
        self.entries: list[tuple[int, SourceTable, RecordedEntry]] = []
        for source in self.sources:
            source.start_recording()
        self._remember()

    def cycle(self) -> dict[Table, TableUpdate]:
        """A cycle with some edits, or none."""
        for source, edits in zip(self.sources, self._edits, strict=True):
            if self.draw.random() < 0.7:
                edits.stage(source)
        result = self.graph.run_cycle()
        assert not result.failed
        for source in self.sources:
            change = source.take_change()
            if change is not None:
                entry = RecordedEntry(update=change.update, added=change.added, after=change.after)
                self.entries.append((result.step, source, entry))
        self._remember()
        return dict(result.updates)

    def _remember(self) -> None:
        self.states[self.graph.step] = {
            source: State(source.row_keys, source.to_arrow()) for source in self.sources
        }

    def entries_of(self, source: SourceTable, after: int, upto: int) -> list[RecordedEntry]:
        return [
            entry for step, owner, entry in self.entries if owner is source and after < step <= upto
        ]

    def histories(self, version: int, upto: int) -> dict[SourceTable, SourceHistory]:
        """What a journal would give for a version."""
        return {
            source: SourceHistory(
                state=self.states[version][source],
                entries=self.entries_of(source, version, upto),
            )
            for source in self.sources
        }
