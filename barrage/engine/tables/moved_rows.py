"""Row sets and shifts as sources and operators need them: from moved rows, and the same work done
only once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from barrage.rowset import RowSet, RowSetShiftData

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from barrage.model.update import TableUpdate
    from barrage.rowset.arrays import Int64Array


def each_once(sets: Iterable[RowSet], change: Callable[[RowSet], RowSet]) -> tuple[RowSet, ...]:
    """``change`` of every set, computed once per distinct object.

    The columns of an update mostly share one set, and the results stay shared for whoever comes
    next.
    """
    known: dict[int, tuple[RowSet, RowSet]] = {}
    results = []
    for rows in sets:
        if id(rows) not in known:
            # The set is kept next to its result so that its identity cannot be reused meanwhile.
            known[id(rows)] = (rows, rows if rows.is_empty else change(rows))
        results.append(known[id(rows)][1])
    return tuple(results)


def union_of(sets: Iterable[RowSet]) -> RowSet:
    """The union; sets that are one object are taken once."""
    union = RowSet.empty()
    for rows in {id(rows): rows for rows in sets}.values():
        union = rows if union.is_empty else union | rows
    return union


def changed_rows(update: TableUpdate) -> int:
    """Rows an operator looks at when it goes through an update."""
    return (
        len(update.removed_keys_pre)
        + len(update.added_keys_post)
        + len(union_of(update.modified_keys_post))
    )


def packing_shifts(live: RowSet, kept: RowSet, *, first: int = 0) -> RowSetShiftData:
    """The shifts that move ``kept`` (a subset of ``live``) when the k-th key of ``live`` becomes
    ``first`` + k.

    Example: live 2,3,7 with 7 new and 2,3 kept gives one shift, [2,3] by -2.
    """
    firsts, lasts = kept.range_list
    deltas = first + live.rank_many(firsts) - firsts
    moved = deltas != 0
    return RowSetShiftData.from_arrays(firsts[moved], lasts[moved], deltas[moved])


def moves_to_shifts(
    was: Int64Array, now: Int64Array, places: Int64Array | None = None
) -> RowSetShiftData:
    """Shifts for rows that move from keys ``was`` to ``now`` (both ascending), runs of one delta
    joined.

    Rows in between that do not exist may be covered by a run; rows that exist are all in ``was``,
    so a run never covers a row that moves differently. Or ``places`` says where the rows stand
    among all: then a run ends where one is left out.
    """
    return runs_to_shifts(was, was, now=now, places=places)


def runs_to_shifts(
    firsts: Int64Array, lasts: Int64Array, *, now: Int64Array, places: Int64Array | None = None
) -> RowSetShiftData:
    """The same for runs of rows that follow each other, each of which moves as a whole: from the
    keys ``firsts`` to ``lasts`` to those from ``now`` on."""
    deltas = now - firsts
    if len(deltas) == 0:
        return RowSetShiftData.empty()
    is_start = np.ones(len(deltas), dtype=np.bool_)
    is_start[1:] = deltas[1:] != deltas[:-1]
    if places is not None:
        is_start[1:] |= places[1:] != places[:-1] + 1
    starts = np.flatnonzero(is_start)
    stops = np.concatenate((starts[1:], [len(deltas)]))
    run_deltas = deltas[starts]
    moved = run_deltas != 0
    return RowSetShiftData.from_arrays(
        firsts[starts[moved]], lasts[stops[moved] - 1], run_deltas[moved]
    )


def closing_shifts(was: RowSet, now: RowSet) -> RowSetShiftData:
    """The shifts that move the rows at positions ``was`` to as many positions ``now``, in order.

    Example: was 0-1, 3-9 (row 2 removed) and now 0-4, 6-9 (a row inserted at 5): the rows 3-5 move
    by -1, the others stay. Both lists of ranges are cut where either has a gap; each piece moves as
    a whole.
    """
    if was.is_empty or (was.range_count == 1 and was == now):
        return RowSetShiftData.empty()
    cuts = merged_keys(was.rank_many(was.firsts), now.rank_many(now.firsts))
    lengths = np.diff(np.append(cuts, len(was)))
    firsts = was.select_many(cuts)
    deltas = now.select_many(cuts) - firsts
    moved = deltas != 0
    return RowSetShiftData.from_arrays(firsts[moved], (firsts + lengths - 1)[moved], deltas[moved])


def merged_keys(left: Int64Array, right: Int64Array) -> Int64Array:
    """The numbers in either of two ascending arrays, each once. Two runs are merged by a stable
    sort in linear time; ``union1d`` hashes them first."""
    both = np.concatenate((left, right))
    both.sort(kind="stable")
    is_first = np.ones(len(both), dtype=np.bool_)
    is_first[1:] = both[1:] != both[:-1]
    return np.asarray(both[is_first])
