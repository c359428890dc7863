"""The update graph: which tables exist, and one cycle that moves all of them to the next step
together.

A cycle first commits what was staged in the sources, then lets every operator below a changed table
compute its own update from its parent's. Each operator has exactly one parent, so parents always
come first in a plain walk down the tree. A table that fails takes its dependents with it and
nothing else.

Tables are held weakly: a table lives as long as somebody (a user, a dependent table, a producer)
refers to it.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING

from barrage.errors import BarrageError, TableFailedError
from barrage.limits import DEFAULT_LIMITS, Limits

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from barrage.engine.source import SourceTable
    from barrage.engine.table import DerivedTable, Table
    from barrage.model.update import TableUpdate


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleResult:
    """What one cycle did: only tables that changed, and tables that failed in this very cycle."""

    step: int
    updates: Mapping[Table, TableUpdate]
    failed: Mapping[Table, BarrageError]


class UpdateGraph:
    """Owns the step number and knows the sources. Not thread-safe: one thread runs the engine."""

    def __init__(self, limits: Limits = DEFAULT_LIMITS) -> None:
        self.limits = limits
        self._step = 0
        self._sources: dict[int, weakref.ref[SourceTable]] = {}
        self._serial_next = 0

    @property
    def step(self) -> int:
        """Number of the last cycle; 0 before the first."""
        return self._step

    @property
    def has_pending(self) -> bool:
        """Whether the next cycle has anything to do."""
        return any(source.has_pending for source in self._live_sources())

    def add_source(self, source: SourceTable) -> None:
        """Called by a source when it is made."""
        serial = self._serial_next
        self._serial_next += 1
        self._sources[serial] = weakref.ref(source, lambda _: self._sources.pop(serial, None))

    def _live_sources(self) -> list[SourceTable]:
        """Sources in the order they were made, so that equal runs give equal results."""
        found = (reference() for reference in list(self._sources.values()))
        return [source for source in found if source is not None]

    def run_cycle(self) -> CycleResult:
        """Commit everything staged and bring every dependent table up to date."""
        self._step += 1
        step = self._step
        cycle = _Cycle(step)
        for source in self._live_sources():
            if source.has_pending:
                cycle.run(source, source.commit)
        return CycleResult(step=step, updates=cycle.updates, failed=cycle.failed)


class _Cycle:
    """The working state of one cycle."""

    def __init__(self, step: int) -> None:
        self.step = step
        self.updates: dict[Table, TableUpdate] = {}
        self.failed: dict[Table, BarrageError] = {}

    def run(self, source: SourceTable, commit: Callable[[int], TableUpdate]) -> None:
        self._advance(source, lambda: commit(self.step))
        waiting: list[tuple[DerivedTable, Table]] = [
            (child, source) for child in source.live_children()
        ]
        while waiting:
            child, parent = waiting.pop()
            if parent in self.failed:
                self._fail(child, _dependent_failure(self.failed[parent]))
            elif parent in self.updates and child.failure is None:
                update = self.updates[parent]
                self._advance(child, lambda c=child, u=update: c.advance(u))  # type: ignore[misc]
            else:
                continue
            waiting.extend((grandchild, child) for grandchild in child.live_children())

    def _advance(self, table: Table, compute: Callable[[], TableUpdate]) -> None:
        try:
            update = compute()
        except BarrageError as error:
            self._fail(table, error)
        except Exception as error:  # One bad operator must not stop the other tables.
            failure = TableFailedError(f"step {self.step}: {type(error).__name__}: {error}")
            failure.__cause__ = error
            self._fail(table, failure)
        else:
            if not update.is_empty:
                self.updates[table] = update

    def _fail(self, table: Table, error: BarrageError) -> None:
        if table.failure is None:
            table.fail(error)
            self.failed[table] = error


def _dependent_failure(error: BarrageError) -> BarrageError:
    """What a dependent of a failed table reports; keeps the first cause instead of nesting it."""
    if isinstance(error, TableFailedError) and error.args[0].startswith(_DEPENDENT_PREFIX):
        return error
    failure = TableFailedError(f"{_DEPENDENT_PREFIX}{error}")
    failure.__cause__ = error
    return failure


_DEPENDENT_PREFIX = "a table this one derives from failed: "
