"""Which rows a micro-batch has: the rules by which no row comes twice and none is missing.

Pure: no Spark, no clock, no calls but those of :class:`Journal`, so that tests can drive them
through crashes, cut journals and new epochs. What makes them right is that everything a batch
depends on is in the two offsets of Spark's log and in the journal, whose entries never change:

* ``sync`` in the offsets says whether the rows between them are changes or a new snapshot, so a
  replay knows what the first run did;
* a place that the journal no longer reaches is found again by whoever looks next, so nothing has
  to be remembered about it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol

from barrage.errors import HistoryLostError
from spark_sink.offsets import COMPLETE, Offset

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spark_sink.options import Start

ROWS_SMALL = 20_000
"""Below this a batch is one task: a second one costs more than it saves."""

ROWS_PER_PARTITION = 250_000
"""Rows from which another task is worth its start."""

APPENDED_KINDS = ("append_only", "static", "blink")
"""Kinds of tables whose changes are all inserts."""

ID_END = 2**63 - 1
"""After the last row id."""


@dataclass(frozen=True, slots=True)
class Head:
    """The newest state a journal offers."""

    epoch: str
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a journal can serve now: states of ``earliest`` to ``version``, changes after
    ``earliest``."""

    epoch: str
    version: int
    earliest: int

    def serves(self, offset: Offset) -> bool:
        """Whether the state at this offset can still be had."""
        return offset.epoch == self.epoch and self.earliest <= offset.version <= self.version


@dataclass(frozen=True, slots=True)
class Amount:
    """How much there is to read."""

    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Bound:
    """A version up to which changes fit a limit, and how much those are."""

    version: int
    rows: int
    bytes: int


class Journal(Protocol):
    """What the rules ask a journal. Calls may raise, which fails the batch and changes nothing."""

    def facts(self) -> Facts:
        """What it can serve now."""

    def bound(
        self, epoch: str, after: int, cap: int, *, rows_max: int | None, bytes_max: int | None
    ) -> Bound:
        """The highest version <= cap whose changes after ``after`` fit; at least one version."""

    def amount(self, epoch: str, version: int) -> Amount:
        """The size of the state at a version."""

    def id_bounds(self, epoch: str, version: int, parts: int) -> Sequence[int]:
        """Up to ``parts - 1`` ascending row ids that cut the state at a version into equal
        parts."""

    def version_before(self, time_us: int) -> int:
        """The last version committed before a time, or one below ``earliest`` when the journal
        does not reach so far back."""


class DataLossError(HistoryLostError):
    """What the query has not read yet is no longer there; names the option that goes on."""


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """How much a batch may have; None: no limit."""

    rows_max: int | None = None
    bytes_max: int | None = None

    @property
    def is_none(self) -> bool:
        return self.rows_max is None and self.bytes_max is None


NO_LIMITS = ReadLimits()


