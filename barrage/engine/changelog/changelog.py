"""What a producer needs from the changes of its table, whatever kind of table it is.

A *point* is a number for where a subscriber stands: what it has been told, and therefore what it
lacks. Changelogs count the subscribers at each point and forget what nobody lacks.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np

from barrage.model.update import FullUpdate, ViewUpdate

if TYPE_CHECKING:
    from collections.abc import Callable

    from barrage.engine.changelog.subscription import Shape, ShapeBook
    from barrage.errors import LimitExceededError
    from barrage.model.update import TableUpdate
    from barrage.model.view_updates import ViewUpdates
    from barrage.rowset import RowSet
    from barrage.rowset.arrays import Int64Array
    from barrage.rowset.resting import RestingRows

Message: TypeAlias = FullUpdate | ViewUpdate

NOTHING = -1
"""Index of "no message" in :attr:`Messages.which`."""


VIEWS_AT = 1 << 32
"""First index in :attr:`Messages.which` of views that are told together: view v of the value with
number n in :attr:`Messages.views` has the index ``(n + 1) * VIEWS_AT + v``."""


@dataclass(slots=True, kw_only=True)
class Messages:
    """Deltas for many shapes: shape i gets ``messages[which[i]]``, a view of ``views``, or nothing.
    Equal messages stand there once.

    A shape whose view has outgrown its limit gets the error that ends its subscriptions.
    """

    which: Int64Array
    messages: list[Message | LimitExceededError] = field(default_factory=list)
    views: list[ViewUpdates] = field(default_factory=list)
    work_bytes: int = 0
    """Bytes of the row sets that were worked on."""

    def append(self, message: Message | LimitExceededError) -> int:
        self.messages.append(message)
        return len(self.messages) - 1

    def message(self, index: int) -> Message | LimitExceededError:
        """The message with this index in :attr:`which`."""
        if index < VIEWS_AT:
            return self.messages[index]
        return self.views[index // VIEWS_AT - 1].view(index % VIEWS_AT)

    def append_views(self, views: ViewUpdates) -> Int64Array:
        """The indices of all views of ``views``, in order."""
        self.views.append(views)
        return len(self.views) * VIEWS_AT + np.arange(len(views))


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What is remembered of a subscriber that will be resynchronised: how many rows the table had,
    the step it misses first, and, if it knows rows by their keys, which those are."""

    size: int
    first_step: int
    keys: RestingRows | None

    @property
    def nbytes(self) -> int:
        return 0 if self.keys is None else self.keys.nbytes

    @property
    def range_count(self) -> int:
        """Ranges of the keys, at most."""
        return 0 if self.keys is None else self.keys.size

    def without_keys(self) -> Known:
        """For views in positions, which need none."""
        return replace(self, keys=None)


class TableMoment(Protocol):
    """What a table shows at one moment."""

    def snapshot(self, shape: Shape, old: Shape | None) -> Message:
        """This state for ``shape``; ``old`` is the shape whose rows the client holds, None for
        none."""

    def jump(self, shape: Shape, old: Shape, size_known: int) -> Message:
        """This state for one contiguous view, to somebody who holds the rows of another one as they
        were when the table had so many, of which none stays."""

    def resync(self, shape: Shape, known: Known) -> Message:
        """One delta from what was known to this state."""

    def pinned(self) -> PinnedMoment:
        """The same, to be kept and used on any thread."""


class PinnedMoment(TableMoment, Protocol):
    """A state that stays."""

    def delta(self, shape: Shape, update: TableUpdate, before: RowSet | None) -> Message:
        """What ``update``, which leads to this state, means for one shape; ``before`` are the row
        keys it leads from, where they are known."""


class Changelog(Protocol):
    """Changes of one table. Points count subscribers: every join is followed by one leave."""

    @property
    def reader_count(self) -> int:
        """Subscribers at all points together."""

    def record(self, update: TableUpdate, wall_ns: int) -> None:
        """Note what a cycle changed; the table is in its new state already."""

    def join(self, count: int) -> int:
        """Let ``count`` subscribers, who have just got a snapshot, stand at the present; returns
        the point."""

    def branch(self, keys: RowSet, update: TableUpdate) -> int:
        """Let one subscriber that holds rows ``keys``, from which ``update`` leads to the present,
        stand apart; returns the point."""

    def join_branch(self, point: int, count: int) -> None:
        """Let ``count`` more subscribers stand at a point that :meth:`branch` gave."""

    def leave(self, point: int, count: int) -> None:
        """Let ``count`` subscribers of ``point`` go."""

    def advance(self, point: int, count: int) -> int:
        """Let ``count`` subscribers of ``point``, who got its messages, stand at the present
        instead."""

    def has_news(self, point: int) -> bool:
        """Whether those who stand at ``point`` lack anything."""

    def messages(self, point: int, numbers: Int64Array, shapes: ShapeBook) -> Messages:
        """What leads from ``point`` to the present, for the shapes with these numbers."""

    def clearing(self, point: int, shape: Shape) -> Message | None:
        """What must be sent before a snapshot to somebody at ``point`` (blink tables only)."""

    def first_states(self, shapes: list[Shape]) -> ViewUpdates | None:
        """The present for many views that hold nothing, all of one kind
        (:func:`barrage.engine.changelog.span_updates.first_kind`); None where they are to be told
        one by one."""

    def jumps(
        self, shapes: list[Shape], olds: list[Shape], sizes_known: list[int]
    ) -> ViewUpdates | None:
        """The present for many views, all of one kind, to those who hold the rows of ``olds`` as
        they were when the table had ``sizes_known``: none of them stays. None where they are to be
        told one by one."""

    @property
    def present(self) -> TableMoment:
        """What the table is now; the next cycle changes it."""

    def snapshot_work(self, shape: Shape) -> int:
        """Row operations of a snapshot."""

    def resync_work(self, shape: Shape, known: Known) -> int:
        """Row operations of a delta from what was known."""

    def view_work(self, point: int) -> int:
        """Row operations of working out what leads from ``point`` to the present, in positions."""

    def delta_work(self, point: int, numbers: Int64Array, shapes: ShapeBook) -> Int64Array | None:
        """Row operations of the messages that lead from ``point`` to the present, by shape; None
        where all are little."""

    def message_later(self, point: int, shape: Shape) -> Callable[[PinnedMoment], Message]:
        """How the message for one shape is made from the present that is now, wherever it is
        kept; what leads there is merged when it is."""

    def merged_bytes(self, point: int) -> int:
        """Bytes of the row sets that were worked on to know what leads from ``point`` to the
        present."""

    def crowded_points(self) -> list[int]:
        """Points to be vacated by held subscribers, oldest first, because there are too many."""

    def waiting_points(self) -> list[int]:
        """Points behind the present, oldest first, whose subscribers can be resynchronised."""

    @property
    def nbytes(self) -> int:
        """Bytes of what is kept for those who stand behind the present."""

    def fold(self) -> None:
        """Keep the same in fewer bytes if possible."""

    def settle(self) -> None:
        """Everybody who was due has been told: forget what was computed for them only."""

    def known(self, point: int, *, with_keys: bool) -> Known:
        """What to remember of those who leave ``point`` to be resynchronised."""

    def validate(self) -> None:
        """Check the invariants; for tests and simulation."""
