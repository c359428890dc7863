"""Cells in memory that is only lent, found and copied.

What a body in shared memory holds is lent by the server, which wants it back; a replica keeps rows
for as long as they live. Rows that come and go are read where they are. What is still kept after
:data:`LENT_SECONDS`, or is handed out as a table, is copied: at most half of the window, once.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterable

LENT_SECONDS = 1.0
"""How long rows of a ticking table may stay in memory of the server."""


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

    def owned(self, array: pa.Array) -> pa.Array:
        """``array``, or a copy of it when it is in here."""
        return copy_of(array) if self.holds(array) else array

    def owned_table(self, table: pa.Table) -> pa.Table:
        """``table`` with copies of what is in here."""
        columns = [
            pa.chunked_array([self.owned(chunk) for chunk in column.chunks], type=column.type)
            for column in table.columns
        ]
        return pa.Table.from_arrays(columns, schema=table.schema)

    def holds_address(self, address: int) -> bool:
        index = bisect_right(self._starts, address) - 1
        return index >= 0 and address < self._ranges[index][1]


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