class OffsetChooser:
    """Chooses the end of the next batch. Keeps nothing that a restart would miss: only the target
    of an AvailableNow run, which ends with it."""

    def __init__(
        self, journal: Journal, *, table: str, start: Start, fails_on_data_loss: bool
    ) -> None:
        self._journal = journal
        self._table = table
        self._start = start
        self._fails = fails_on_data_loss
        self._target: Head | None = None

    def note_target(self, head: Head) -> None:
        """Nothing after ``head`` is offered from now on."""
        self._target = head

    @property
    def has_target(self) -> bool:
        return self._target is not None

    def is_idle(self, start: Offset, head: Head) -> bool:
        """Whether there is surely nothing after ``start``; asks nobody."""
        return (
            start.row == COMPLETE
            and start.epoch == head.epoch
            and start.version == self._capped(head).version
        )

    def next_offset(self, start: Offset, head: Head, limits: ReadLimits) -> Offset:
        """The end of the next batch; ``start`` when there is nothing new. ``head`` is what the
        watch last told. :class:`DataLossError` when history is lost and that is to be an error."""
        if self.is_idle(start, head):
            return start
        facts = self._journal.facts()
        if facts.epoch != head.epoch or facts.version < head.version:
            # The watch has not noticed yet that the table begins anew.
            head = Head(facts.epoch, facts.version)
        head = self._capped(head)
        if start.is_symbolic and self._start.word != "snapshot":
            resolved = self._resolved(facts, head)
            if resolved is not None:
                return resolved
            return self._resynced(start, facts, head, limits=limits)
        if start.is_symbolic:
            return self._resynced(start, facts, head, limits=limits)
        if not facts.serves(start):
            if self._fails:
                raise self.lost(start, facts)
            return self._resynced(start, facts, head, limits=limits)
        if start.row != COMPLETE:
            row = self._chunk_end(start.epoch, start.version, start.row, limits=limits)
            return Offset(start.epoch, start.version, row, start.sync)
        return self._changes_end(start, head, limits)

    def _changes_end(self, start: Offset, head: Head, limits: ReadLimits) -> Offset:
        version = head.version
        if version <= start.version:
            return start
        if not limits.is_none:
            bound = self._journal.bound(
                start.epoch,
                start.version,
                version,
                rows_max=limits.rows_max,
                bytes_max=limits.bytes_max,
            )
            version = min(bound.version, version)
        return Offset(start.epoch, max(version, start.version), COMPLETE, start.sync)

    def _capped(self, head: Head) -> Head:
        target = self._target
        if target is None:
            return head
        if target.epoch != head.epoch:
            # The state that was the target is gone; the first one seen of the new epoch takes its
            # place, or the run would never end.
            self._target = head
            return head
        return Head(head.epoch, min(head.version, target.version))

    def _resynced(self, start: Offset, facts: Facts, head: Head, *, limits: ReadLimits) -> Offset:
        version = head.version
        if version < facts.earliest:  # The target of the run was forgotten before it was reached.
            version = facts.version
            self._target = None if self._target is None else Head(facts.epoch, version)
        row = self._chunk_end(facts.epoch, version, 0, limits=limits)
        return Offset(facts.epoch, version, row, start.sync + 1)

    def _chunk_end(self, epoch: str, version: int, done: int, *, limits: ReadLimits) -> int:
        """The id at which the next piece of a snapshot ends; COMPLETE when it is the last."""
        if limits.is_none:
            return COMPLETE
        amount = self._journal.amount(epoch, version)
        parts = 1
        if limits.rows_max is not None:
            parts = max(parts, -(-amount.rows // limits.rows_max))
        if limits.bytes_max is not None:
            parts = max(parts, min(amount.rows, -(-amount.bytes // limits.bytes_max)))
        if parts <= 1:
            return COMPLETE
        bounds = self._journal.id_bounds(epoch, version, parts)
        return next((bound for bound in bounds if bound > done), COMPLETE)

    def _resolved(self, facts: Facts, head: Head) -> Offset | None:
        """Where a new query begins that wants no snapshot: an offset with ``sync`` 0, which makes
        the first batch empty and the log remember the place. None: a snapshot after all."""
        start = self._start
        if start.word == "latest":
            return Offset(head.epoch, head.version)
        if start.word == "earliest":
            return Offset(facts.epoch, facts.earliest)
        if start.offset is not None:
            offset = Offset(start.offset.epoch, start.offset.version)
            if facts.serves(offset):
                return offset
            if self._fails:
                raise self.lost(offset, facts)
            return None
        if start.version is not None:
            before, what = start.version - 1, f"version {start.version}"
        else:
            assert start.time_us is not None
            before, what = self._journal.version_before(start.time_us), "that time"
        if facts.earliest <= before <= facts.version:
            return Offset(facts.epoch, before)
        if start.version == facts.earliest == 0:
            return Offset(facts.epoch, 0)
        raise DataLossError(
            self._table,
            asked=f"option {start.option}",
            reason=f"{what} is not in the journal, which has changes after version "
            f"{facts.earliest} up to {facts.version}; change {start.option}, or use "
            "startingOffsets=earliest or snapshot",
        )

    def lost(self, start: Offset, facts: Facts) -> DataLossError:
        """The error for a place the journal no longer has."""
        return data_loss(self._table, start, facts)


def data_loss(table: str, offset: Offset, facts: Facts) -> DataLossError:
    """The error for an offset that can no longer be served."""
    if offset.epoch != facts.epoch:
        reason = f"the table's history began anew (its epoch is now {facts.epoch})"
    elif offset.version > facts.version:
        reason = f"the journal ends at version {facts.version}"
    else:
        reason = f"the journal begins at version {facts.earliest}"
    return DataLossError(
        table,
        asked=f"{offset.epoch}:{offset.version}",
        reason=f"{reason}; set option failOnDataLoss=false to go on with a truncate row and a new "
        "snapshot, or start the query with a new checkpoint",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """What the rows of one batch are. Versions and ids are half-open as the journal speaks of
    them: changes (after, upto], ids [first, end)."""

    epoch: str
    truncate_at: int | None = None
    """Version of a row that says: forget everything before."""
    snapshot_of: int | None = None
    ids: tuple[int, int] = (0, ID_END)
    changes: tuple[int, int] | None = None


EMPTY = BatchPlan(epoch="")


def plan_batch(
    start: Offset, end: Offset, facts: Facts, *, table: str, fails_on_data_loss: bool
) -> BatchPlan:
    """What is between two offsets of the log. Called again after a crash, perhaps long after the
    log was written; then ``facts`` may have moved on (spark.md section 4.4)."""
    if start == end:
        return EMPTY
    if not facts.serves(end):
        # The next offset is chosen by somebody who sees the same loss.
        if fails_on_data_loss:
            raise data_loss(table, end, facts)
        return EMPTY
    ids = (0, ID_END if end.row == COMPLETE else end.row)
    if start.is_symbolic and end.sync == 0:
        return EMPTY
    if start.sync != end.sync or start.epoch != end.epoch:
        truncate = None if start.is_symbolic else end.version
        return BatchPlan(epoch=end.epoch, truncate_at=truncate, snapshot_of=end.version, ids=ids)
    if start.row != COMPLETE:
        return BatchPlan(epoch=end.epoch, snapshot_of=end.version, ids=(start.row, ids[1]))
    if facts.serves(start):
        return BatchPlan(epoch=end.epoch, changes=(start.version, end.version))
    # Cut between the log entry and its replay: the state at the end says the same.
    if fails_on_data_loss:
        raise data_loss(table, start, facts)
    return BatchPlan(epoch=end.epoch, truncate_at=end.version, snapshot_of=end.version)


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One task's share: the fields of a ticket, or the version of a truncate row."""

    epoch: str
    ticket: dict[str, Any] | None = None
    truncate_at: int | None = None

    @property
    def is_in_order(self) -> bool:
        """Whether the same ticket gives the same rows in the same order each time, so that a
        broken stream can be taken up where it broke."""
        return (
            self.ticket is not None
            and self.ticket["mode"] == "changes"
            and not self.ticket.get("net")
        )


def task_count(rows: int, *, partitions_min: int | None, partitions_max: int) -> int:
    """Tasks for that many rows."""
    if rows < ROWS_SMALL:
        return 1
    by_size = min(-(-rows // ROWS_PER_PARTITION), partitions_max)
    return max(1, by_size, partitions_min or 1)


def change_pieces(
    table: str, epoch: str, *, after: int, upto: int, tasks: int, form: dict[str, object]
) -> list[Piece]:
    """Changes in stripes of row ids: all changes of a row are in one task, in order of version,
    and new rows, which all stand at the high end, are spread."""
    base = {"table": table, "epoch": epoch, "mode": "changes", "from": after, "to": upto}
    return [
        Piece(epoch=epoch, ticket={**base, "stripe": [stripe, tasks], **form})
        for stripe in range(tasks)
    ]


def snapshot_pieces(
    table: str,
    epoch: str | None,
    version: int | None,
    *,
    ids: tuple[int, int],
    cuts: Sequence[int],
    form: dict[str, object],
) -> list[Piece]:
    """A snapshot in ranges of row ids, cut at those of ``cuts`` that are within ``ids``."""
    first, end = ids
    edges = [first, *(cut for cut in cuts if first < cut < end), end]
    base: dict[str, Any] = {"table": table, "mode": "snapshot"}
    if version is not None:
        base |= {"epoch": epoch, "version": version}
    return [
        Piece(epoch=epoch or "", ticket={**base, "ids": [low, high], **form})
        for low, high in pairwise(edges)
    ]
