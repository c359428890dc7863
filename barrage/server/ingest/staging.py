"""Rows that wait for their commit: what the executors of a batch job have sent and nobody sees yet.

A part is what one attempt at one partition of one batch sent. It is complete when its stream ended
well; a broken stream leaves nothing. Parts go when their batch is committed or aborted, and when
nobody came for them in time: a job that was killed aborts nothing. So do those that are under way
and bring nothing for as long; who sends them is told when there is more.

Memory only: after a restart everything staged is gone, the commit says so, and the job stages its
batch again. Belongs to the event loop.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from barrage.errors import BarrageError, LimitExceededError, StatusCode

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from barrage.clock import Clock
    from barrage.limits import Limits

PART_BYTES_MIN = 4096
"""What a part without rows is counted as: it has a schema and a place in the tables here."""


BATCH_BYTES_MIN = 1024
"""What the smallest batch is counted as: it costs memory besides its rows."""

SWEEP_NS = 1_000_000_000


class StagedLostError(BarrageError):
    """A commit names rows that are not staged, or not any more."""

    status_code = StatusCode.FAILED_PRECONDITION


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchName:
    """One batch of one writer to one table."""

    table: str
    writer: str
    batch: int


@dataclass(slots=True, kw_only=True)
class StagedPart:
    """The rows of one attempt at one partition."""

    name: BatchName
    partition: int
    attempt: int
    batches: list[pa.RecordBatch] = field(default_factory=list)
    schema: pa.Schema | None = None
    row_count: int = 0
    byte_count: int = 0
    expires_ns: int = 0
    is_given_up: bool = False
    """Its rows are gone: the batch was aborted, or nothing came for too long."""

    def rows(self) -> pa.Table:
        """All rows, not copied."""
        assert self.schema is not None
        return pa.Table.from_batches(self.batches, schema=self.schema)


class StagingArea:
    """Everything staged on one server."""

    def __init__(self, limits: Limits, clock: Clock) -> None:
        self._limits = limits
        self._clock = clock
        self._parts: dict[tuple[str, str], dict[tuple[int, int, int], StagedPart]] = {}
        """By table and writer, then by batch, partition and attempt."""
        self._swept_ns = clock.monotonic_ns()
        self._open: dict[int, StagedPart] = {}
        """Parts under way, by identity."""
        self._complete_count = 0
        self.byte_count = 0
        """Bytes of complete parts and of those under way."""

    @property
    def part_count(self) -> int:
        """Complete parts and those under way."""
        return len(self._open) + self._complete_count

    def open(self, name: BatchName, partition: int, attempt: int) -> StagedPart:
        """Begin a part; it ends in :meth:`complete` or :meth:`discard`. LimitExceededError."""
        self.sweep()
        if self.part_count >= self._limits.staging_parts_max:
            raise LimitExceededError(
                "number of staged parts",
                actual=self.part_count + 1,
                maximum=self._limits.staging_parts_max,
                unit="parts",
            )
        self._charge(PART_BYTES_MIN)
        part = StagedPart(
            name=name,
            partition=partition,
            attempt=attempt,
            byte_count=PART_BYTES_MIN,
            expires_ns=self._expiry_ns(),
        )
        self._open[id(part)] = part
        return part

    def _expiry_ns(self) -> int:
        return self._clock.monotonic_ns() + self._limits.staging_ttl_ns

    def add(self, part: StagedPart, batch: pa.RecordBatch, byte_count: int) -> None:
        """More rows of a part under way. LimitExceededError when too much is staged already,
        StagedLostError when the part was given up meanwhile."""
        if part.is_given_up:
            raise self._lost(part)
        byte_count = max(byte_count, BATCH_BYTES_MIN)
        part.expires_ns = self._expiry_ns()
        self._charge(byte_count)
        part.byte_count += byte_count
        part.row_count += batch.num_rows
        part.batches.append(batch)

    def complete(self, part: StagedPart, schema: pa.Schema) -> None:
        """The part has all its rows and can be committed. It takes the place of one of the same
        attempt that was sent before. StagedLostError when it was given up meanwhile."""
        if part.is_given_up:
            raise self._lost(part)
        del self._open[id(part)]
        self._complete_count += 1
        part.schema = schema
        part.expires_ns = self._expiry_ns()
        of_writer = self._parts.setdefault((part.name.table, part.name.writer), {})
        key = (part.name.batch, part.partition, part.attempt)
        if key in of_writer:
            self._forget(of_writer, [key])
        of_writer[key] = part

    @contextmanager
    def grown(self, parts: Iterable[StagedPart], byte_count: int) -> Iterator[None]:
        """While parts are made to fit their table, where they take so many bytes: what that is more
        than was staged counts too. LimitExceededError."""
        more = max(0, byte_count - sum(part.byte_count for part in parts))
        self._charge(more)
        try:
            yield
        finally:
            self.byte_count -= more

    def discard(self, part: StagedPart) -> None:
        """Give up a part under way, unless that has been done already."""
        if self._open.pop(id(part), None) is not None:
            self.byte_count -= part.byte_count
            part.is_given_up = True
            part.batches.clear()

    def _lost(self, part: StagedPart) -> StagedLostError:
        return StagedLostError(
            f"staged-lost: partition {part.partition}, attempt {part.attempt} of batch "
            f"{part.name.batch} of writer {part.name.writer!r} was given up, as its batch was "
            f"aborted or nothing came for {self._limits.staging_ttl_ns // 1_000_000_000} s: stage "
            "it again"
        )

    def withdraw(self, part: StagedPart) -> None:
        """Drop a complete part, unless that has been done already."""
        of_writer = self._parts.get((part.name.table, part.name.writer), {})
        key = (part.name.batch, part.partition, part.attempt)
        if of_writer.get(key) is part:
            self._forget(of_writer, [key])

    def find(self, name: BatchName, wanted: Iterable[tuple[int, int]]) -> list[StagedPart]:
        """The parts of a batch by partition and attempt, in that order. StagedLostError."""
        self.sweep()
        of_writer = self._parts.get((name.table, name.writer), {})
        found = []
        for partition, attempt in wanted:
            part = of_writer.get((name.batch, partition, attempt))
            if part is None:
                raise StagedLostError(
                    f"staged-lost: partition {partition}, attempt {attempt} of batch {name.batch} "
                    f"of writer {name.writer!r} is not staged for table {name.table!r}; staged "
                    f"rows are kept for {self._limits.staging_ttl_ns // 1_000_000_000} s and not "
                    "over a restart: stage the batch again"
                )
            found.append(part)
        return found

    def forget_batch(self, name: BatchName) -> int:
        """Drop every part of one batch, also of those under way; how many rows they had."""
        rows = 0
        for part in [part for part in self._open.values() if part.name == name]:
            rows += part.row_count
            self.discard(part)
        return rows + self._forget_range(name, name.batch)

    def forget_upto(self, name: BatchName) -> int:
        """Drop every part of a batch and of those before it: they will not be committed."""
        return self._forget_range(name, 0)

    def _forget_range(self, name: BatchName, first: int) -> int:
        of_writer = self._parts.get((name.table, name.writer))
        if of_writer is None:
            return 0
        rows = self._forget(of_writer, [k for k in of_writer if first <= k[0] <= name.batch])
        if not of_writer:
            del self._parts[name.table, name.writer]
        return rows

    def sweep(self) -> None:
        """Drop what nobody came for in time; looks once a second at most."""
        now_ns = self._clock.monotonic_ns()
        if now_ns - self._swept_ns < SWEEP_NS:
            return
        self._swept_ns = now_ns
        for part in [part for part in self._open.values() if part.expires_ns <= now_ns]:
            self.discard(part)
        for place, of_writer in list(self._parts.items()):
            self._forget(of_writer, [k for k, p in of_writer.items() if p.expires_ns <= now_ns])
            if not of_writer:
                del self._parts[place]

    def _forget(
        self,
        of_writer: dict[tuple[int, int, int], StagedPart],
        keys: list[tuple[int, int, int]],
    ) -> int:
        gone = [of_writer.pop(key) for key in keys]
        self._complete_count -= len(gone)
        self.byte_count -= sum(part.byte_count for part in gone)
        return sum(part.row_count for part in gone)

    def _charge(self, byte_count: int) -> None:
        if self.byte_count + byte_count > self._limits.staging_bytes_max:
            self.sweep()
        if self.byte_count + byte_count > self._limits.staging_bytes_max:
            raise LimitExceededError(
                "staged rows (make batches smaller, or let earlier ones be committed)",
                actual=self.byte_count + byte_count,
                maximum=self._limits.staging_bytes_max,
                unit="bytes",
            )
        self.byte_count += byte_count
