"""How far each producer has got in each table, so that a resend is known for what it is.

A producer numbers what it writes; its last number is committed with the rows, in the same record
of the journal, and read back with them. A number that is not larger than the last one is a resend:
nothing is staged for it, and whoever sent it is told that it is there once it is as safe as the
original. Numbers may have gaps, since a producer may number its messages, or bytes, for itself.

One writer at a time writes for a producer. A call that opens gets an *epoch* and with it the right
to write; whoever had it before is fenced: nothing of it is taken from then on, and it is told. So a
process that was restarted goes on at once, and the old one, if it still lives, cannot put rows
under numbers the new one will use. A writer that only lost its connection names its epoch and keeps
it, unless another has begun since. Epochs are not kept on disk; they grow with the clock, so that
after a restart of the server the latest of those that come back still wins.

A single write that names a producer and a number (Python API, staging) has no epoch. It fences a
call that is open: the two would not know of each other's numbers.

Belongs to the engine thread. Not more than ``producers_max`` producers of a table are remembered;
the one that has been silent longest is forgotten first. External streams
(:mod:`barrage.server.ingest.connector`) have positions of the same kind, under names no producer
can have, which are not forgotten.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from barrage.errors import ProducerFencedError, SequenceError
from barrage.journal.records.stream_names import name_of_stream, names_to_forget, stream_positions

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from barrage.engine.tables.source import SourceTable

PRODUCER_CHARS_MAX = 200
"""Longest name of a producer."""

SEQUENCE_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True, order=True)
class ProducerEpoch:
    """The right to write for a producer: of two, the larger one has it."""

    number: int
    """Of one writer, whatever its connections do."""
    call: int
    """Which of the writer's calls it is."""


@dataclass(frozen=True, slots=True)
class ProducerPosition:
    """A write's place in the sequence of one producer. SequenceError for one that names none."""

    id: str
    sequence: int
    epoch: ProducerEpoch | None = None
    """Under which a call writes; None for a write that stands alone."""

    def __post_init__(self) -> None:
        check_producer(self.id)
        check_sequence(self.sequence)


def check_producer(producer: object) -> str:
    """The name of a producer as a peer gave it; SequenceError when it is none."""
    if (
        not isinstance(producer, str)
        or not 0 < len(producer) <= PRODUCER_CHARS_MAX
        or not producer.isprintable()
    ):
        raise SequenceError(
            f"a producer is named by 1 to {PRODUCER_CHARS_MAX} printable characters, "
            f"not {str(producer)[:40]!r}"
        )
    return producer


def check_sequence(sequence: object) -> int:
    """A sequence number as a peer gave it; SequenceError when it is none."""
    if (
        not isinstance(sequence, int)
        or isinstance(sequence, bool)
        or not 0 <= sequence <= SEQUENCE_MAX
    ):
        raise SequenceError(
            f"a sequence number is a whole number from 0 to 2**63 - 1, not {str(sequence)[:40]!r}"
        )
    return sequence


def check_number_of_epoch(number: object) -> int:
    """The number of an epoch as a peer gave it; SequenceError when it is none."""
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= SEQUENCE_MAX:
        raise SequenceError(f"an epoch of producer '...' is a number, not {str(number)[:40]!r}")
    return number


class TablePositions:
    """The producers of one table: what is committed, and what the next cycle commits."""

    def __init__(self, producers_max: int) -> None:
        self._producers_max = producers_max
        self._committed: dict[str, int] = {}
        """In the order in which the producers last wrote."""
        self._staged: dict[str, int] = {}
        self._epochs: dict[str, ProducerEpoch] = {}
        """Producer to the epoch that may write, in the order in which they began."""
        self.refused: dict[str, int] = {}
        """Producer to its first write that could not be kept and has not been sent again."""

    @property
    def committed(self) -> Mapping[str, int]:
        """Producer to the last number that a cycle has committed."""
        return self._committed

    @property
    def staged(self) -> Mapping[str, int]:
        """Producer to the last number that the next cycle commits."""
        return self._staged

    def last(self, producer: str) -> int | None:
        """The last number that is committed or staged; None for a producer that is not known."""
        staged = self._staged.get(producer)
        return self._committed.get(producer) if staged is None else staged

    def begin(self, producer: str, *, epoch: int | None, wall_ns: int) -> ProducerEpoch:
        """A call begins to write for ``producer``, as the writer whose epoch it names or as a new
        one."""
        before = self._epochs.pop(producer, None)
        if before is None:
            begun = ProducerEpoch(wall_ns if epoch is None else epoch, 1)
        elif epoch is None:
            begun = ProducerEpoch(max(wall_ns, before.number + 1), 1)
        elif epoch < before.number:
            self._epochs[producer] = before
            raise ProducerFencedError(producer)
        else:
            begun = ProducerEpoch(epoch, before.call + 1)
        self._epochs[producer] = begun
        if len(self._epochs) > self._producers_max:
            del self._epochs[next(iter(self._epochs))]
        return begun

    def check_epoch(self, position: ProducerPosition) -> None:
        """ProducerFencedError for a write of a call that another one has followed. A write that
        stands alone fences the call that is open."""
        current = self._epochs.get(position.id)
        if current is None:
            return
        if position.epoch is None:
            self._epochs[position.id] = ProducerEpoch(current.number + 1, 0)
        elif position.epoch < current:
            raise ProducerFencedError(position.id)

    def is_resend(self, position: ProducerPosition) -> bool:
        """Whether the write at this position has been taken already."""
        last = self.last(position.id)
        return last is not None and position.sequence <= last

    def stage(self, position: ProducerPosition) -> None:
        """The next cycle commits the write at this position."""
        self._staged[position.id] = position.sequence

    def stage_at(self, name: str, sequence: int) -> None:
        """The same for a stream."""
        self._staged[name] = sequence

    def commit(self) -> dict[str, int]:
        """The cycle has committed what was staged: that."""
        moved, self._staged = self._staged, {}
        self.restore(moved)
        return moved

    def restore(self, positions: Mapping[str, int]) -> None:
        """Know these, the last ones as the latest."""
        for producer, sequence in positions.items():
            self._committed.pop(producer, None)
            self._committed[producer] = sequence
        for producer in names_to_forget(self._committed, self._producers_max):
            del self._committed[producer]


