"""The order of a sort: its keys, how cells compare, sorting rows and finding where rows belong.

Nulls stand together at the end or the beginning of their column's order, NaN next to them on the
inner side or at the opposite end, whatever the direction; 0.0 and -0.0 are equal. Rows equal in all
keys keep the order of the parent's row keys, so the order of any two rows is decided.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from barrage.engine.tables.cells import single_chunks
from barrage.errors import ExpressionError, near_miss
from barrage.model.storage.fixed import read_valid

if TYPE_CHECKING:
    from collections.abc import Sequence

    from barrage.engine.keys.ascending import Entries
    from barrage.engine.tables.table import Table

Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

SAMPLES_MIN = 256
"""At least so many rows that have their place are sorted with those that look for one."""

PROBES = 1024
"""Fewer rows than this are compared with several others in a round, together so many."""

PROBES_OF_ROW_MAX = 31

_DIRECTIONS = {"ascending": False, "asc": False, "descending": True, "desc": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class SortKey:
    """One column of a sort order."""

    column: str
    is_descending: bool = False
    has_nulls_first: bool = False
    has_nan_opposite: bool = False
    """NaN stands at the end where the nulls are not: it counts as the largest number when null
    counts as the smallest."""


def parse_sort_keys(
    schema: pa.Schema, keys: Sequence[str | tuple[str, str] | SortKey]
) -> tuple[SortKey, ...]:
    """Keys in their full form; ExpressionError for unknown columns, directions and types without
    order."""
    if not keys:
        raise ExpressionError("a sort needs at least one column")
    parsed = tuple(_parse_key(schema, key) for key in keys)
    for key in parsed:
        index = schema.get_field_index(key.column)
        if index < 0:
            hint = near_miss(key.column, schema.names)
            raise ExpressionError(f"unknown sort column {key.column!r}{hint}")
        if not _is_sortable(schema.field(index).type):
            raise ExpressionError(
                f"column {key.column!r} of type {schema.field(index).type} has no order"
            )
    return parsed


def _parse_key(schema: pa.Schema, key: str | tuple[str, str] | SortKey) -> SortKey:
    if isinstance(key, SortKey):
        return key
    if isinstance(key, str):
        if key.startswith("-") and key not in schema.names:
            return SortKey(column=key[1:], is_descending=True)
        return SortKey(column=key)
    name, direction = key
    if direction.lower() not in _DIRECTIONS:
        raise ExpressionError(
            f"unknown sort direction {direction!r} for column {name!r}; "
            "use 'ascending' or 'descending'"
        )
    return SortKey(column=name, is_descending=_DIRECTIONS[direction.lower()])


def _is_sortable(data_type: pa.DataType) -> bool:
    if pa.types.is_dictionary(data_type) or pa.types.is_run_end_encoded(data_type):
        return _is_sortable(data_type.value_type)
    if pa.types.is_nested(data_type) or pa.types.is_interval(data_type):
        return False
    return not pa.types.is_float16(data_type)


@dataclass(frozen=True, slots=True)
class _Comparable:
    """One sort column made comparable: no nulls, no NaN, larger class first decides.

    ``classes`` is None when every cell is an ordinary value. ``values`` is a numpy array for
    fixed-width types and an Arrow array for the others.
    """

    classes: npt.NDArray[np.int8] | None
    values: Any
    is_descending: bool


class SortOrder:
    """Compares rows of ``parent`` by ``keys``."""

    def __init__(self, parent: Table, keys: tuple[SortKey, ...]) -> None:
        self.parent = parent
        self._keys = keys
        indices = [parent.schema.get_field_index(key.column) for key in keys]
        self.columns: tuple[int, ...] = tuple(sorted(set(indices)))
        self._places = [self.columns.index(index) for index in indices]

    def _load(self, rows: Int64Array) -> list[_Comparable]:
        """The sort columns of the rows with these parent keys."""
        return self._comparables(self.parent.take_cells(rows, self.columns))

    def _comparables(self, cells: Sequence[pa.Array]) -> list[_Comparable]:
        return [
            _comparable(cells[place], key)
            for place, key in zip(self._places, self._keys, strict=True)
        ]

    def sorted_all(self) -> tuple[Int64Array, Int64Array]:
        """All parent keys, ascending, and their places there in sort order."""
        keys = self.parent.row_keys
        cells = single_chunks(self.parent.read_cells(keys, self.columns))
        return keys.to_numpy(), _sort(self._comparables(cells))

    def placed_among_all(self, rows: Int64Array) -> tuple[Int64Array, Int64Array]:
        """What :meth:`placed` gives, where the others are all others: everything is sorted."""
        keys, order = self.sorted_all()
        number = np.full(len(keys), -1)
        number[np.searchsorted(keys, rows)] = np.arange(len(rows))
        ordered = number[order]
        places = np.flatnonzero(ordered >= 0)
        return ordered[places], places - np.arange(len(places))

    def placed(self, rows: Int64Array, among: Entries) -> tuple[Int64Array, Int64Array]:
        """These parent keys (ascending) in sort order, as places in ``rows``, and how many of
        ``among`` (other parent keys, in sort order) come before each.

        The rows are sorted together with some of the others, evenly spread, which costs little
        more than sorting them alone: their cells are read in the order in which they lie. Between
        two of these a search goes on for all rows at once.
        """
        step = 1 << max((len(among) // max(len(rows), SAMPLES_MIN)).bit_length(), 1)
        samples = among[np.arange(step - 1, len(among), step)]
        both = np.concatenate((rows, np.sort(samples)))
        by_key = np.argsort(both, kind="stable")
        loaded = self._load(both[by_key])
        ordered = _sort(loaded)
        picks = by_key[ordered]
        is_row = picks < len(rows)
        picks = picks[is_row]
        low = np.cumsum(~is_row)[is_row] * step
        high = np.minimum(low + (step - 1), len(among))
        wanted = _taken(loaded, ordered[is_row])
        return picks, self._narrowed(wanted, rows[picks], among, low=low, high=high)

    def _narrowed(
        self,
        wanted: list[_Comparable],
        rows: Int64Array,
        among: Entries,
        *,
        low: Int64Array,
        high: Int64Array,
    ) -> Int64Array:
        """How many of ``among`` come before each of the rows, whose cells are ``wanted``: at least
        ``low``, at most ``high``.

        In each round a row is compared with one in the middle of what is left, few rows with
        several, evenly spread, since a round has a cost of its own.
        """
        found, at = low, np.arange(len(rows))
        while True:
            is_open = low < high
            if not is_open.all():
                found[at] = low
                still = np.flatnonzero(is_open)
                if not len(still):
                    return found
                wanted, rows, at = _taken(wanted, still), rows[still], at[still]
                low, high = low[still], high[still]
            low, high = self._compared(wanted, rows, among, low=low, high=high)

    def _compared(
        self,
        wanted: list[_Comparable],
        rows: Int64Array,
        among: Entries,
        *,
        low: Int64Array,
        high: Int64Array,
    ) -> tuple[Int64Array, Int64Array]:
        """Closer bounds after one round; every ``low`` is below its ``high``."""
        count = min(max(PROBES // len(rows), 1), PROBES_OF_ROW_MAX)
        probes = low[:, None] + (high - low)[:, None] * np.arange(1, count + 1) // (count + 1)
        keys = among[probes.ravel()]
        if count > 1:
            wanted = _taken(wanted, np.repeat(np.arange(len(rows)), count))
        is_before = _precedes(
            wanted, np.repeat(rows, count), right=self._load(keys), right_rows=keys
        )
        passed = count - is_before.reshape(-1, count).sum(axis=1)
        bounds = np.concatenate((low[:, None] - 1, probes, high[:, None]), axis=1)
        lines = np.arange(len(rows))
        return bounds[lines, passed] + 1, bounds[lines, passed + 1]


def _taken(columns: list[_Comparable], places: Int64Array) -> list[_Comparable]:
    """The cells at some places."""
    return [
        _Comparable(
            None if column.classes is None else column.classes[places],
            column.values[places]
            if isinstance(column.values, np.ndarray)
            else column.values.take(pa.array(places)),
            column.is_descending,
        )
        for column in columns
    ]


def _comparable(cells: pa.Array, key: SortKey) -> _Comparable:
    if pa.types.is_dictionary(cells.type):
        cells = cells.dictionary_decode()
    elif pa.types.is_run_end_encoded(cells.type):
        cells = pc.run_end_decode(cells)
    valid = read_valid(cells)
    if valid is not None:
        cells = pc.fill_null(cells, _filler(cells.type))
    values = _numbers(cells)
    nan = np.isnan(values) if values is not None and values.dtype.kind == "f" else None
    if nan is not None and not nan.any():
        nan = None
    classes: npt.NDArray[np.int8] | None = None
    if valid is not None or nan is not None:
        outward = -1 if key.has_nulls_first else 1
        classes = np.zeros(len(cells), dtype=np.int8)
        if nan is not None and values is not None:
            classes[nan] = -outward if key.has_nan_opposite else outward
            values = np.where(nan, 0, values)
        if valid is not None:
            classes[~valid] = 2 * outward
    return _Comparable(classes, cells if values is None else values, key.is_descending)


def _numbers(cells: pa.Array) -> npt.NDArray[Any] | None:
    """A numpy array that sorts as the cells do, or None for types numpy cannot compare."""
    data_type = cells.type
    if pa.types.is_boolean(data_type):
        return np.asarray(cells.to_numpy(zero_copy_only=False)).view(np.uint8)
    if pa.types.is_integer(data_type) or pa.types.is_floating(data_type):
        return np.asarray(cells.to_numpy())
    if pa.types.is_temporal(data_type):
        return np.asarray(cells.view(f"int{data_type.bit_width}").to_numpy())
    if pa.types.is_null(data_type):
        return np.zeros(len(cells), dtype=np.int8)
    return None


def _filler(data_type: pa.DataType) -> pa.Scalar:
    """What stands under a null; any value will do, as classes decide first."""
    if pa.types.is_fixed_size_binary(data_type):
        return pa.scalar(bytes(data_type.byte_width), data_type)
    if pa.types.is_string(data_type) or pa.types.is_large_string(data_type):
        return pa.scalar("", data_type)
    if pa.types.is_binary(data_type) or pa.types.is_large_binary(data_type):
        return pa.scalar(b"", data_type)
    if pa.types.is_temporal(data_type):
        return pa.scalar(0, f"int{data_type.bit_width}").cast(data_type)
    return pa.scalar(0).cast(data_type)


def _sort(columns: list[_Comparable]) -> Int64Array:
    """Stable order of the rows of equally long columns."""
    names, arrays, keys = [], [], []
    for number, column in enumerate(columns):
        if column.classes is not None:
            names.append(f"class{number}")
            arrays.append(pa.array(column.classes))
            keys.append((names[-1], "ascending"))
        names.append(f"value{number}")
        arrays.append(pa.array(column.values))
        keys.append((names[-1], "descending" if column.is_descending else "ascending"))
    indices = pc.sort_indices(pa.table(arrays, names=names), sort_keys=keys)
    return np.asarray(indices.to_numpy()).astype(np.int64)


def _precedes(
    left: list[_Comparable],
    left_rows: Int64Array,
    *,
    right: list[_Comparable],
    right_rows: Int64Array,
) -> BoolArray:
    """Where the left row comes strictly before the right row."""
    before = np.zeros(len(left_rows), dtype=np.bool_)
    equal = np.ones(len(left_rows), dtype=np.bool_)
    for a, b in zip(left, right, strict=True):
        if a.classes is not None or b.classes is not None:
            left_class = 0 if a.classes is None else a.classes
            right_class = 0 if b.classes is None else b.classes
            before |= equal & np.less(left_class, right_class)
            equal &= np.equal(left_class, right_class)
        less, same = _compare(a.values, b.values, is_descending=a.is_descending)
        before |= equal & less
        equal &= same
    return before | (equal & (left_rows < right_rows))


def _compare(left: Any, right: Any, *, is_descending: bool) -> tuple[BoolArray, BoolArray]:
    first, second = (right, left) if is_descending else (left, right)
    if isinstance(left, np.ndarray):
        return first < second, first == second
    return (
        np.asarray(pc.less(first, second).to_numpy(zero_copy_only=False)),
        np.asarray(pc.equal(first, second).to_numpy(zero_copy_only=False)),
    )
