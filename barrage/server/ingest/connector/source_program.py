"""What the door for sources knows of a program: its table, its desk, and the batches on their way
to the engine."""

from __future__ import annotations

from collections import deque
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING

from barrage.wire.payloads.mapping_turns import MappingTurns, TurnPace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from barrage.limits import Limits
    from barrage.proto.connector.stream_desk import StreamBatch, StreamDesk
    from barrage.server.ingest.connector.source_connection import ConnectorConnection
    from barrage.server.ingest.connector.stream_landings import Landing, LandingTarget
    from barrage.wire.payloads.mapping_turns import MappedTurn
    from barrage.wire.payloads.source_mapping import MappedRows

BESIDE_BYTES = 16 * 1024
"""Payloads from which on they are decoded beside the event loop."""

BESIDE_MESSAGES = 64
"""The same: bad ones may each take a call of the decoder."""

_ALWAYS_BESIDE = frozenset({"arrow", "python"})
"""Formats whose payloads do not tell by their length what they take."""


@dataclass(slots=True, eq=False)
class BatchWork:
    """A batch of one desk, whose messages become rows in turns; each part goes to the engine with
    its own positions, and the batch is settled with the last."""

    batch: StreamBatch
    desk: StreamDesk
    turns: MappingTurns | None
    """None when there is nothing to decode."""
    is_beside: bool = False
    is_failed: bool = False
    """Whether nothing more of it may be written."""
    parts_under_way: int = 0
    """That the engine has and has not answered."""
    is_handed_over: bool = False
    """Whether the engine was given the last part."""
    is_over: bool = False

    def part(self, turn: MappedTurn) -> MappedPart:
        """What a turn has brought."""
        assert self.turns is not None
        is_last = self.turns.is_over
        positions = self.batch.positions_between(turn.start, turn.stop)
        return MappedPart(self, turn.rows, positions, is_last=is_last, byte_count=turn.byte_count)

    def handed_over(self, part: MappedPart) -> None:
        """The engine has a part."""
        self.parts_under_way += 1
        self.is_handed_over |= part.is_last

    def fail(self, reason: str | None = None) -> None:
        """Nothing more of it is written, nor of its desk; positions of what the engine has count,
        so the batch is under way until that is answered. Idempotent."""
        if not self.is_failed and not self.is_over:
            self.is_failed = True
            self.desk.close(reason)
            self.finish()

    def finish(self) -> None:
        """When every part of it has been answered, whichever was first, it is safe or let go."""
        if self.parts_under_way or self.is_over:
            return
        if self.is_failed:
            self.is_over = True
            self.desk.let_go(self.batch)
        elif self.is_handed_over:
            self.is_over = True
            self.desk.settle(self.batch)


@dataclass(frozen=True, slots=True)
class MappedPart:
    """Messages of a batch and what they become, and the positions that go with them."""

    work: BatchWork
    rows: MappedRows | None
    positions: Mapping[int, tuple[int, int]]
    _: KW_ONLY
    is_last: bool
    byte_count: int
    """What its rows take."""


class SourceProgram:
    """A target that connectors have begun with; the programs that share it are one."""

    def __init__(self, target: LandingTarget) -> None:
        self.target = target
        self.landing: Landing | None = None
        self.desk: StreamDesk | None = None
        self.held: MappedPart | None = None
        """What the engine had no room for."""
        self.work: BatchWork | None = None
        """The batch whose messages are being decoded."""
        self.waiting: deque[ConnectorConnection] = deque()
        self.is_opening = False
        self.is_mapping = False
        """Whether payloads are being decoded beside the loop."""
        self.row_bytes = 0
        """Of rows that the engine has and that are not safe yet."""
        self._pace = TurnPace()

    def begin(self, batch: StreamBatch, *, limits: Limits) -> BatchWork:
        """A batch that the desk has given."""
        assert self.desk is not None
        assert self.landing is not None
        messages = None if self.target.is_raw else batch.messages()
        if messages is None:
            return BatchWork(batch, self.desk, None)
        turns = MappingTurns(
            self.landing.mapper,
            messages,
            stops=batch.stops(),
            pace=self._pace,
            limits=limits,
        )
        is_large = batch.byte_count >= BESIDE_BYTES or len(messages) >= BESIDE_MESSAGES
        is_beside = is_large or self.target.mapping.format in _ALWAYS_BESIDE
        return BatchWork(batch, self.desk, turns, is_beside=is_beside)

    def whole(self, work: BatchWork) -> MappedPart:
        """All of a batch at once: of one whose messages land as they are, or that has none."""
        assert self.landing is not None
        messages = work.batch.messages()
        rows = None if messages is None else self.landing.mapper.map(messages)
        byte_count = 0 if rows is None else int(rows.rows.nbytes)
        positions = work.batch.positions
        return MappedPart(work, rows, positions, is_last=True, byte_count=byte_count)

    def give_up(self) -> None:
        """All that is on its way and not in the engine, nor being decoded."""
        if self.held is not None:
            self.held.work.fail()
        self.held = None
        if self.work is not None and not self.is_mapping:
            self.work.fail()
            self.work = None
