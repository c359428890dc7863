"""What changed in one table since each point at which some subscriber still stands.

A *point* is the state of the table between two recorded updates; subscribers stand at points and
are counted there. Between two neighbouring points lies a *segment*: the updates that lead from one
to the other, merged into one when somebody asks. Where nobody stands there is no point, so the log
holds at most one segment per occupied point, whatever the number of recorded updates.

A *branch* leads from a state off this line to a point on it, and stands for a subscriber that came
back with the rows of an older version: whoever stands on it lacks its update and then all since the
point. It keeps the point occupied. Branches have numbers below every point's.

Cost: row sets only, never values. Recording is O(1) until a segment has collected ``FOLD_EVERY``
updates, then one coalescing. :meth:`DeltaLog.since` coalesces from the newest segment backwards and
remembers every result until the next record, so all points together cost one coalescing per
segment.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from barrage.model.coalesce import coalesce

if TYPE_CHECKING:
    from barrage.model.update import TableUpdate
    from barrage.rowset import RowSet

FOLD_EVERY = 8
"""Updates a segment collects before they are merged: bounds memory, and keeps the cost of a long
wait linear."""


@dataclass(slots=True)
class _Point:
    """A state of the table. ``updates`` lead from here to the next point; the newest point has
    none."""

    keys: RowSet
    standing: int = 0
    updates: list[TableUpdate] = field(default_factory=list)

    def fold(self) -> TableUpdate:
        merged = self.updates[0]
        for update in self.updates[1:]:
            merged = coalesce(merged, update)
        self.updates = [merged]
        return merged


@dataclass(slots=True)
class _Branch:
    """``update`` leads from a table with ``keys`` to the point ``base``."""

    keys: RowSet
    update: TableUpdate
    base: int
    standing: int = 0


BRANCH_FIRST = -2
"""Number of the first branch; later ones count down."""


class DeltaLog:
    """Points in ascending order of their serial number; the last one, :attr:`head`, is the table as
    it is now.

    Invariants: every point but the head has at least one subscriber and a non-empty segment.
    """

    def __init__(self, keys: RowSet) -> None:
        self._head = 0
        self._points: dict[int, _Point] = {0: _Point(keys)}
        self._branches: dict[int, _Branch] = {}
        self._branch_next = BRANCH_FIRST
        self._since: dict[int, TableUpdate] = {}

    @property
    def head(self) -> int:
        """Serial number of the newest point."""
        return self._head

    @property
    def point_count(self) -> int:
        """Distinct points and branches at which subscribers wait or can join."""
        return len(self._points) + len(self._branches)

    def keys_at(self, point: int) -> RowSet:
        """Row keys of the table at an occupied point or branch."""
        branch = self._branches.get(point)
        return self._points[point].keys if branch is None else branch.keys

    @property
    def standing_count(self) -> int:
        """Subscribers at all points together."""
        at_points = sum(point.standing for point in self._points.values())
        at_branches = sum(branch.standing for branch in self._branches.values())
        return at_points - len(self._branches) + at_branches

    def points(self) -> list[int]:
        """All branches and points, oldest first; the last one is the head."""
        return [*self._branches, *self._points]

    def record(self, update: TableUpdate, keys: RowSet) -> None:
        """Add an update that leads to a table with ``keys``."""
        self._since.clear()
        previous = self._points[self._head]
        if previous.standing:
            previous.updates.append(update)
        else:
            del self._points[self._head]
            if self._points:
                self._extend(next(reversed(self._points.values())), update)
        self._head += 1
        self._points[self._head] = _Point(keys)

    @staticmethod
    def _extend(point: _Point, update: TableUpdate) -> None:
        point.updates.append(update)
        if len(point.updates) >= FOLD_EVERY:
            point.fold()

    def join(self, count: int = 1) -> int:
        """Let ``count`` subscribers stand at the head; returns the head."""
        self._points[self._head].standing += count
        return self._head

    def branch(self, keys: RowSet, update: TableUpdate) -> int:
        """Let one subscriber stand at a table with ``keys``, from which ``update`` leads to the
        head; returns the branch."""
        number = self._branch_next
        self._branch_next -= 1
        self._branches[number] = _Branch(keys, update, self.join(), standing=1)
        return number

    def join_branch(self, number: int, count: int = 1) -> None:
        """Let ``count`` more subscribers stand at a branch; KeyError when there is none."""
        self._branches[number].standing += count

    def leave(self, point: int, count: int = 1) -> None:
        """Let ``count`` subscribers of ``point`` go. A point nobody stands at merges into the one
        before, and a branch is forgotten."""
        branch = self._branches.get(point)
        at = self._points[point] if branch is None else branch
        if at.standing < count:
            raise ValueError(f"{count} subscribers leave point {point}, where {at.standing} stand")
        at.standing -= count
        if at.standing or point == self._head:
            return
        if branch is not None:
            del self._branches[point]
            self._since.pop(point, None)
            self.leave(branch.base)
            return
        self._merge_back(point, self._points[point])

    def _merge_back(self, point: int, at: _Point) -> None:
        before = self._before(point)
        del self._points[point]
        self._since.pop(point, None)
        if before is not None:
            before.updates += at.updates
            if len(before.updates) >= FOLD_EVERY:
                before.fold()

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

    def _since_point(self, point: int) -> TableUpdate:
        later: TableUpdate | None = None
        for serial in reversed(self._points):
            if serial == self._head:
                continue
            known = self._since.get(serial)
            if known is None:
                merged = self._points[serial].fold()
                known = merged if later is None else coalesce(merged, later)
                self._since[serial] = known
            later = known
            if serial == point:
                return known
        raise KeyError(point)

    def validate(self) -> None:
        """Check the invariants; for tests and simulation."""
        serials = list(self._points)
        assert serials == sorted(serials)
        assert serials[-1] == self._head
        for branch in self._branches.values():
            assert branch.standing > 0
            assert self._points[branch.base].standing > 0
        for serial, point in self._points.items():
            assert bool(point.updates) == (serial != self._head)
            assert point.standing > 0 or serial == self._head
