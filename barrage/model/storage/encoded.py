"""Columns whose Arrow form is an encoding of another column: dictionaries, run-ends, nulls.

A dictionary column keeps one dictionary of its own that only grows (32-bit codes inside); batches
that bring other dictionaries are re-coded on the way in, which costs what they bring, however much
the dictionary has. Run-end columns are kept decoded and
encoded on the way out, since neither overwriting nor scattered reads keep runs.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from barrage.errors import SchemaError
from barrage.model.storage.chunks import ChunkLog
from barrage.model.storage.distinct import DistinctRows
from barrage.model.storage.hashing import is_hashable

if TYPE_CHECKING:
    from barrage.model.storage.growth import Int64Array


WHOLE_VALUES = 1 << 12
"""Up to this many values a dictionary has no index, and cells that are read come with all of them;
of a larger one they bring what they use, when they are fewer than it has."""


UNUSED_PER_CELL: Final = 4
"""A dictionary with more values for each cell, besides :data:`WHOLE_VALUES`, is mostly unused."""

_INTEGERS = {32: pa.int32(), 64: pa.int64()}


class PlainColumn(Protocol):
    """What an encoded column needs from the store of its decoded form."""

    @property
    def nbytes(self) -> int: ...
    @property
    def overwritten_nbytes(self) -> int: ...
    @property
    def pinning_nbytes(self) -> int: ...
    def pinned(self) -> PlainColumn: ...
    def __len__(self) -> int: ...
    def append(self, values: pa.Array | pa.ChunkedArray) -> None: ...
    def write(self, slots: Int64Array, values: pa.Array | pa.ChunkedArray) -> None: ...
    def take(self, slots: Int64Array) -> pa.Array: ...
    def slice(self, start: int, stop: int) -> pa.Array | pa.ChunkedArray: ...
    def truncate(self, length: int) -> None: ...
    def tidy(self, cell_count: int) -> None: ...
    def spread(self, slots: Int64Array, length: int) -> PlainColumn: ...
    def forget_before(self, slot: int) -> None: ...


def can_be_dictionary(value_type: pa.DataType) -> bool:
    """Whether columns may have dictionaries of such values: any but nested ones, and half floats,
    of which Arrow joins dictionaries to other values."""
    if pa.types.is_dictionary(value_type) or pa.types.is_float16(value_type):
        return False
    return bool(pa.types.is_null(value_type)) or is_hashable(value_type)


def with_used_values(rows: pa.Table) -> pa.Table:
    """The same rows; dictionaries of more values than there are rows have those that occur."""
    for index, field in enumerate(rows.schema):
        if pa.types.is_dictionary(field.type):
            chunks = rows.column(index).chunks
            if any(len(chunk.dictionary) > len(chunk) for chunk in chunks):
                used = pa.chunked_array(map(_narrowed, chunks), type=field.type)
                rows = rows.set_column(index, field, used)
    return rows


def _narrowed(cells: pa.DictionaryArray) -> pa.DictionaryArray:
    if len(cells.dictionary) <= len(cells):
        return cells
    used = cells.indices.dictionary_encode()
    return pa.DictionaryArray.from_arrays(
        used.indices.cast(cells.type.index_type),
        cells.dictionary.take(used.dictionary),
        ordered=cells.type.ordered,
        safe=False,
    )


class _Joined:
    """The values of a dictionary as one array, as far as anybody has read it: the column, or one
    of its pinned copies on a thread of its own."""

    __slots__ = ("values",)

    def __init__(self, values: pa.Array) -> None:
        self.values = values


class DictionaryColumn:
    """Codes into a dictionary that only ever grows."""

    __slots__ = ("_codes", "_distinct", "_joined", "_seen", "_seen_codes", "_values", "type")

    def __init__(self, data_type: pa.DataType, codes: PlainColumn) -> None:
        """SchemaError for values that are nested."""
        if not can_be_dictionary(data_type.value_type):
            raise SchemaError(f"a dictionary of {data_type.value_type} is not supported")
        self.type = data_type
        self._codes = codes
        self._values: pa.Array = pa.array([], type=data_type.value_type)
        """The dictionary while it has no index: few values are found faster without one."""
        self._distinct: DistinctRows[ChunkLog] | None = None
        self._joined = _Joined(self._values)
        self._seen: pa.Array | None = None
        self._seen_codes: pa.Array | None = None

    @property
    def length(self) -> int:
        return len(self._codes)

    @property
    def nbytes(self) -> int:
        values = self._values if self._distinct is None else self._distinct
        return int(self._codes.nbytes + values.nbytes)

    @property
    def overwritten_nbytes(self) -> int:
        return self._codes.overwritten_nbytes

    @property
    def pinning_nbytes(self) -> int:
        return self._codes.pinning_nbytes

    def pinned(self) -> DictionaryColumn:
        """The same codes and values."""
        copied = DictionaryColumn(self.type, self._codes.pinned())
        copied._values = self._values
        copied._distinct = None if self._distinct is None else self._distinct.pinned()
        copied._joined = self._joined
        return copied

    @property
    def _value_count(self) -> int:
        return len(self._values) if self._distinct is None else self._distinct.count

    def _dictionary(self) -> pa.Array:
        """All values, by their codes."""
        if self._distinct is None:
            return self._values
        values, count = self._joined.values, self._distinct.count
        if len(values) < count:
            (new,) = self._distinct.cells(np.arange(len(values), count, dtype=np.int64))
            values = self._joined.values = pa.concat_arrays([values, new])
            self._distinct.moved([_chunk_of(values)])
        return values if len(values) == count else values.slice(0, count)

    def _recode(self, values: pa.Array) -> pa.Array:
        """Codes of ``values`` in the own dictionary, which first learns the new values."""
        incoming = values.dictionary
        told_apart = _by_bits(incoming)
        if self._seen is None or not told_apart.equals(self._seen):
            self._seen_codes = self._codes_of(incoming)
            self._seen = told_apart
        return self._seen_codes.take(values.indices)  # type: ignore[union-attr]

    def _codes_of(self, incoming: pa.Array) -> pa.Array:
        if self._distinct is None and _has_lookup(self.type.value_type):
            codes = pc.index_in(incoming, value_set=self._values)
            unknown = incoming.filter(pc.and_(codes.is_null(), incoming.is_valid())).unique()
            if len(unknown) == 0:
                return codes
            if len(self._values) + len(unknown) <= WHOLE_VALUES:
                self._values = pa.concat_arrays([self._values, unknown])
                return pc.index_in(incoming, value_set=self._values)
        if self._distinct is None:
            self._distinct = DistinctRows([ChunkLog(self.type.value_type)])
            self._distinct.restart([_chunk_of(self._values)], len(self._values))
            self._joined = _Joined(self._values)
        valid = incoming.is_valid()
        known = np.zeros(len(incoming), dtype=np.int32)
        known[valid.to_numpy(zero_copy_only=False)] = self._distinct.of([incoming.drop_null()])
        return pc.if_else(valid, known, pa.scalar(None, pa.int32()))

    def append(self, values: pa.Array) -> None:
        self._codes.append(self._recode(values))

    def write(self, slots: Int64Array, values: pa.Array) -> None:
        self._codes.write(slots, self._recode(values))

    def take(self, slots: Int64Array) -> pa.Array:
        return self._encoded(self._codes.take(slots))

    def slice(self, start: int, stop: int) -> pa.Array:
        codes = self._codes.slice(start, stop)
        if isinstance(codes, pa.ChunkedArray):
            codes = codes.combine_chunks()
        return self._encoded(codes)

    def _encoded(self, codes: pa.Array) -> pa.Array:
        index_type = self.type.index_type
        known, codes_max = self._value_count, _codes_max(index_type)
        if known > codes_max or known > max(WHOLE_VALUES, len(codes)):
            used = codes.dictionary_encode()
            if len(used.dictionary) > codes_max:
                raise SchemaError(
                    f"{len(used.dictionary)} distinct values do not fit dictionary codes of "
                    f"{index_type}; declare the column with int32 codes"
                )
            codes, values = used.indices, self._values_of(used.dictionary)
        else:
            values = self._dictionary()
        if index_type != codes.type:
            codes = codes.cast(index_type)
        return pa.DictionaryArray.from_arrays(codes, values, ordered=self.type.ordered, safe=False)

    def is_mostly_unused(self, cell_count: int) -> bool:
        """Whether far more values are held than so many cells may have."""
        return self._value_count > UNUSED_PER_CELL * cell_count + WHOLE_VALUES

    def take_narrowed(self, slots: Int64Array) -> pa.DictionaryArray:
        """The cells at ``slots`` with the values they have and no others, and 32-bit codes."""
        used = self._codes.take(slots).dictionary_encode()
        return pa.DictionaryArray.from_arrays(
            used.indices, self._values_of(used.dictionary), safe=False
        )

    def _values_of(self, codes: pa.Array) -> pa.Array:
        if self._distinct is None:
            return self._values.take(codes)
        return self._distinct.cells(codes.to_numpy().astype(np.int64))[0]

    def truncate(self, length: int) -> None:
        self._codes.truncate(length)

    def tidy(self, cell_count: int) -> None:
        """See :meth:`ColumnStore.tidy`."""
        self._codes.tidy(cell_count)

    def forget_before(self, slot: int) -> None:
        self._codes.forget_before(slot)


def _by_bits(values: pa.Array) -> pa.Array:
    """The values as something that is equal when their bits are: 0.0 is not -0.0, and a NaN is what
    it is."""
    if not pa.types.is_floating(values.type):
        return values
    return values.view(_INTEGERS[values.type.bit_width])


def _chunk_of(values: pa.Array) -> ChunkLog:
    log = ChunkLog(values.type)
    log.append(values)
    return log


@cache
def _has_lookup(value_type: pa.DataType) -> bool:
    """Whether Arrow finds such values in a set."""
    none = pa.array([], type=value_type)
    try:
        pc.index_in(none, value_set=none)
    except pa.ArrowNotImplementedError:
        return False
    return True


def _codes_max(index_type: pa.DataType) -> int:
    """How many dictionary entries codes of ``index_type`` can tell apart."""
    bits = int(index_type.bit_width) - (1 if pa.types.is_signed_integer(index_type) else 0)
    return 1 << min(bits, 31)


class RunEndColumn:
    """Kept decoded; encoded when read."""

    __slots__ = ("_plain", "type")

    def __init__(self, data_type: pa.DataType, plain: PlainColumn) -> None:
        self.type = data_type
        self._plain = plain

    @property
    def length(self) -> int:
        return len(self._plain)

    @property
    def nbytes(self) -> int:
        return self._plain.nbytes

    @property
    def overwritten_nbytes(self) -> int:
        return self._plain.overwritten_nbytes

    @property
    def pinning_nbytes(self) -> int:
        return self._plain.pinning_nbytes

    def pinned(self) -> RunEndColumn:
        """The same cells."""
        return RunEndColumn(self.type, self._plain.pinned())

    def append(self, values: pa.Array) -> None:
        self._plain.append(pc.run_end_decode(values))

    def write(self, slots: Int64Array, values: pa.Array) -> None:
        self._plain.write(slots, pc.run_end_decode(values))

    def take(self, slots: Int64Array) -> pa.Array:
        return self._encoded(self._plain.take(slots))

    def slice(self, start: int, stop: int) -> pa.Array:
        plain = self._plain.slice(start, stop)
        return self._encoded(
            plain.combine_chunks() if isinstance(plain, pa.ChunkedArray) else plain
        )

    def spread(self, slots: Int64Array, length: int) -> RunEndColumn:
        """See :meth:`ColumnStore.spread`."""
        return RunEndColumn(self.type, self._plain.spread(slots, length))

    def _encoded(self, plain: pa.Array) -> pa.Array:
        return pc.run_end_encode(plain, run_end_type=self.type.run_end_type)

    def truncate(self, length: int) -> None:
        self._plain.truncate(length)

    def tidy(self, cell_count: int) -> None:
        """See :meth:`ColumnStore.tidy`."""
        self._plain.tidy(cell_count)

    def forget_before(self, slot: int) -> None:
        self._plain.forget_before(slot)


class NullColumn:
    """A column of type null: nothing but its length."""

    __slots__ = ("length", "type")

    def __init__(self, data_type: pa.DataType) -> None:
        self.type = data_type
        self.length = 0

    @property
    def nbytes(self) -> int:
        return 0

    overwritten_nbytes = pinning_nbytes = 0

    def pinned(self) -> NullColumn:
        """As many nulls."""
        copied = NullColumn(self.type)
        copied.length = self.length
        return copied

    def append(self, values: pa.Array) -> None:
        self.length += len(values)

    def write(self, slots: Int64Array, values: pa.Array) -> None:
        """Every cell is null already."""

    def take(self, slots: Int64Array) -> pa.Array:
        return pa.nulls(len(slots))

    def slice(self, start: int, stop: int) -> pa.Array:
        return pa.nulls(max(0, stop - start))

    def truncate(self, length: int) -> None:
        self.length = length

    def forget_before(self, slot: int) -> None:
        """Nothing is held."""
