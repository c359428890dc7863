"""What Spark does with a source, as far as correctness goes: its two logs, replay, and a sink.

The query can be killed between any two steps. What survives is the offset log, the commit log and
what the sink has applied.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from spark_sink.offsets import SYMBOLIC, Offset
from spark_sink.options import Start
from spark_sink.planning import (
    BatchPlan,
    OffsetChooser,
    Piece,
    ReadLimits,
    change_pieces,
    plan_batch,
    snapshot_pieces,
)
from tests.unit.spark_sink.journal_model import Change, HistoryGoneError, JournalModel


class KilledError(Exception):
    """The driver died here."""


@dataclass
class Sink:
    """The table a query keeps, and an oracle: it refuses a feed that could not have happened.

    Batches are applied once, by number: a batch that comes again is left out or, when
    ``is_overwriting``, undone and applied anew.
    """

    is_overwriting: bool
    rows: dict[int, int] = field(default_factory=dict)
    batch: int = -1
    before: dict[int, int] = field(default_factory=dict)
    seen: set[tuple[str, int, str]] = field(default_factory=set)
    applied: int = 0

    def apply(self, number: int, epoch: str, feed: list[Change]) -> None:
        if number <= self.batch:
            if not self.is_overwriting or number < self.batch:
                return
            self.rows = dict(self.before)
        self.before = dict(self.rows)
        self.batch = number
        truncates = [change for change in feed if change[0] == "truncate"]
        assert len(truncates) <= 1
        if truncates:
            self.rows = {}
        for kind, _, row, value in sorted(
            (change for change in feed if change[0] != "truncate"), key=lambda change: change[1]
        ):
            if kind == "insert":
                assert row not in self.rows, f"row {row} comes twice"
                self.rows[row] = value
            elif kind == "delete":
                assert row in self.rows, f"row {row} is deleted, but was never there"
                assert self.rows.pop(row) == value
            else:
                assert row in self.rows, f"row {row} changes, but is not there"
                self.rows[row] = value
            self.applied += 1


class Query:
    """One query with its checkpoint. ``run_batch`` is what a trigger does."""

    def __init__(
        self,
        journal: JournalModel,
        prng: random.Random,
        *,
        start: Start,
        fails: bool,
        limits: ReadLimits,
        is_overwriting: bool = True,
    ) -> None:
        self.journal, self._prng, self._start, self._fails = journal, prng, start, fails
        self.limits = limits
        self.offsets: list[Offset] = []
        self.commits = 0
        self.sink = Sink(is_overwriting)
        self.kill_chance = 0.0
        self.between: Callable[[], None] = lambda: None
        self.restart()

    def restart(self) -> None:
        """A new driver process: everything but the logs is forgotten."""
        self.chooser = OffsetChooser(
            self.journal, table="t", start=self._start, fails_on_data_loss=self._fails
        )
        # What the watch told last may be older than what the journal has.
        self.head = self.journal.head

    def _may_die(self) -> None:
        self.between()
        if self._prng.random() < self.kill_chance:
            raise KilledError

    def run_batch(self) -> bool:
        """One trigger; False when there was nothing to do."""
        if len(self.offsets) == self.commits:
            if not self.kill_chance or self._prng.random() < 0.8:
                self.head = self.journal.head
            begin = self.offsets[-1] if self.offsets else SYMBOLIC
            end = self.chooser.next_offset(begin, self.head, self.limits)
            assert end == Offset.of(end.as_json())
            if end == begin:
                return False
            self._may_die()
            self.offsets.append(end)
        self._may_die()
        self._do_batch(len(self.offsets) - 1)
        self._may_die()
        self.commits += 1
        return True

    def _do_batch(self, number: int) -> None:
        begin = self.offsets[number - 1] if number else SYMBOLIC
        end = self.offsets[number]
        plan = plan_batch(
            begin, end, self.journal.facts(), table="t", fails_on_data_loss=self._fails
        )
        feed: list[Change] = []
        for piece in self._pieces(plan):
            self._may_die()
            if piece.truncate_at is not None:
                feed.append(("truncate", piece.truncate_at, -1, 0))
                continue
            try:
                assert piece.ticket is not None
                feed += self.journal.fetch(piece.ticket)
            except HistoryGoneError as error:
                if not error.is_epoch or self._fails:
                    raise
        self.sink.apply(number, end.epoch, feed)

    def _pieces(self, plan: BatchPlan) -> list[Piece]:
        pieces: list[Piece] = []
        tasks = self._prng.randrange(1, 4)
        if plan.truncate_at is not None:
            pieces.append(Piece(epoch=plan.epoch, truncate_at=plan.truncate_at))
        if plan.snapshot_of is not None:
            cuts = self.journal.id_bounds(plan.epoch, plan.snapshot_of, tasks)
            pieces += snapshot_pieces(
                "t", plan.epoch, plan.snapshot_of, ids=plan.ids, cuts=cuts, form={}
            )
        if plan.changes is not None:
            after, upto = plan.changes
            pieces += change_pieces("t", plan.epoch, after=after, upto=upto, tasks=tasks, form={})
        self._prng.shuffle(pieces)
        return pieces

    def run_until_idle(self, limit: int = 2000) -> None:
        for _ in range(limit):
            if not self.run_batch():
                return
        raise AssertionError("the query never becomes idle")
