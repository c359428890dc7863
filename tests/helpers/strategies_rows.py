"""Hypothesis strategies for row sets, shifts and histories of updates, each with a naive model.

Sets too large to list are modelled by *cells*: a few sorted break points cut the key space into
intervals, and a set is a choice of intervals, so that set algebra on indices is exact at any size.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import strategies as st

from barrage.model.update import TableUpdate
from barrage.rowset import RowSet, RowSetShiftData

KEY_STOP = 2**63
EDGES = (0, 1, 2, 126, 128, 32767, 2**31, 2**32 + 1, 2**62, KEY_STOP - 2, KEY_STOP - 1, KEY_STOP)

small_keys = st.integers(0, 40)
any_keys = st.one_of(
    st.integers(0, 300),
    st.integers(0, KEY_STOP - 1),
    st.integers(KEY_STOP - 300, KEY_STOP - 1),
    st.sampled_from([edge for edge in EDGES if edge < KEY_STOP]),
)


@st.composite
def key_sets(draw: st.DrawFn, *, members_max: int = 30) -> set[int]:
    """Few keys, dense at the bottom, dense at the top, or anywhere."""
    base = draw(st.sampled_from((0, KEY_STOP - 60, 2**32 - 30)))
    dense = draw(st.sets(st.integers(0, 59), max_size=members_max))
    loose = draw(st.sets(any_keys, max_size=6))
    return {base + key for key in dense} | loose


@dataclass(frozen=True)
class Cells:
    """Break points and which of the intervals between them are in the set."""

    breaks: tuple[int, ...]
    chosen: frozenset[int]

    def spans(self) -> list[tuple[int, int]]:
        """Half-open intervals, ascending; touching ones are not merged."""
        return [(self.breaks[i], self.breaks[i + 1]) for i in sorted(self.chosen)]

    def row_set(self) -> RowSet:
        spans = self.spans()
        return RowSet.from_ranges([start for start, _ in spans], [stop - 1 for _, stop in spans])

    def size(self) -> int:
        return sum(stop - start for start, stop in self.spans())

    def of(self, chosen: set[int] | frozenset[int]) -> Cells:
        return Cells(self.breaks, frozenset(chosen))


@st.composite
def cell_pairs(draw: st.DrawFn) -> tuple[Cells, Cells]:
    """Two sets over the same break points, sizes from 0 to 2^63."""
    breaks = sorted(
        draw(st.sets(st.sampled_from(EDGES), min_size=2))
        | draw(st.sets(st.integers(0, KEY_STOP), max_size=20))
    )
    indices = st.frozensets(st.integers(0, len(breaks) - 2))
    return Cells(tuple(breaks), draw(indices)), Cells(tuple(breaks), draw(indices))


@st.composite
def gap_row_sets(draw: st.DrawFn) -> RowSet:
    """Row sets whose deltas are drawn from the widths the codec distinguishes."""
    gaps = draw(
        st.lists(
            st.sampled_from((2, 3, 127, 128, 129, 32766, 32767, 32768, 2**31 - 1, 2**31, 2**40)),
            min_size=1,
            max_size=4,
        )
    )
    steps = draw(
        st.lists(st.tuples(st.sampled_from(gaps), st.sampled_from((0, *gaps))), max_size=60)
    )
    firsts, lasts, key = [], [], draw(st.sampled_from((-2, 0, 100, KEY_STOP - 2**48)))
    for gap, length in steps:
        firsts.append(key + gap)
        lasts.append(key + gap + length)
        key = lasts[-1]
    return RowSet.from_ranges(firsts, lasts)


@dataclass
class Rows:
    """A naive table: key -> (identity of the row, one value per column)."""

    cells: dict[int, tuple[int, tuple[int, ...]]] = field(default_factory=dict)

    @property
    def keys(self) -> RowSet:
        return RowSet(self.cells)

    def applied(self, update: TableUpdate, truth: Rows) -> Rows:
        """Remove, shift, add, modify; values of added and modified cells come from ``truth``."""
        kept = dict(self.cells)
        for key in update.removed_keys_pre:
            del kept[key]
        moved: dict[int, tuple[int, tuple[int, ...]]] = {}
        for key, row in kept.items():
            moves = [s.delta for s in update.shifts if s.first <= key <= s.last]
            assert len(moves) <= 1
            target = key + sum(moves)
            assert target not in moved, "two rows under one key"
            moved[target] = row
        for key in update.added_keys_post:
            assert key not in moved, "added where a row is"
            moved[key] = truth.cells[key]
        for column, modified in enumerate(update.modified_keys_post):
            for key in modified:
                assert key not in update.added_keys_post, "modified and added"
                identity, values = moved[key]
                new = list(values)
                new[column] = truth.cells[key][1][column]
                moved[key] = (identity, tuple(new))
        return Rows(moved)


COLUMNS = 2


@st.composite
def shifted_keys(
    draw: st.DrawFn, kept: list[int], *, key_stop: int
) -> tuple[list[int], RowSetShiftData]:
    """New keys for rows that keep their order, and shifts that say so.

    Runs of rows move together. Ranges may reach into the gaps around their rows, as far as no other
    row and no other range is touched before or after, and no key would leave the key space.
    """
    runs: list[tuple[list[int], int]] = []
    index, free_from = 0, 0
    while index < len(kept):
        run = kept[index : index + draw(st.integers(1, 4))]
        index += len(run)
        needed_behind = kept[-1] - run[0] + 1  # rows behind must still fit, wherever they go
        highest = key_stop - needed_behind
        options = [st.integers(free_from, highest)] if free_from <= highest else []
        if free_from <= run[0] <= highest:
            options += [st.just(run[0])] * 2
        target = draw(st.one_of(options))
        runs.append((run, target - run[0]))
        free_from = run[-1] + target - run[0] + 1
    new = [key + delta for run, delta in runs for key in run]
    shifts: list[tuple[int, int, int]] = []
    for number, (run, delta) in enumerate(runs):
        if delta == 0:
            continue
        before = runs[number - 1] if number else ([-1], 0)
        after = runs[number + 1] if number + 1 < len(runs) else ([key_stop], 0)
        low = max(before[0][-1], before[0][-1] + before[1] - delta, -1, -1 - delta) + 1
        if shifts:
            low = max(low, shifts[-1][1] + 1, shifts[-1][1] + shifts[-1][2] - delta + 1)
        high = min(after[0][0], after[0][0] + after[1] - delta, key_stop, key_stop - delta) - 1
        is_tight = draw(st.booleans())
        first = run[0] if is_tight else draw(st.integers(min(low, run[0]), run[0]))
        last = run[-1] if is_tight else draw(st.integers(run[-1], max(high, run[-1])))
        shifts.append((first, last, delta))
    return new, RowSetShiftData.from_shifts(shifts)


@st.composite
def histories(
    draw: st.DrawFn, *, steps_max: int = 4, has_shifts: bool = True
) -> tuple[list[Rows], list[TableUpdate]]:
    """A table's states, and the updates between them."""
    key_stop = draw(st.sampled_from((24, 60, KEY_STOP)))
    keys = st.integers(0, key_stop - 1) if key_stop < KEY_STOP else any_keys
    identity = iter(range(10**9))
    start = draw(st.sets(keys, max_size=12))
    states = [Rows({key: (next(identity), (0,) * COLUMNS) for key in sorted(start)})]
    updates = []
    for step in range(draw(st.integers(1, steps_max))):
        old = sorted(states[-1].cells)
        removed = draw(st.sets(st.sampled_from(old))) if old else set()
        kept = [key for key in old if key not in removed]
        new, shifts = kept, RowSetShiftData.empty()
        if has_shifts and draw(st.booleans()):
            new, shifts = draw(shifted_keys(kept, key_stop=key_stop))
        cells = {n: states[-1].cells[o] for o, n in zip(kept, new, strict=True)}
        added = {key for key in draw(st.sets(keys, max_size=4)) if key not in cells}
        modified = [draw(st.sets(st.sampled_from(new))) if new else set() for _ in range(COLUMNS)]
        for column, chosen in enumerate(modified):
            for key in chosen:
                row_identity, values = cells[key]
                changed = list(values)
                changed[column] = 100 * (step + 1) + column
                cells[key] = (row_identity, tuple(changed))
        cells |= {key: (next(identity), (-1,) * COLUMNS) for key in sorted(added)}
        states.append(Rows(cells))
        updates.append(
            TableUpdate(
                first_step=step,
                last_step=step,
                removed_keys_pre=RowSet(removed),
                shifts=shifts,
                added_keys_post=RowSet(added),
                modified_keys_post=tuple(RowSet(chosen) for chosen in modified),
            )
        )
    return states, updates
