"""A fixed-width column that is overwritten in place: numpy values plus packed validity.

``read_fixed`` and ``build_fixed`` convert between Arrow arrays and numpy for every fixed-width
type, decimals and intervals included (as opaque bytes of their width).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from barrage.model.storage.growth import (
    AnyArray,
    BitArray,
    BoolArray,
    GrowArray,
    Int64Array,
    pack_bits,
    unpack_bits,
)

_DTYPES = {8: "u1", 16: "u2", 32: "u4", 64: "u8"}


def fixed_dtype(data_type: pa.DataType) -> np.dtype[Any] | None:
    """The numpy dtype that holds one cell's bits, or None when the type is not of fixed width.

    Cells are moved as raw bits, so no float conversion can change a NaN. Booleans give ``bool``.
    """
    if pa.types.is_boolean(data_type):
        return np.dtype(np.bool_)
    if (
        pa.types.is_nested(data_type)
        or pa.types.is_dictionary(data_type)
        or pa.types.is_null(data_type)
        or isinstance(data_type, pa.BaseExtensionType)
    ):
        return None
    try:
        width = int(data_type.bit_width)
    except ValueError:
        return None
    if width <= 0 or width % 8:
        return None
    return np.dtype(_DTYPES.get(width, f"V{width // 8}"))


def read_valid(values: pa.Array) -> BoolArray | None:
    """Which cells are not null; None when all are."""
    if values.null_count == 0:
        return None
    return unpack_bits(values.buffers()[0], values.offset, len(values))


def read_fixed(values: pa.Array, dtype: np.dtype[Any]) -> AnyArray:
    """The cells' bits as a numpy view (booleans: a copy). Cells under a null are arbitrary."""
    buffer = values.buffers()[1]
    if len(values) == 0 or buffer is None:
        return np.zeros(len(values), dtype=dtype)
    if dtype == np.bool_:
        return unpack_bits(buffer, values.offset, len(values))
    return np.frombuffer(
        buffer, dtype=dtype, count=len(values), offset=values.offset * dtype.itemsize
    )


def build_fixed(data_type: pa.DataType, values: AnyArray, valid: BoolArray | None) -> pa.Array:
    """The Arrow array of these bits; keeps a reference to ``values`` instead of copying it."""
    bitmap = None if valid is None or bool(valid.all()) else pa.py_buffer(pack_bits(valid))
    raw = pack_bits(values) if values.dtype == np.bool_ else np.ascontiguousarray(values)
    return pa.Array.from_buffers(data_type, len(values), [bitmap, pa.py_buffer(raw)])


class FixedColumn:
    """Values at slots 0..length-1, all writable. Validity is only allocated once a null arrives."""

    __slots__ = ("_dtype", "_valid", "_values", "type")

    def __init__(self, data_type: pa.DataType, dtype: np.dtype[Any]) -> None:
        self.type = data_type
        self._dtype = dtype
        self._values: GrowArray | BitArray = BitArray() if dtype == np.bool_ else GrowArray(dtype)
        self._valid: BitArray | None = None

    @classmethod
    def blank(cls, data_type: pa.DataType, dtype: np.dtype[Any], length: int) -> FixedColumn:
        """A column of ``length`` cells that nobody has written and nobody may read yet. Costs the
        same for any length."""
        made = cls(data_type, dtype)
        is_bits = dtype == np.bool_
        made._values = BitArray.zeros(length) if is_bits else GrowArray.zeros(dtype, length)
        return made

    @property
    def length(self) -> int:
        return self._values.length

    @property
    def nbytes(self) -> int:
        return self._values.nbytes + (0 if self._valid is None else self._valid.nbytes)

    @property
    def overwritten_nbytes(self) -> int:
        return self.nbytes

    @property
    def pinning_nbytes(self) -> int:
        valid = 0 if self._valid is None else self._valid.pinning_nbytes
        return self._values.pinning_nbytes + valid

    def pinned(self) -> FixedColumn:
        """The cells there are now, for reading only."""
        copied = FixedColumn(self.type, self._dtype)
        copied._values = self._values.pinned()
        copied._valid = None if self._valid is None else self._valid.pinned()
        return copied

    def append(self, values: pa.Array) -> None:
        valid = read_valid(values)
        if valid is not None and self._valid is None:
            self._add_validity()
        if self._valid is not None:
            if valid is None:
                self._valid.append_constant(True, len(values))
            else:
                self._valid.append(valid)
        self._values.append(read_fixed(values, self._dtype))

    def _add_validity(self) -> None:
        self._valid = BitArray()
        self._valid.append_constant(True, self._values.length)

    def write(self, slots: Int64Array, values: pa.Array, *, is_first: bool = False) -> None:
        """Overwrite cells, or write those of a :meth:`blank` column for the first time."""
        valid = read_valid(values)
        if valid is not None and self._valid is None:
            self._add_validity()
        if self._valid is not None:
            bits = np.ones(len(slots), np.bool_) if valid is None else valid
            self._valid.write(slots, bits, is_first=is_first)
        self._values.write(slots, read_fixed(values, self._dtype), is_first=is_first)

    def tidy(self, cell_count: int) -> None:
        """See :meth:`GrowArray.tidy`."""
        self._values.tidy(cell_count)
        if self._valid is not None:
            self._valid.tidy(cell_count)

    def truncate(self, length: int) -> None:
        self._values.truncate(length)
        if self._valid is not None:
            self._valid.truncate(length)

    def take(self, slots: Int64Array) -> pa.Array:
        valid = None if self._valid is None else self._valid.take(slots)
        return build_fixed(self.type, self._values.take(slots), valid)

    def take_with(self, slots: Int64Array, places: Int64Array, others: pa.Array) -> pa.Array:
        """The cells at ``slots``, but ``others`` at these places of the result."""
        values = self._values.take(slots)
        values[places] = read_fixed(others, self._dtype)
        valid = None if self._valid is None else self._valid.take(slots)
        valid_others = read_valid(others)
        if valid is None and valid_others is not None:
            valid = np.ones(len(slots), dtype=np.bool_)
        if valid is not None:
            valid[places] = True if valid_others is None else valid_others
        return build_fixed(self.type, values, valid)

    def slice(self, start: int, stop: int) -> pa.Array:
        valid = None if self._valid is None else self._valid.slice(start, stop)
        return build_fixed(self.type, self._values.slice(start, stop), valid)
