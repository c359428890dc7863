"""Merging updates: what changed between the first step's beginning and the last step's end.

Row sets only, no values: modified and added cells are read when the merged update is sent. The
rules are those of barrage-wire.md section 11.1. With u1 then u2, and keys written before u1 (pre),
between (mid), after u2 (post):

* removed (pre) = u1's removed, and u2's removed that u1 did not add, moved back to pre;
* added (post) = what u1 added and u2 kept, moved to post, and u2's added;
* a row removed by u1 and another added later under the same key stay in both sets;
* a row added by u1 and removed by u2 is in neither;
* modified (post) = u1's modified that u2 kept, moved to post, and u2's modified, less added rows;
* shifts are composed.

Worked example: u1 adds 5 and modifies 7; u2 removes 7, shifts 5 by +10 and modifies 15. Merged:
removed 7, added 15, nothing modified; the shift has no surviving row but stays, it does no harm.

Shifts of the inputs must be well formed: no row that stays lies between a shift's range and its
destination, nor inside the destination. Updates that keep the order of rows and whose shifts each
move a row are.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Generic, TypeVar

from barrage.model.update import TableUpdate

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from barrage.rowset import RowSet


def coalesce(first: TableUpdate, second: TableUpdate) -> TableUpdate:
    """One update with the effect of ``first`` followed by ``second``.

    ValueError if the two are for different numbers of columns.
    """
    removed_mid = second.removed_keys_pre
    removed_pre = first.removed_keys_pre | first.shifts.unapply(removed_mid - first.added_keys_post)
    kept_added = second.shifts.apply(first.added_keys_post - removed_mid)
    added_post = kept_added | second.added_keys_post

    def moved(early_mid: RowSet) -> RowSet:
        return second.shifts.apply(early_mid - removed_mid)

    def merge_modified(pair: tuple[RowSet, RowSet]) -> RowSet:
        early_mid, late_post = pair
        return (moved_once(early_mid) | late_post) - added_post

    moved_once, merged_once = _Once(moved), _Once(merge_modified)
    pairs = zip(first.modified_keys_post, second.modified_keys_post, strict=True)
    return TableUpdate(
        first_step=first.first_step,
        last_step=second.last_step,
        removed_keys_pre=removed_pre,
        shifts=first.shifts.then(second.shifts),
        added_keys_post=added_post,
        modified_keys_post=tuple(merged_once(pair) for pair in pairs),
    )


Argument = TypeVar("Argument", bound=Hashable)


def coalesce_all(updates: Sequence[TableUpdate]) -> TableUpdate:
    """Consecutive updates, at least one, as one. Neighbours first, so that each of them takes part
    in few merges."""
    level = list(updates)
    while len(level) > 1:
        pairs = [coalesce(level[i], level[i + 1]) for i in range(0, len(level) - 1, 2)]
        level = pairs + level[len(pairs) * 2 :]
    return level[0]


class _Once(Generic[Argument]):
    """``change`` computed once for equal arguments; equal results are one object.

    Most columns of an update share one set, and the merged ones are to share it again: otherwise
    the cost and the memory of a segment grow with the columns of the table.
    """

    __slots__ = ("_change", "_known", "_results")

    def __init__(self, change: Callable[[Argument], RowSet]) -> None:
        self._change = change
        self._known: dict[Argument, RowSet] = {}
        self._results: dict[RowSet, RowSet] = {}

    def __call__(self, argument: Argument) -> RowSet:
        found = self._known.get(argument)
        if found is None:
            made = self._change(argument)
            found = self._known[argument] = self._results.setdefault(made, made)
        return found
