"""Cells in lent memory: found, and copied where a replica would keep them."""

from __future__ import annotations

import datetime
import decimal

import pyarrow as pa
import pytest

from barrage.client.bodies.own_cells import LentMemory, copy_of
from barrage.client.subscriptions.shown_replica import ShownReplica
from barrage.model.storage.chunks import ChunkLog
from barrage.model.storage.log import LogColumn
from barrage.model.update import FullUpdate
from barrage.rowset import RowSet, RowSetShiftData

EMPTY = RowSet.empty()

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


def in_mirror(shown, keys, numbers, lent, *, step=1, modified=EMPTY, values=()):
    """Apply one update to a full subscription of two columns."""
    numbers, texts = pa.array(numbers, pa.int64()), pa.array([f"t{n}" for n in numbers])
    values = pa.array(values, pa.int64())
    new_texts = pa.array([f"m{n}" for n in values.to_pylist()], pa.string())
    parts = (numbers, texts, values, new_texts)
    memory = LentMemory([each for part in parts for each in memory_of(part)._ranges])
    return parts, memory, shown.apply(
        FullUpdate(
            first_step=step, last_step=step, is_snapshot=step == 1, effective_viewport=None,
            is_effective_reverse=False, effective_columns=None, table_size=0,
            added_columns=(numbers, texts), modified_columns=(values, new_texts),
            source_time_ns=None, removed_keys_pre=None, shifts=RowSetShiftData.empty(),
            added_keys_post=RowSet.parse(keys), included_keys_post=None,
            modified_keys_post=(modified, modified),
        ),
        is_consistent=True,
        lent=(lambda: memory) if lent else None,
    )  # fmt: skip


def begun():
    shown = ShownReplica()
    shown.begin(pa.schema([("n", pa.int64()), ("t", pa.string())]), has_view_positions=False)
    return shown


def kept(shown):
    """Every array the replica keeps as it came."""
    stores = shown._shown._rows._stores.values()
    chunked = [store._cells for store in stores if isinstance(store._cells, ChunkLog)]
    logs = [store._cells._log for store in stores if isinstance(store._cells, LogColumn)]
    return [chunk for log in [*chunked, *logs] for chunk in log.chunks()]


def test_what_is_kept_is_copied_when_it_is_owned():
    shown = begun()
    own, _, _ = in_mirror(shown, "0-2", [1, 2, 3], False)
    lent, memory, update = in_mirror(shown, "3-4", [4, 5], True, step=2)
    assert any(memory.holds(chunk) for chunk in kept(shown))
    # Who follows gets it where it is.
    assert memory.holds(update._added[0])
    shown.own()
    assert not any(memory.holds(chunk) for chunk in kept(shown))
    # What was ours stays where it was.
    ours = memory_of(own[0])
    assert any(ours.holds(chunk) for chunk in kept(shown))
    assert shown.read()[0].to_pydict()["n"] == [1, 2, 3, 4, 5]
    assert lent[1].to_pylist() == ["t4", "t5"]


def test_what_is_read_is_ours():
    shown = begun()
    # The lent parts are held: their memory must not be used again meanwhile.
    held, memory, update = in_mirror(shown, "0-2", [1, 2, 3], True)
    assert update.is_replacement
    assert not any(memory.holds(chunk) for chunk in update.added["t"].chunks)
    held, memory, _ = in_mirror(shown, "3", [4], True, step=2)
    table, _, _ = shown.read()
    assert not any(memory.holds(chunk) for column in table.columns for chunk in column.chunks)
    assert table["t"].to_pylist() == ["t1", "t2", "t3", "t4"]
    assert shown.read()[0] is table
    assert held[0].to_pylist() == [4]


def test_new_values_are_owned_as_well():
    shown = begun()
    in_mirror(shown, "0-2", [1, 2, 3], False)
    rows = RowSet.parse("0,2")
    held, memory, update = in_mirror(shown, "3", [4], True, step=2, modified=rows, values=[11, 33])
    assert memory.holds(update.modified["t"])
    shown.own()
    assert not any(memory.holds(chunk) for chunk in kept(shown))
    held, memory, _ = in_mirror(shown, "4", [5], True, step=3, modified=rows, values=[12, 34])
    shown.own()
    assert not any(memory.holds(chunk) for chunk in kept(shown))
    assert held[2].to_pylist() == [12, 34]
    assert shown.read()[0].to_pydict() == {
        "n": [12, 2, 34, 4, 5], "t": ["m12", "t2", "m34", "t4", "t5"],
    }  # fmt: skip


def test_each_chunk_is_looked_at_once():
    seen = []
    log = ChunkLog(pa.int64())

    def owned(array):
        seen.append(len(array))
        return array

    log.append(pa.array([1, 2, 3]))
    log.own(owned)
    log.append(pa.array([4]))
    log.append(pa.array([5, 6]))
    log.own(owned)
    assert seen == [3, 2, 1]
    log.truncate(4)
    log.own(owned)
    log.append(pa.array([7]))
    log.own(owned)
    assert seen == [3, 2, 1, 1]
    log.own(lambda array: pytest.fail("nothing has come"))
    # Chunks that were merged since hold some that are new.
    log.append(pa.array([8]))
    log.append(pa.array([9]))
    log.own(owned)
    assert sum(seen[4:]) >= 2
    assert pa.chunked_array(log.chunks()).to_pylist() == [1, 2, 3, 4, 7, 8, 9]


def test_the_rows_shown_while_others_grow_are_owned():
    table = pa.table({"n": pa.array([1, 2, 3])})
    memory = memory_of(table["n"].chunk(0))
    copy = memory.owned_table(table)
    assert copy.equals(table)
    assert not memory.holds(copy["n"].chunk(0))
    assert (
        memory_of(copy["n"].chunk(0)).owned_table(table)["n"].chunk(0).equals(table["n"].chunk(0))
    )