class ProducerPositions:
    """The producers of every table that has some."""

    def __init__(self, producers_max: int) -> None:
        self._producers_max = producers_max
        self._tables: WeakKeyDictionary[SourceTable, TablePositions] = WeakKeyDictionary()
        self._has_staged: dict[SourceTable, TablePositions] = {}

    def of(self, table: SourceTable) -> TablePositions | None:
        """The producers of one table; None when it has had none."""
        return self._tables.get(table)

    def last(self, table: SourceTable, producer: str) -> int | None:
        """The last number of a producer in a table, committed or about to be."""
        known = self._tables.get(table)
        return None if known is None else known.last(producer)

    def committed(self, table: SourceTable, producer: str) -> int | None:
        """The last committed number of a producer in a table."""
        known = self._tables.get(table)
        return None if known is None else known.committed.get(producer)

    def is_resend(self, table: SourceTable, position: ProducerPosition) -> bool:
        """Whether a table has taken the write at this position already."""
        known = self._tables.get(table)
        return known is not None and known.is_resend(position)

    def begin(
        self, table: SourceTable, producer: str, *, epoch: int | None, wall_ns: int
    ) -> ProducerEpoch:
        """See :meth:`TablePositions.begin`."""
        return self._made(table).begin(producer, epoch=epoch, wall_ns=wall_ns)

    def check_epoch(self, tables: Iterable[SourceTable], position: ProducerPosition) -> None:
        """See :meth:`TablePositions.check_epoch`."""
        for table in tables:
            known = self._tables.get(table)
            if known is not None:
                known.check_epoch(position)

    def stage(self, table: SourceTable, position: ProducerPosition) -> None:
        """The next cycle commits the write at this position in this table."""
        known = self._made(table)
        known.stage(position)
        self._has_staged[table] = known

    def streams(self, table: SourceTable) -> dict[int, int]:
        """The last committed message of every external stream of a table, by stream."""
        known = self._tables.get(table)
        return {} if known is None else stream_positions(known.committed)

    def stage_streams(self, table: SourceTable, positions: Mapping[int, tuple[int, int]]) -> None:
        """The next cycle moves external streams to the second number of each, the first being that
        of the first message after the last. SequenceError, and none moves, for one that is there
        already."""
        self.check_streams(table, positions)
        known = self._made(table)
        for number, (_, last) in positions.items():
            known.stage_at(name_of_stream(number), last)
        if positions:
            self._has_staged[table] = known

    def check_streams(self, table: SourceTable, positions: Mapping[int, tuple[int, int]]) -> None:
        """SequenceError when :meth:`stage_streams` would raise one."""
        known = self._made(table)
        for number, (first, _) in positions.items():
            last = known.last(name_of_stream(number))
            if last is not None and first <= last:
                raise SequenceError(f"message {first} of stream {number} is there, as is {last}")

    def refuse(self, table: SourceTable, position: ProducerPosition) -> None:
        """The write at this position could not be kept, which its producer cannot help."""
        refused = self._made(table).refused
        if len(refused) < self._producers_max:
            refused.setdefault(position.id, position.sequence)

    def check_order(self, table: SourceTable, position: ProducerPosition) -> None:
        """SequenceError for a write after one that was refused and has not been sent again; a write
        that is that one makes good for it."""
        known = self._tables.get(table)
        refused = None if known is None else known.refused.get(position.id)
        if known is None or refused is None:
            return
        if position.sequence > refused:
            raise SequenceError(
                f"write {refused} of producer {position.id!r} was refused: send it again before "
                f"{position.sequence}, or ask for the producer's position to begin anew"
            )
        known.refused.pop(position.id)

    def mend(self, table: SourceTable, producer: str) -> None:
        """The producer asks where it stands, and begins anew from there."""
        known = self._tables.get(table)
        if known is not None:
            known.refused.pop(producer, None)

    @property
    def has_staged(self) -> bool:
        """Whether the next cycle moves a producer."""
        return bool(self._has_staged)

    def commit(self, failed: Iterable[object] = ()) -> dict[SourceTable, dict[str, int]]:
        """A cycle has run: the producers it moved, by table. In a table that failed nobody has
        moved."""
        lost = set(failed)
        staged, self._has_staged = self._has_staged, {}
        return {
            table: moved
            for table, known in staged.items()
            if table not in lost and (moved := known.commit())
        }

    def restore(self, table: SourceTable, positions: Mapping[str, int]) -> None:
        """What a journal kept."""
        if positions:
            self._made(table).restore(positions)

    def _made(self, table: SourceTable) -> TablePositions:
        known = self._tables.get(table)
        if known is None:
            known = self._tables[table] = TablePositions(self._producers_max)
        return known
