"""Cells in lent memory: found, and copied where a replica would keep them."""

from __future__ import annotations

import datetime
import decimal

import pyarrow as pa
import pytest

from barrage.client.own_cells import LentMemory, copy_of, own_cells
from barrage.model.update import FullUpdate
from barrage.rowset import RowSet, RowSetShiftData

TYPES = [
    (pa.int64(), [1, None, 3]),
    (pa.int8(), [1, 2, None]),
    (pa.bool_(), [True, False, None]),
    (pa.float64(), [1.5, float("inf"), None]),
    (pa.date32(), [datetime.date(2026, 1, 2), None, None]),
    (pa.timestamp("ns", "UTC"), [1, 2, 3]),
    (pa.time64("us"), [datetime.time(1, 2), None, None]),
    (pa.duration("ms"), [datetime.timedelta(1), None, None]),
    (pa.month_day_nano_interval(), [(1, 2, 3), None, (0, 0, 0)]),
    (pa.decimal128(10, 2), [decimal.Decimal("1.25"), None, None]),
    (pa.decimal256(40, 2), [decimal.Decimal("1.25"), None, None]),
    (pa.string(), ["a", None, "ü" * 40]),
    (pa.large_string(), ["a", None, "b"]),
    (pa.binary(), [b"a", None, b""]),
    (pa.large_binary(), [b"a", None, b""]),
    (pa.binary(3), [b"abc", None, b"def"]),
    (pa.string_view(), ["a", None, "longer than twelve characters"]),
    (pa.binary_view(), [b"a", None, b"longer than twelve characters"]),
    (pa.list_(pa.string()), [["a", None], None, []]),
    (pa.large_list(pa.int32()), [[1], None, []]),
    (pa.list_(pa.int32(), 2), [[1, 2], None, [3, 4]]),
    (pa.list_(pa.string_view()), [["longer than twelve characters"], None, []]),
    (pa.struct([("a", pa.int64()), ("b", pa.string())]), [{"a": 1, "b": "x"}, None, {}]),
    (pa.map_(pa.string(), pa.int64()), [[("a", 1)], None, []]),
    (pa.dictionary(pa.int32(), pa.string()), ["a", "b", "a"]),
    (pa.list_(pa.dictionary(pa.int8(), pa.string())), [["a"], None, ["b", "a"]]),
    (pa.null(), [None, None, None]),
]


def addresses(array):
    """Of every buffer, those of dictionaries and children included."""
    found = {
        buffer.address: buffer.size
        for buffer in array.buffers()
        if buffer is not None and buffer.size
    }
    if pa.types.is_dictionary(array.type):
        found |= addresses(array.dictionary)
    elif pa.types.is_list(array.type) or pa.types.is_map(array.type):
        found |= addresses(array.values) if pa.types.is_list(array.type) else {}
    return found


def memory_of(array):
    return LentMemory((start, start + size) for start, size in addresses(array).items())


@pytest.mark.parametrize(("kind", "values"), TYPES, ids=[str(kind) for kind, _ in TYPES])
@pytest.mark.parametrize("part", [(0, 3), (1, 2), (2, 1)])
def test_a_copy_shares_nothing(kind, values, part):
    whole = pa.array(values, kind)
    array = whole.slice(*part)
    copy = copy_of(array)
    assert copy.equals(array)
    assert copy.type == kind
    copy.validate(full=True)
    assert not set(addresses(copy)) & set(addresses(whole))


def test_lent_memory_knows_its_bounds():
    array = pa.array([1, 2, 3])
    start, size = next(iter(addresses(array).items()))
    assert LentMemory([(start, start + size)]).holds(array)
    assert LentMemory([(start - 8, start + 1)]).holds(array)
    assert not LentMemory([(start - 8, start)]).holds(array)
    assert not LentMemory([(start + 1, start + size)]).holds(array)
    assert not LentMemory([]).holds(array)
    many = LentMemory([(start + 10**6, start + 10**6 + 5), (start, start + 4), (1, 2)])
    assert many.holds(array)


def test_the_dictionary_counts():
    array = pa.array(["a", "b"]).dictionary_encode()
    assert memory_of(array.dictionary).holds(array)


def update(added, modified):
    rows = RowSet.of_span(0, len(added[0]))
    return FullUpdate(
        first_step=1, last_step=1, is_snapshot=False, effective_viewport=None,
        is_effective_reverse=False, effective_columns=None, table_size=0,
        added_columns=added, modified_columns=modified, source_time_ns=None,
        removed_keys_pre=None, shifts=RowSetShiftData.empty(), added_keys_post=rows,
        included_keys_post=None, modified_keys_post=(rows, rows),
    )  # fmt: skip


def test_what_a_replica_keeps_is_copied_and_nothing_else():
    number, text = pa.array([1, 2]), pa.array(["a", "b"])
    own_number, own_text = pa.array([3, 4]), pa.array(["c", "d"])
    lent = LentMemory(memory_of(number)._ranges + memory_of(text)._ranges)
    mixed = pa.chunked_array([number, own_number])
    got = own_cells(update((mixed, text), (number, text)), lent)
    added, texts = got.added_columns
    assert added.equals(mixed)
    assert texts.equals(text)
    assert not lent.holds(added.chunk(0))
    assert not lent.holds(texts)
    # What is ours stays where it is.
    assert addresses(added.chunk(1)) == addresses(own_number)
    # New values of fixed width are copied by the column they go to.
    assert got.modified_columns[0] is number
    assert not lent.holds(got.modified_columns[1])
    assert got.modified_columns[1].equals(text)
    ours = own_cells(update((own_number, own_text), (own_number, own_text)), lent)
    assert ours.added_columns[0] is own_number
    assert ours.modified_columns[1] is own_text
