"""Naive whole-table recomputation: what operators must show, and what an update must have said.

Rows are plain tuples of Python values in a canonical form, so that NaN equals NaN and 1 differs
from 1.0.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import math
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from barrage.rowset import RowSet

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from barrage.engine import Table
    from barrage.model.update import TableUpdate

Row = dict[str, Any]
Content = dict[int, tuple[str, ...]]


def canonical(value: Any) -> str:
    """A text that is equal exactly for cells that hold the same bits (NaN payloads aside)."""
    return repr(value)


def content_of(table: Table) -> Content:
    """Row key -> canonical cells."""
    columns = [column.to_pylist() for column in table.read(table.row_keys)]
    keys = table.row_keys.to_numpy().tolist()
    assert all(len(column) == len(keys) for column in columns)
    return {
        key: tuple(canonical(column[row]) for column in columns) for row, key in enumerate(keys)
    }


def rows_of(table: Table) -> list[Row]:
    """Rows in row order, as Python values."""
    rows: list[Row] = table.to_arrow().to_pylist()
    return rows


def shown(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """Rows in canonical form."""
    return [tuple(canonical(value) for value in row.values()) for row in rows]


def check_update(before: Content, update: TableUpdate, after: Content) -> None:
    """Every rule a TableUpdate must keep, and that applying it to ``before`` gives ``after``."""
    removed = update.removed_keys_pre.to_numpy().tolist()
    assert set(removed) <= set(before), "removed rows existed"
    gone = set(removed)
    kept = {key: cells for key, cells in before.items() if key not in gone}
    moved = _shift(kept, update)
    added = set(update.added_keys_post.to_numpy().tolist())
    assert not added & set(moved), "added rows are disjoint from kept rows"
    assert set(moved) | added == set(after), "the keys are those of the new content"
    for column, keys in enumerate(update.modified_keys_post):
        modified = set(keys.to_numpy().tolist())
        assert modified <= set(moved), "only kept rows are modified"
        for key, cells in moved.items():
            if key not in modified:
                assert cells[column] == after[key][column], "every changed cell was named"


def _shift(kept: Content, update: TableUpdate) -> Content:
    shifts = list(update.shifts)
    for earlier, later in itertools.pairwise(shifts):
        assert earlier.last < later.first, "shifts ascend before"
        assert earlier.last + earlier.delta < later.first + later.delta, "shifts ascend after"
    assert all(shift.delta for shift in shifts), "every shift moves"
    firsts = [shift.first for shift in shifts]
    moved: Content = {}
    for key, cells in kept.items():
        target = key
        index = bisect.bisect_right(firsts, key) - 1
        if index >= 0 and key <= shifts[index].last:
            target = key + shifts[index].delta
        assert target not in moved, "no two rows end under one key"
        moved[target] = cells
    assert [moved[key] for key in sorted(moved)] == [kept[key] for key in sorted(kept)], (
        "shifts keep the order of rows"
    )
    return moved


def check_exact(before: Content, update: TableUpdate, after: Content) -> None:
    """Modified sets of a source hold only cells that really changed."""
    origin = {
        int(update.shifts.apply(RowSet([key])).first): cells
        for key, cells in before.items()
        if key not in update.removed_keys_pre
    }
    for column, keys in enumerate(update.modified_keys_post):
        for key in keys:
            assert origin[key][column] != after[key][column], "a modified cell changed"


def sort_rows(rows: Sequence[Row], keys: Sequence[tuple[str, bool, bool]]) -> list[Row]:
    """Stable sort by (column, is_descending, has_nulls_first)."""
    return sorted(rows, key=functools.cmp_to_key(functools.partial(_compare, keys=keys)))


def _compare(left: Row, right: Row, *, keys: Sequence[tuple[str, bool, bool]]) -> int:
    for column, is_descending, has_nulls_first in keys:
        a, b = left[column], right[column]
        outward = -1 if has_nulls_first else 1
        a_class, b_class = _class_of(a) * outward, _class_of(b) * outward
        if a_class != b_class:
            return -1 if a_class < b_class else 1
        if a_class == 0 and a != b:
            return (-1 if a < b else 1) * (-1 if is_descending else 1)
    return 0


def _class_of(value: Any) -> int:
    if value is None:
        return 2
    return 1 if isinstance(value, float) and math.isnan(value) else 0


def where_rows(rows: Sequence[Row], condition: Callable[[Row], bool | None]) -> list[Row]:
    """Rows for which the condition is true."""
    return [row for row in rows if condition(row) is True]


def last_rows(rows: Sequence[Row], columns: Sequence[str]) -> list[Row]:
    """The last row of each group."""
    return [group[-1] for group in groups_of(rows, columns)]


def end_rows(rows: Sequence[Row], count: int, by: Sequence[str], *, is_from_end: bool) -> list[Row]:
    """The rows that have fewer than ``count`` rows of their group on one side of them."""
    places: dict[int, int] = {}
    for group in groups_of(rows, by):
        for place, row in enumerate(reversed(group) if is_from_end else group):
            places[id(row)] = place
    return [row for row in rows if places[id(row)] < count]


def running_rows(rows: Sequence[Row], by: Sequence[str], formulas: Mapping[str, str]) -> list[Row]:
    """All rows with running values, one row of a group after another."""
    shown: dict[int, Row] = {}
    for group in groups_of(rows, by):
        last: Row = dict.fromkeys(formulas)
        for row in group:
            last = {name: _next(text, last[name], row) for name, text in formulas.items()}
            shown[id(row)] = last
    return [{**row, **shown[id(row)]} for row in rows]


def _next(text: str, last: Any, row: Row) -> Any:
    function, _, inside = text.removesuffix(")").partition("(")
    column, _, ticks = inside.partition(", ")
    cell = row[column]
    if cell is None or (ticks and isinstance(cell, float) and math.isnan(cell)):
        return last
    if function == "cum_sum":
        return cell if last is None else last + cell
    if last is None:
        return float(cell)
    decay = math.exp(-1 / float(ticks))
    return decay * last + (1 - decay) * cell


def ungroup_rows(rows: Sequence[Row], columns: Sequence[str]) -> list[Row]:
    """A row for each place in the lists of ``columns``."""
    return [
        {**row, **{name: row[name][place] for name in columns}}
        for row in rows
        for place in range(len(row[columns[0]] or ()))
    ]


def key_cell(value: Any) -> Any:
    """A cell as part of a key: -0.0 is 0.0."""
    return 0.0 if isinstance(value, float) and value == 0 else value


def slice_of(rows: Sequence[Row], start: int, stop: int) -> list[Row]:
    """Rows from ``start`` to ``stop``; negative positions, and 0 after one, count from the end."""
    if start < 0 and stop == 0:
        stop = len(rows)
    first = max(0, start + len(rows)) if start < 0 else start
    last = max(0, stop + len(rows)) if stop < 0 else stop
    return list(rows[first:last])


def join_rows(
    left: Sequence[Row],
    right: Sequence[Row],
    on: Sequence[tuple[str, str]],
    add: Sequence[tuple[str, str]],
) -> list[Row] | None:
    """Each left row with the added cells of the right row of equal key, null when there is none;
    None when two right rows have one key. Pairs are (left or new name, right name)."""
    by_key = {tuple(canonical(key_cell(row[name])) for _, name in on): row for row in right}
    if len(by_key) < len(right):
        return None
    joined = []
    for row in left:
        match = by_key.get(tuple(canonical(key_cell(row[name])) for name, _ in on), {})
        joined.append({**row, **{new: match.get(source) for new, source in add}})
    return joined


def groups_of(rows: Sequence[Row], by: Sequence[str]) -> list[list[Row]]:
    """The rows of each combination of cells, in order of first appearance."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        key = tuple(canonical(key_cell(row[column])) for column in by)
        groups.setdefault(key, []).append(row)
    return list(groups.values())


