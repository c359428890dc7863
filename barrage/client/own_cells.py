"""Cells in memory that is only lent, copied where a table keeps them.

What a body in shared memory holds is lent by the server, which wants it back; a replica keeps rows
for as long as they live. So the cells that would stay are copied when an update is applied, all
others are read where they are: new values of fixed-width columns are copied into the replica's own
buffers in any case.

Cost: one copy of each added cell and each new value of variable width; nothing for updates whose
bodies came inline.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from barrage.model.storage.fixed import fixed_dtype

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import TypeAlias

    from barrage.model.update import FullUpdate, ViewUpdate

    Column: TypeAlias = pa.Array | pa.ChunkedArray


class LentMemory:
    """Ranges of memory of this process that belong to somebody else."""

    def __init__(self, ranges: Iterable[tuple[int, int]]) -> None:
        """``ranges``: addresses of the first byte and of the one after the last."""
        self._ranges = sorted(ranges)
        self._starts = [start for start, _ in self._ranges]

    def holds(self, array: pa.Array) -> bool:
        """Whether any buffer of ``array``, or of its dictionary, is in here."""
        if not self._ranges:
            return False
        if any(
            buffer is not None and self.holds_address(buffer.address) for buffer in array.buffers()
        ):
            return True
        return pa.types.is_dictionary(array.type) and self.holds(array.dictionary)

    def holds_address(self, address: int) -> bool:
        index = bisect_right(self._starts, address) - 1
        return index >= 0 and address < self._ranges[index][1]


def own_cells(message: FullUpdate | ViewUpdate, lent: LentMemory) -> FullUpdate | ViewUpdate:
    """``message`` with the cells a replica would keep in memory of our own."""
    return replace(
        message,
        added_columns=_owned(message.added_columns, lent),
        modified_columns=tuple(
            column if fixed_dtype(column.type) is not None else _owned((column,), lent)[0]
            for column in message.modified_columns
        ),
    )


def _owned(columns: Sequence[Column], lent: LentMemory) -> tuple[Column, ...]:
    return tuple(_owned_column(column, lent) for column in columns)


def _owned_column(column: Column, lent: LentMemory) -> Column:
    if isinstance(column, pa.Array):
        return copy_of(column) if len(column) and lent.holds(column) else column
    chunks = [copy_of(chunk) if lent.holds(chunk) else chunk for chunk in column.chunks]
    return pa.chunked_array(chunks, type=column.type)


def copy_of(array: pa.Array) -> pa.Array:
    """The same cells in memory of their own."""
    if _is_copied_by_joining(array.type):
        return pa.concat_arrays([array])
    # Joining shares dictionaries and the characters of views.
    sink = pa.BufferOutputStream()
    batch = pa.record_batch([array], names=["cells"])
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    with pa.ipc.open_stream(sink.getvalue()) as reader:
        return reader.read_next_batch().column(0)


def _is_copied_by_joining(kind: pa.DataType) -> bool:
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _is_copied_by_joining(kind.value_type)
    if pa.types.is_struct(kind):
        return all(_is_copied_by_joining(field.type) for field in kind)
    return bool(
        pa.types.is_primitive(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
    )
