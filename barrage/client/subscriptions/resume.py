"""Where one subscription stands in its table's history, and how it goes on after a lost connection.

The state shown has a *setting*, the columns and rows it is of, which may lag behind what the user
wants; a stream that resumes asks for exactly that setting and changes it afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from barrage.errors import ConfigError, CursorError
from barrage.model.cursor import Cursor
from barrage.model.viewport import Viewport
from barrage.proto.resumption import (
    EPOCH_HEADER,
    RESUMED_HEADER,
    Outcome,
    ResumeMode,
    ResumeRequest,
    parse_epoch,
    parse_outcome,
)
from barrage.wire.revision import WireRevision

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from barrage.model.update import FullUpdate, ViewUpdate
    from barrage.model.viewport import ColumnSet

NO_HISTORY = "the server keeps no history of this table"
SWITCHED_OFF = "resuming is switched off"
OTHER_REVISION = "the 2020 draft cannot resume"


@dataclass(frozen=True, slots=True)
class Setting:
    """Which cells a state is of. ``columns`` None: all; ``viewport`` None: all rows."""

    columns: ColumnSet | None
    viewport: Viewport | None

    @classmethod
    def of(
        cls, schema: pa.Schema | None, columns: ColumnSet | None, viewport: Viewport | None
    ) -> Setting:
        """Equal for equal cells: naming every column is naming none."""
        is_all = columns is None or (schema is not None and columns == tuple(range(len(schema))))
        return cls(None if is_all else columns, viewport)

    def after(self, message: FullUpdate | ViewUpdate, schema: pa.Schema | None) -> Setting | None:
        """What a consistent state after ``message`` is of, on a stream that was asked for this one;
        None when that is as before."""
        if not message.is_snapshot:
            return None
        if self.viewport is None or message.effective_viewport is None:
            return self
        viewport = Viewport(
            positions=message.effective_viewport, is_reverse=message.is_effective_reverse
        )
        return Setting.of(schema, message.effective_columns, viewport)


@dataclass(frozen=True, slots=True)
class KeptState:
    """Rows that were kept from an earlier life of the process, and where they stand."""

    cursor: Cursor
    rows: pa.Table


class Resuming:
    """The history of one subscription: cursors are asked for, answers are read here."""

    def __init__(self, mode: ResumeMode, revision: WireRevision) -> None:
        self.mode = mode
        self._revision = revision
        self.epoch: str | None = None
        """Of the stream's table; None before its headers and without a history."""
        self.setting: Setting | None = None
        """Of the state shown."""
        self.outcome: Outcome | None = None
        """How the latest stream went on; None for one that began afresh."""
        self._asked: ResumeRequest | None = None
        self._is_distrusted = False

    def begin(self, cursor: Cursor | None) -> ResumeRequest | None:
        """A new stream is to be opened while the state at ``cursor`` is shown: what to ask for."""
        self.epoch = None
        self._asked = None
        can_ask = self.mode is not ResumeMode.OFF and self._revision is WireRevision.R1_0_0
        if can_ask and cursor is not None and self.setting is not None and not self._is_distrusted:
            self._asked = ResumeRequest(cursor, self.mode)
        return self._asked

    def answer(self, headers: Mapping[str, str], *, has_state: bool) -> Outcome:
        """The server's headers are here: how the stream goes on."""
        self.epoch = parse_epoch(headers.get(EPOCH_HEADER))
        if self._asked is not None:
            self.outcome = parse_outcome(headers.get(RESUMED_HEADER))
            return self.outcome
        snapshot = Outcome.resnapshot(self._reason())
        if has_state:
            self.outcome = snapshot
        return snapshot

    def _reason(self) -> str:
        if self.mode is ResumeMode.OFF:
            return SWITCHED_OFF
        if self._revision is not WireRevision.R1_0_0:
            return OTHER_REVISION
        if self._is_distrusted:
            return "the table's columns changed"
        return NO_HISTORY

    def distrust(self) -> None:
        """The state shown does not fit what the server resumed: take a snapshot the next time."""
        self._is_distrusted = True

    def settled(self, setting: Setting | None) -> None:
        """A state of this setting is shown now, if one is given."""
        self._is_distrusted = False
        if setting is not None:
            self.setting = setting


def kept_state(resume_from: Cursor | str | None, rows: pa.Table | None) -> KeptState | None:
    """What ``resume_from`` and ``rows`` of a subscription say; ConfigError when one is missing."""
    if resume_from is None and rows is None:
        return None
    if resume_from is None or rows is None:
        raise ConfigError("resume_from and rows belong together: the rows as of that cursor")
    if isinstance(resume_from, str):
        resume_from = Cursor.parse(resume_from)
    if not isinstance(resume_from, Cursor):
        raise CursorError(f"resume_from is {resume_from!r}, not a cursor")
    return KeptState(resume_from, rows)