def distinct_rows(rows: Sequence[Row], by: Sequence[str]) -> list[Row]:
    """Each combination of cells once."""
    return [{name: key_cell(group[0][name]) for name in by} for group in groups_of(rows, by)]


def aggregate_rows(
    rows: Sequence[Row], by: Sequence[str], aggregations: Mapping[str, str]
) -> list[Row]:
    """One row per group: the key cells and ``function(column)`` of its rows, computed exactly."""
    return [
        {
            **{name: key_cell(group[0][name]) for name in by},
            **{name: _aggregate(group, text) for name, text in aggregations.items()},
        }
        for group in groups_of(rows, by)
    ]


def _aggregate(group: Sequence[Row], text: str) -> Any:
    function, _, inside = text.removesuffix(")").partition("(")
    if not inside:
        return len(group)
    columns = inside.split(", ")
    cells = [tuple(row[column] for column in columns) for row in group]
    if function in ("first", "last"):
        return cells[0 if function == "first" else -1][0]
    present = [cell for cell in cells if None not in cell]
    if function == "count":
        return len(present)
    if not present:
        return None
    values = [cell[0] for cell in present]
    if function in ("wsum", "wavg"):
        total = exact_sum([value * weight for value, weight in present])
        if function == "wsum":
            return float(total)
        weights = exact_sum([weight for _, weight in present])
        return _quotient(total, weights)
    return _PLAIN_FUNCTIONS[function](values)


def exact_sum(values: Sequence[Any]) -> Any:
    """The rounded sum of exact cells; NaN and infinities as in any order."""
    special = [value for value in values if isinstance(value, float) and not math.isfinite(value)]
    if special:
        return sum(special)
    if any(isinstance(value, float) for value in values):
        return float(sum(map(Fraction, values)))
    return sum(values)


def _quotient(total: Any, count: Any) -> float:
    if count == 0:
        return math.nan if total == 0 or math.isnan(total) else math.copysign(math.inf, total)
    return float(total) / float(count)


def _variance(values: Sequence[Any]) -> float:
    if len(values) < 2 or not all(map(math.isfinite, values)):
        return math.nan
    exact = [Fraction(value) for value in values]
    mean = sum(exact) / len(exact)
    return float(sum((value - mean) ** 2 for value in exact) / (len(exact) - 1))


def _extreme(values: Sequence[Any], *, is_greatest: bool) -> Any:
    if any(isinstance(value, float) and math.isnan(value) for value in values):
        return math.nan
    chosen = max if is_greatest else min
    if isinstance(values[0], float):
        # -0.0 is below 0.0.
        return chosen(values, key=lambda value: (value, math.copysign(1, value)))
    return chosen(values)


_PLAIN_FUNCTIONS: Mapping[str, Callable[[Sequence[Any]], Any]] = {
    "sum": exact_sum,
    "abs_sum": lambda values: exact_sum([abs(value) for value in values]),
    "avg": lambda values: float(exact_sum(values)) / len(values),
    "min": functools.partial(_extreme, is_greatest=False),
    "max": functools.partial(_extreme, is_greatest=True),
    "var": _variance,
    "std": lambda values: math.sqrt(_variance(values)),
}


def rounded(rows: Sequence[Row]) -> list[Row]:
    """The rows with floating cells cut to nine digits, and zero without a sign."""
    return [
        {
            name: float(f"{cell:.9g}") + 0.0 if isinstance(cell, float) else cell
            for name, cell in row.items()
        }
        for row in rows
    ]
