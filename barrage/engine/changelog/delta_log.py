"""What changed in one table since each point at which some subscriber still stands.

A *point* is the state of the table between two recorded updates; subscribers stand at points and
are counted there. Between two neighbouring points lies a *segment*: the updates that lead from one
to the other, merged into one when somebody asks. Where nobody stands there is no point, so the log
holds at most one segment per occupied point, whatever the number of recorded updates.

A *branch* leads from a state off this line to a point on it, and stands for a subscriber that came
back with the rows of an older version: whoever stands on it lacks its update and then all since the
point. It keeps the point occupied. Branches have numbers below every point's.

Cost: row sets only, never values, and only of what changed: the row keys of a point are those of
the table now with everything since undone. Only those of the newest point behind the head, where
subscribers in step stand, are kept, and those of the oldest, which leaves first when too much is
kept: two sets per table, however many points there are.
:attr:`DeltaLog.nbytes` counts the bytes of all other sets.
Recording is O(1) until a segment has collected ``FOLD_EVERY`` updates, then they are merged.
:meth:`DeltaLog.since` coalesces from the newest segment backwards and remembers every result until
:meth:`DeltaLog.settle` or the next record, so all points together cost one coalescing per segment.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from barrage.model.coalesce import coalesce, coalesce_all
from barrage.rowset.resting import RestingRows

if TYPE_CHECKING:
    from barrage.model.update import TableUpdate
    from barrage.rowset import RowSet

FOLD_EVERY = 8
"""Updates a segment collects before they are merged: bounds memory, and keeps the cost of a long
wait linear."""


FEW_POINTS = 4
"""With so many points nobody will have to leave soon."""

PENDING_MAX = 16
"""Updates that lead to the oldest point before they are applied to the row keys kept for it."""


@dataclass(slots=True)
class _Point:
    """A state of the table with ``size`` rows. ``updates`` lead from here to the next point, the
    newest point has none; ``nbytes`` is what they cost."""

    size: int
    readers: int = 0
    updates: list[TableUpdate] = field(default_factory=list)
    nbytes: int = 0

    def add(self, updates: list[TableUpdate]) -> int:
        """Append to the segment; by how many bytes it grew."""
        before = self.nbytes
        self.updates += updates
        self.nbytes += sum(update.resident_bytes() for update in updates)
        if len(self.updates) >= FOLD_EVERY:
            self.fold()
        return self.nbytes - before

    def fold(self) -> TableUpdate:
        """All as one. The first has been merged before and is large: it takes part once."""
        if len(self.updates) > 1:
            merged = coalesce(self.updates[0], coalesce_all(self.updates[1:]))
            self.updates = [merged]
            self.nbytes = merged.resident_bytes()
        return self.updates[0]


@dataclass(slots=True)
class _OldKeys:
    """The row keys at the oldest point: ``keys`` once ``pending`` have been applied to them."""

    point: int
    keys: RowSet | RestingRows
    pending: list[TableUpdate] = field(default_factory=list)

    @property
    def nbytes(self) -> int:
        keys = self.keys
        own = keys.nbytes if isinstance(keys, RestingRows) else keys.bytes_max
        return own + sum(update.resident_bytes() for update in self.pending)

    def rows(self) -> RowSet:
        rows = self.keys.rows() if isinstance(self.keys, RestingRows) else self.keys
        return coalesce_all(self.pending).keys_after(rows) if self.pending else rows

    def rest(self) -> None:
        if not isinstance(self.keys, RestingRows):
            self.keys = RestingRows(self.keys)

    def tidy(self) -> None:
        """Take a step towards fewer bytes, if there is one."""
        if not isinstance(self.keys, RestingRows):
            self.rest()
        elif len(self.pending) >= PENDING_MAX:
            first, self.pending = self.pending[:PENDING_MAX], self.pending[PENDING_MAX:]
            self.keys = RestingRows(coalesce_all(first).keys_after(self.keys.rows()))


@dataclass(slots=True)
class _Branch:
    """``update`` leads from a table with ``keys`` to the point ``base``."""

    keys: RowSet
    update: TableUpdate
    base: int
    readers: int = 0

    @property
    def nbytes(self) -> int:
        return self.update.resident_bytes()


BRANCH_FIRST = -2
"""Number of the first branch; later ones count down."""


class DeltaLog:
    """Points in ascending order of their serial number; the last one, :attr:`head`, is the table as
    it is now.

    Invariants: every point but the head has at least one subscriber and a non-empty segment.
    """

    def __init__(self, keys: RowSet) -> None:
        self._head = 0
        self._keys = keys
        self._points: dict[int, _Point] = {0: _Point(keys.size)}
        self._branches: dict[int, _Branch] = {}
        self._branch_next = BRANCH_FIRST
        self._since: dict[int, TableUpdate] = {}
        self._nbytes = 0
        self._oldest: _OldKeys | None = None
        self._recent: tuple[int, RowSet] | None = None

    @property
    def head(self) -> int:
        """Serial number of the newest point."""
        return self._head

    @property
    def point_count(self) -> int:
        """Distinct points and branches at which subscribers wait or can join."""
        return len(self._points) + len(self._branches)

    @property
    def nbytes(self) -> int:
        """Bytes of all row sets kept for those who stand behind the head."""
        oldest = self._oldest
        return self._nbytes + (0 if oldest is None else oldest.nbytes)

    def keys_at(self, point: int) -> RowSet:
        """Row keys of the table at an occupied point or branch."""
        if point == self._head:
            return self._keys
        recent = self.recent_keys(point)
        if recent is not None:
            return recent
        update = self.since(point)
        assert update is not None
        return update.keys_before(self._keys)

    def recent_keys(self, point: int) -> RowSet | None:
        """:meth:`keys_at` where they are at hand."""
        branch = self._branches.get(point)
        if branch is not None:
            return branch.keys
        if self._recent is not None and self._recent[0] == point:
            return self._recent[1]
        return None

    def size_at(self, point: int) -> int:
        """Rows of the table at an occupied point or branch."""
        branch = self._branches.get(point)
        return self._points[point].size if branch is None else branch.keys.size

    def step_at(self, point: int) -> int:
        """The first step that somebody at an occupied point or branch lacks; not for the head."""
        branch = self._branches.get(point)
        update = self._points[point].updates[0] if branch is None else branch.update
        return update.first_step

    def resting_keys_at(self, point: int) -> RestingRows:
        """Row keys at an occupied point or branch, for somebody who leaves it and is to be told
        the whole table instead.

        The oldest points leave first, one after the other. Undoing everything since for each of
        them would cost one coalescing per segment every time; so the next point's keys are made of
        these, through one segment, and kept until they are asked for.
        """
        serials = iter(self._points)
        if point != next(serials) or point == self._head:
            return RestingRows(self.keys_at(point))
        oldest = self._oldest
        keys = self.keys_at(point) if oldest is None else oldest.rows()
        following = next(serials)
        self._oldest = None
        if following != self._head:
            after = self._points[point].fold().keys_after(keys)
            self._oldest = _OldKeys(following, RestingRows(after))
        self._recount()
        return RestingRows(keys)

    def fold(self) -> None:
        """Merge the updates of every segment, which costs fewer bytes."""
        if self._oldest is not None:
            self._oldest.rest()
        for point in self._points.values():
            if point.updates:
                point.fold()
        self._recount()

    def settle(self) -> None:
        """Forget what was computed for those who were told their updates."""
        self._since.clear()

    def _recount(self) -> None:
        points = sum(point.nbytes for point in self._points.values())
        self._nbytes = points + sum(branch.nbytes for branch in self._branches.values())

    @property
    def reader_count(self) -> int:
        """Subscribers at all points together."""
        at_points = sum(point.readers for point in self._points.values())
        at_branches = sum(branch.readers for branch in self._branches.values())
        return at_points - len(self._branches) + at_branches

    def points(self) -> list[int]:
        """All branches and points, oldest first; the last one is the head."""
        return [*self._branches, *self._points]

    def record(self, update: TableUpdate, keys: RowSet) -> None:
        """Add an update that leads to a table with ``keys``."""
        self._since.clear()
        before, self._keys = self._keys, keys
        previous = self._points[self._head]
        if previous.readers:
            self._keep_oldest()
            self._recent = self._head, before
            self._nbytes += previous.add([update])
        else:
            del self._points[self._head]
            if self._points:
                self._nbytes += next(reversed(self._points.values())).add([update])
        self._head += 1
        self._points[self._head] = _Point(keys.size)

    def _keep_oldest(self) -> None:
        """Keep the row keys of the oldest point from when it stops being the newest behind the
        head: to work them out takes one coalescing per segment when there are many."""
        oldest, recent = self._oldest, self._recent
        if oldest is not None:
            if len(self._points) > FEW_POINTS:
                oldest.tidy()
        elif recent is not None and recent[0] == next(iter(self._points)):
            self._oldest = _OldKeys(*recent)

    def join(self, count: int = 1) -> int:
        """Let ``count`` subscribers stand at the head; returns the head."""
        self._points[self._head].readers += count
        return self._head

    def branch(self, keys: RowSet, update: TableUpdate) -> int:
        """Let one subscriber stand at a table with ``keys``, from which ``update`` leads to the
        head; returns the branch."""
        number = self._branch_next
        self._branch_next -= 1
        branch = _Branch(keys, update, self.join(), readers=1)
        self._branches[number] = branch
        self._nbytes += branch.nbytes
        return number

    def join_branch(self, number: int, count: int = 1) -> None:
        """Let ``count`` more subscribers stand at a branch; KeyError when there is none."""
        self._branches[number].readers += count

    def leave(self, point: int, count: int = 1) -> None:
        """Let ``count`` subscribers of ``point`` go. A point nobody stands at merges into the one
        before, and a branch is forgotten."""
        branch = self._branches.get(point)
        at = self._points[point] if branch is None else branch
        if at.readers < count:
            raise ValueError(f"{count} subscribers leave point {point}, where {at.readers} stand")
        at.readers -= count
        if at.readers or point == self._head:
            return
        if branch is not None:
            del self._branches[point]
            self._nbytes -= branch.nbytes
            self._since.pop(point, None)
            self.leave(branch.base)
            return
        self._merge_back(point, self._points[point])

    def _merge_back(self, point: int, at: _Point) -> None:
        before = self._before(point)
        del self._points[point]
        self._since.pop(point, None)
        self._leave_oldest(point, at)
        if self._recent is not None and self._recent[0] == point:
            self._recent = None
        self._nbytes -= at.nbytes
        if before is not None:
            self._nbytes += before.add(at.updates)

    def _leave_oldest(self, point: int, at: _Point) -> None:
        oldest = self._oldest
        if oldest is None or oldest.point != point:
            return
        oldest.point = next(iter(self._points))
        oldest.pending += at.updates
        if len(self._points) <= FEW_POINTS:
            self._oldest = None

    def _before(self, point: int) -> _Point | None:
        earlier: _Point | None = None
        for serial, candidate in self._points.items():
            if serial == point:
                return earlier
            earlier = candidate
        raise KeyError(point)

    def since(self, point: int) -> TableUpdate | None:
        """Everything from ``point`` to now as one update, None when ``point`` is the head."""
        if point == self._head:
            return None
        found = self._since.get(point)
        if found is not None:
            return found
        branch = self._branches.get(point)
        if branch is not None:
            later = self.since(branch.base)
            known = branch.update if later is None else coalesce(branch.update, later)
            self._since[point] = known
            return known
        return self._since_point(point)

    def updates_since(self, point: int) -> list[TableUpdate]:
        """What :meth:`since` merges, in order; for an occupied point or branch behind the head."""
        branch = self._branches.get(point)
        found = [] if branch is None else [branch.update]
        base = point if branch is None else branch.base
        for serial, at in self._points.items():
            if serial >= base:
                found += at.updates
        return found

    def since_nbytes(self, point: int) -> tuple[int, int]:
        """Bytes of the row sets that lead from an occupied point or branch to now, and of those
        that :meth:`since` has to go through to merge them."""
        branch = self._branches.get(point)
        base = point if branch is None else branch.base
        led, merged = 0, 0
        for serial in reversed(self._points):
            if serial < base:
                break
            at = self._points[serial]
            known = self._since.get(serial)
            if known is not None:
                led, merged = known.resident_bytes(), 0
            elif at.updates:
                merged += at.nbytes * (len(at.updates).bit_length() - 1)
                merged += led + at.nbytes if led else 0
                led += at.nbytes
        if branch is not None and point not in self._since:
            merged += led + branch.nbytes if led else 0
            led += branch.nbytes
        return led, merged

    def _since_point(self, point: int) -> TableUpdate:
        later: TableUpdate | None = None
        for serial in reversed(self._points):
            if serial == self._head:
                continue
            known = self._since.get(serial)
            if known is None:
                at = self._points[serial]
                self._nbytes -= at.nbytes
                merged = at.fold()
                self._nbytes += at.nbytes
                known = merged if later is None else coalesce(merged, later)
                self._since[serial] = known
            later = known
            if serial == point:
                return known
        raise KeyError(point)

    def validate(self) -> None:
        """Check the invariants; for tests and simulation."""
        serials = list(self._points)
        counted = self._nbytes
        self._recount()
        assert counted == self._nbytes
        assert self._oldest is None or self._oldest.point == serials[0] != self._head
        if self._oldest is not None:
            # Without keys_at(), which merges what is kept: then it is fewer bytes than was told.
            led = coalesce_all(self.updates_since(serials[0]))
            assert self._oldest.rows() == led.keys_before(self._keys)
        assert self._points[self._head].size == self._keys.size
        assert serials == sorted(serials)
        assert serials[-1] == self._head
        for branch in self._branches.values():
            assert branch.readers > 0
            assert self._points[branch.base].readers > 0
        for serial, point in self._points.items():
            assert bool(point.updates) == (serial != self._head)
            assert point.nbytes == sum(update.resident_bytes() for update in point.updates)
            assert point.readers > 0 or serial == self._head
