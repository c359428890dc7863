"""What is left of a range of history when only its two ends count.

For each row that changed in (a, b]: whether it lived at ``a`` tells its first change (-R and -C:
yes, +A: no), whether it lives at ``b`` its last. So

* lived and lives: update with the cells of ``b``, before it (on request) with those of ``a``;
* lived, does not live: delete with the cells of ``a``;
* did not live, lives: insert with the cells of ``b``;
* neither: nothing.

The version is that of the row's last change. An update may have come back to where it began; it is
still told, as nobody compares cells. With a filter the row is looked at as it was at ``a`` and as
it is at ``b``: whether it passes takes the place of whether it lived.

Two passes: the first over ops and row ids only, which finds the place of each row's first and
last change; the second gathers the cells from these places, part by part. So memory is that of the
numbers, about 100 bytes a change, and the cells stay where they were recorded. Rows come out in
the order of the places their cells were taken from; with a preimage the two rows of an update may
be apart.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from barrage.errors import LimitExceededError
from barrage.journal.change_feed.feed_parts import HISTORY_COLUMNS, name_lists, parts_of
from barrage.journal.change_feed.feed_rows import as_mask
from barrage.journal.change_feed.feed_schema import DELETE, INSERT, POSTIMAGE, PREIMAGE
from barrage.journal.records.record import OP_ADD, OP_AFTER, OP_BEFORE, OP_REMOVE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import numpy.typing as npt

    from barrage.journal.change_feed.feed_parts import Part
    from barrage.journal.change_feed.feed_rows import FeedRows
    from barrage.journal.change_feed.feed_schema import FeedOptions
    from barrage.journal.records.record import Entry
    from barrage.rowset.arrays import BoolArray, Int64Array

NET_ROWS_MAX: Final = 100_000_000
"""Most rows of history one net range may have: their numbers are in memory at a time."""


def net_rows(
    entries: Iterable[Entry],
    schema: pa.Schema,
    options: FeedOptions,
    *,
    changes: Callable[[Part], FeedRows],
) -> Iterator[FeedRows]:
    """The net changes of ``entries``; LimitExceededError when the range has too many rows.

    ``changes`` gives all changes of a part.
    """
    parts = list(bounded(parts_of(entries)))
    if all(piece.recorded.is_added for part in parts for piece in part.slices):
        # Nothing that came before is touched: each row is its own last change.
        yield from (changes(part) for part in parts)
        return
    ends = ChangeEnds.of(parts, options.chooser())
    matches = None
    if options.predicate is not None:
        matches = _matches(parts, ends, options.predicate, column_count=len(schema))
    net = ends.net(matches, has_preimage=options.preimage)
    wanted = options.indices(schema)
    names = pa.array([schema.field(index).name for index in wanted], pa.string())
    keys = _keys_at(parts, ends.lasts) if options.row_key else None
    modified = _modified(parts, ends, net, indices=wanted) if options.modified_columns else None
    start = 0
    for part in parts:
        low, high = np.searchsorted(net.places, (start, start + len(part)))
        if low < high:
            rows = part.feed_rows(schema, wanted, row_key=False, modified=None)
            changed = net.rows[low:high]
            yield replace(
                rows.taken(net.places[low:high] - start),
                codes=net.codes[low:high],
                versions=ends.versions[changed],
                micros=ends.micros[changed],
                keys=None if keys is None else keys[changed],
                modified=None
                if modified is None
                else name_lists(names, modified, net.updates[low:high]),
            )
        start += len(part)


def bounded(parts: Iterable[Part]) -> Iterator[Part]:
    """The same parts; LimitExceededError when they have too many rows."""
    count = 0
    for part in parts:
        count += len(part)
        if count > NET_ROWS_MAX:
            raise LimitExceededError(
                "a range of net changes", actual=count, maximum=NET_ROWS_MAX, unit="history rows"
            )
        yield part


@dataclass(frozen=True, slots=True)
class _Net:
    """The rows to tell, in the order of the places where their cells are."""

    places: Int64Array
    codes: npt.NDArray[np.int8]
    rows: Int64Array
    """Number of the changed row."""
    updates: Int64Array
    """Number among the rows that are told as updates; -1 for others."""
    is_update: BoolArray
    """By changed row."""


@dataclass(frozen=True, slots=True)
class ChangeEnds:
    """Of each changed row, ascending by id, the place of its first and of its last change among all
    rows of the range."""

    ids: Int64Array
    firsts: Int64Array
    lasts: Int64Array
    lived: BoolArray
    lives: BoolArray
    versions: Int64Array
    """Of the last change."""
    micros: Int64Array

    @classmethod
    def of(cls, parts: list[Part], chooser: Callable[[Int64Array], BoolArray] | None) -> ChangeEnds:
        """``chooser`` says which row ids count; None is all."""
        blocks = [part.rows(()) for part in parts]
        ops = np.concatenate([np.zeros(0, np.int8), *(b.column(0).to_numpy() for b in blocks)])
        ids = np.concatenate([np.zeros(0, np.int64), *(b.column(1).to_numpy() for b in blocks)])
        places = np.arange(len(ids), dtype=np.int64)
        if chooser is not None:
            places = np.flatnonzero(chooser(ids))
            ids = ids[places]
        firsts = lasts = places
        # Rows that were only added are in order, each once.
        if not bool((ids[1:] > ids[:-1]).all()):
            order = np.argsort(ids, kind="stable")
            ids, places = ids[order], places[order]
            is_first = np.ones(len(ids), dtype=np.bool_)
            is_first[1:] = ids[1:] != ids[:-1]
            firsts, lasts = places[is_first], places[np.roll(is_first, -1)]
            ids = ids[is_first]
        slices = [piece for part in parts for piece in part.slices]
        stops = np.cumsum([len(piece) for piece in slices])
        cycles = np.searchsorted(stops, lasts, side="right")
        steps = np.array([piece.recorded.entry.step for piece in slices], dtype=np.int64)
        micros = np.array([piece.recorded.wall_micros for piece in slices], dtype=np.int64)
        return cls(
            ids=ids,
            firsts=firsts,
            lasts=lasts,
            lived=_is_one_of(ops[firsts], (OP_REMOVE, OP_BEFORE)),
            lives=_is_one_of(ops[lasts], (OP_ADD, OP_AFTER)),
            versions=steps[cycles],
            micros=micros[cycles],
        )

    def known(self, ids: Int64Array) -> tuple[Int64Array, BoolArray]:
        """Which of ``ids`` are among the changed rows, and the numbers of those that are."""
        at = np.searchsorted(self.ids, ids)
        is_known = at < len(self.ids)
        is_known[is_known] = self.ids[at[is_known]] == ids[is_known]
        return at[is_known], is_known

    def net(self, matches: BoolArray | None, *, has_preimage: bool) -> _Net:
        """``matches``: which places pass the filter; None is all."""
        was, now = self.lived, self.lives
        if matches is not None:
            was, now = was & matches[self.firsts], now & matches[self.lasts]
        is_update = was & now
        groups = [
            (was & ~now, self.firsts, DELETE),
            (now & ~was, self.lasts, INSERT),
            (is_update, self.lasts, POSTIMAGE),
        ]
        if has_preimage:
            groups.append((is_update, self.firsts, PREIMAGE))
        rows = np.concatenate([np.flatnonzero(chosen) for chosen, _, _ in groups])
        places = np.concatenate([at[chosen] for chosen, at, _ in groups])
        codes = np.concatenate(
            [np.full(np.count_nonzero(chosen), code, np.int8) for chosen, _, code in groups]
        )
        order = np.argsort(places, kind="stable")
        rows = rows[order]
        updates = np.where(is_update, np.cumsum(is_update) - 1, -1)[rows]
        return _Net(places[order], codes[order], rows, updates, is_update)


def _is_one_of(ops: npt.NDArray[np.int8], two: tuple[int, int]) -> BoolArray:
    found: BoolArray = (ops == two[0]) | (ops == two[1])
    return found


def _matches(
    parts: list[Part],
    ends: ChangeEnds,
    predicate: Callable[[pa.RecordBatch], Any],
    *,
    column_count: int,
) -> BoolArray:
    """Which places pass the filter; only those that are asked for are evaluated."""
    asked = np.union1d(ends.firsts[ends.lived], ends.lasts[ends.lives])
    matches = np.zeros(sum(map(len, parts)), dtype=np.bool_)
    start = 0
    for part in parts:
        low, high = np.searchsorted(asked, (start, start + len(part)))
        if low < high:
            places = asked[low:high]
            rows = part.rows(range(column_count)).take(pa.array(places - start))
            cells = rows.select(range(HISTORY_COLUMNS, rows.num_columns))
            matches[places] = as_mask(predicate(cells), len(places))
        start += len(part)
    return matches


def _keys_at(parts: list[Part], places: Int64Array) -> Int64Array:
    """The row keys of the changes at ``places``, in any order."""
    order = np.argsort(places)
    ascending = places[order]
    keys = np.empty(len(places), dtype=np.int64)
    start = 0
    for piece in (piece for part in parts for piece in part.slices):
        low, high = np.searchsorted(ascending, (start, start + len(piece)))
        if low < high:
            keys[order[low:high]] = piece.row_keys()[ascending[low:high] - start]
        start += len(piece)
    return keys


def _modified(parts: list[Part], ends: ChangeEnds, net: _Net, *, indices: list[int]) -> BoolArray:
    """Which columns changed in any cycle of the range: shape (updated rows, columns)."""
    numbers = np.cumsum(net.is_update) - 1
    matrix = np.zeros((np.count_nonzero(net.is_update), len(indices)), dtype=np.bool_)
    for piece in (piece for part in parts for piece in part.slices):
        begin, changed = piece.modified(indices)
        ids = piece.rows.column(1).to_numpy()[begin : begin + 2 * len(changed) : 2]
        rows, is_known = ends.known(ids)
        is_told = net.is_update[rows]
        # A row is in a cycle once, so no number is twice in one piece.
        matrix[numbers[rows[is_told]]] |= changed[is_known][is_told]
    return matrix
