"""What columns take once they are plain, told before anything is made of them.

Some bytes of IPC stand for any number: nulls have none at all, indices of a dictionary and views
repeat a value, run ends a run. Sizes are never too low; of nested values they may be too high.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    import numpy.typing as npt

    Int64Array: TypeAlias = npt.NDArray[np.int64]
    Sizes: TypeAlias = "Int64Array | int"

ROW_BYTES = 16
"""Of each row beside its columns: where it comes from, and the id of its message."""

TEXT_BYTES = 80
"""The longest text of a number or a time."""

_SIMPLE_BYTES = 16
"""Of a value whose type says nothing else: an offset, a view, a union's parts."""

_WITH_ITEMS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_map)
_LIST_VIEWS = (pa.types.is_list_view, pa.types.is_large_list_view)
_OF_BYTES = (
    *(pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view),
    *(pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view),
)


def width_of(data_type: Any) -> int:
    """What a value takes at least, null included."""
    if pa.types.is_fixed_size_list(data_type):
        return int(data_type.list_size) * width_of(data_type.value_type) + 1
    if pa.types.is_struct(data_type):
        return 1 + sum(width_of(each.type) for each in data_type)
    if isinstance(data_type, pa.BaseExtensionType):
        return width_of(data_type.storage_type)
    try:
        return 1 + (int(data_type.bit_width) + 7) // 8
    except ValueError:
        return 1 + _SIMPLE_BYTES


def row_width(schema: pa.Schema) -> int:
    """What a row takes at least."""
    return ROW_BYTES + sum(width_of(each.type) for each in schema)


def item_width(schema: pa.Schema) -> int:
    """What an item of a list takes at least, of the widest one; 0 without lists."""
    return max((_item_width(each.type) for each in schema), default=0)


def _item_width(data_type: Any) -> int:
    if _has_items(data_type) or pa.types.is_fixed_size_list(data_type):
        inner = data_type.value_type if not pa.types.is_map(data_type) else data_type.item_type
        return max(width_of(data_type.value_type if inner is None else inner), _item_width(inner))
    if pa.types.is_struct(data_type):
        return max((_item_width(each.type) for each in data_type), default=0)
    return 0


def table_bytes(rows: pa.Table, schema: pa.Schema) -> int:
    """What the columns of ``schema`` take that are found in ``rows`` or are null there."""
    total = len(rows) * ROW_BYTES
    for field in schema:
        if field.name not in rows.column_names:
            total += len(rows) * width_of(field.type)
            continue
        for chunk in rows[field.name].chunks:
            total += column_bytes(chunk, field.type)
    return total


def column_bytes(values: pa.Array, target: pa.DataType | None) -> int:
    """What ``values`` take as plain ones of the type ``target`` (None: of their own)."""
    kind = values.type
    width = width_of(kind if target is None else target)
    if isinstance(kind, pa.BaseExtensionType):
        return column_bytes(values.storage, target)
    if pa.types.is_run_end_encoded(kind):
        return _runs_bytes(values, target)
    if pa.types.is_struct(kind):
        inner = _struct_targets(kind, target)
        children = [values.field(at) for at in range(kind.num_fields)]
        return len(values) * width + sum(
            column_bytes(child, each) for child, each in zip(children, inner, strict=True)
        )
    if pa.types.is_map(kind):
        return len(values) * width + sum(column_bytes(e, None) for e in (values.keys, values.items))
    if _is_list_view(kind):
        count = int(pc.sum(pc.list_value_length(values)).as_py() or 0)
        return len(values) * width + count * _largest(_sizes(values.values, None))
    if _has_items(kind) or pa.types.is_fixed_size_list(kind):
        inner_type = getattr(target, "value_type", None)
        return len(values) * width + column_bytes(values.values, inner_type)
    sizes = _sizes(values, target)
    return sizes * len(values) if isinstance(sizes, int) else int(sizes.sum())


def _runs_bytes(values: Any, target: pa.DataType | None) -> int:
    ends = values.run_ends.to_numpy(zero_copy_only=False).astype(np.int64)
    lengths = np.diff(np.minimum(ends, values.offset + len(values)), prepend=0)
    sizes = _sizes(values.values, target)
    return int((lengths * sizes).sum())


def _sizes(values: pa.Array, target: pa.DataType | None) -> Sizes:
    """What each value takes as a plain one; one number when it is the same for all."""
    kind: Any = values.type
    width = max(width_of(kind), 0 if target is None else width_of(target))
    if isinstance(kind, pa.BaseExtensionType):
        return _sizes(values.storage, target)
    if pa.types.is_dictionary(kind):
        sizes = _sizes(values.dictionary, target)
        if isinstance(sizes, int) or not len(sizes):
            return sizes if isinstance(sizes, int) else width
        indices = pc.fill_null(values.indices, 0).to_numpy(zero_copy_only=False)
        chosen: Int64Array = sizes[indices.astype(np.int64)]
        return chosen
    if _is_bytes(kind):
        return _lengths(values) + width
    if kind.num_fields or pa.types.is_run_end_encoded(kind):
        # Each of them may be all of them.
        return column_bytes(values, target)
    is_text = target is not None and _is_bytes(target)
    return width + (TEXT_BYTES if is_text and not pa.types.is_null(kind) else 0)


def _lengths(values: Any) -> Int64Array:
    if pa.types.is_string_view(values.type) or pa.types.is_binary_view(values.type):
        views = np.frombuffer(values.buffers()[1], np.int32)[::4]
        return views[values.offset : values.offset + len(values)].astype(np.int64)
    lengths = pc.fill_null(pc.binary_length(values), 0).to_numpy(zero_copy_only=False)
    found: Int64Array = lengths.astype(np.int64)
    return found


def _largest(sizes: Sizes) -> int:
    return sizes if isinstance(sizes, int) else int(sizes.max(initial=0))


def _struct_targets(kind: Any, target: Any) -> list[pa.DataType | None]:
    if target is None or not pa.types.is_struct(target):
        return [None] * int(kind.num_fields)
    types = {each.name: each.type for each in target}
    return [types.get(each.name) for each in kind]


def _has_items(kind: pa.DataType) -> bool:
    return any(is_one(kind) for is_one in _WITH_ITEMS)


def _is_list_view(kind: pa.DataType) -> bool:
    return any(is_one(kind) for is_one in _LIST_VIEWS)


def _is_bytes(kind: pa.DataType) -> bool:
    return any(is_one(kind) for is_one in _OF_BYTES)
