"""Lists against plain Python lists and somebody who only sees their updates, and what their edits
cost."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from barrage.engine import ListTable, UpdateGraph
from barrage.engine.tables import list_table, same_rows
from barrage.engine.tables.slots import SlotStorage
from barrage.model.storage import encoded
from barrage.model.table_change import TableChange
from barrage.model.update import TableUpdate
from barrage.rowset import RowSet
from tests.helpers import model

SCHEMA = pa.schema(
    [
        ("n", pa.int64()),
        ("s", pa.string()),
        ("d", pa.dictionary(pa.int32(), pa.string())),
        ("l", pa.list_(pa.int8())),
        ("r", pa.run_end_encoded(pa.int32(), pa.int64())),
    ]
)

NUMBERS = pa.schema([("n", pa.int64())])

MEBIBYTE = 1 << 20


def rows_of(content: list[dict]) -> pa.Table:
    plain = [pa.array([row[name] for row in content], SCHEMA.field(name).type) for name in "nsdl"]
    runs = pc.run_end_encode(pa.array([row["r"] for row in content], pa.int64()))
    return pa.table([*plain, runs], schema=SCHEMA)


def drawn(draw: random.Random, count: int) -> list[dict]:
    return [
        {
            "n": draw.randrange(5),
            "s": draw.choice(["a", "b", None]),
            "d": draw.choice(["x", "y", None]),
            "l": draw.choice([None, [1], []]),
            "r": draw.randrange(2),
        }
        for _ in range(count)
    ]


def edit(table: ListTable, content: list[dict], draw: random.Random) -> None:
    """One edit of the table and of the list beside it."""
    start = draw.randrange(len(content) + 1)
    stop = draw.randrange(start, len(content) + 1)
    what = draw.choice(["replace", "change", "delete", "overwrite", "insert", "insert", "add"])
    if what == "delete":
        table.stage_delete(start, stop)
        del content[start:stop]
    elif what == "overwrite":
        content[start:stop] = drawn(draw, stop - start)
        table.stage_overwrite(start, rows_of(content[start:stop]))
    elif what == "insert":
        more = drawn(draw, draw.randrange(4))
        content[start:start] = more
        table.stage_insert(start, rows_of(more))
    elif what == "add":
        more = drawn(draw, draw.randrange(6))
        content.extend(more)
        table.stage_add(rows_of(more))
    else:
        kept = [row for row in content if draw.random() < 0.8] if what == "change" else []
        content[:] = [*kept[:start], *drawn(draw, draw.randrange(5)), *kept[start:]]
        table.stage_replace(rows_of(content))


def check_recorded(
    change: TableChange | None, update: TableUpdate | None, old: list[dict], new: list[dict]
) -> None:
    """What was recorded of a cycle is what it did."""
    assert (change is None) == (update is None)
    if change is None or update is None:
        return
    modified = list(change.modified_keys_post)
    before = [next(iter(update.shifts.unapply(RowSet([key])))) for key in modified]
    for cells, rows in [
        (change.removed, [old[key] for key in update.removed_keys_pre]),
        (change.added, [new[key] for key in update.added_keys_post]),
        (change.after, [new[key] for key in modified]),
        (change.before, [old[key] for key in before]),
    ]:
        assert pa.table(list(cells), schema=SCHEMA).to_pylist() == rows


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Callable[[random.Random], None]:
    def set_sizes(draw: random.Random) -> None:
        monkeypatch.setattr(list_table, "FREE_SLOTS_MIN", draw.choice([0, 2, 5]))
        monkeypatch.setattr(list_table, "COMPACTED_CELLS_MAX", draw.choice([0, 0, 10, MEBIBYTE]))
        monkeypatch.setattr(list_table, "MOVED_CELLS", draw.choice([1, 5, 25]))
        monkeypatch.setattr(list_table, "COMPARED_ROWS_MAX", draw.choice([0, 1, 3, 8, 1000]))
        monkeypatch.setattr(list_table, "SLICED_ROWS_MIN", draw.choice([0, 1, 2, 64]))
        monkeypatch.setattr(list_table, "BLOCK_RUNS_MAX", draw.choice([2, 3, 5, 512]))
        monkeypatch.setattr(same_rows, "FIRST_ROWS", draw.choice([1, 2, 1024]))

    return set_sizes


@pytest.mark.parametrize("seed", range(40))
def test_a_list_is_a_list_whatever_is_done_to_it(
    seed: int, small: Callable[[random.Random], None]
) -> None:
    draw = random.Random(seed)
    small(draw)
    graph = UpdateGraph()
    table = ListTable(graph, SCHEMA)
    is_recorded = draw.random() < 0.6
    if is_recorded:
        table.start_recording()
    content: list[dict] = []
    pinned = []
    for _ in range(25):
        seen, old = model.content_of(table), list(content)
        for _ in range(draw.choice([0, 1, 1, 2, 5])):
            edit(table, content, draw)
        touched = table.touched_keys()
        update = graph.run_cycle().updates.get(table)
        assert table.to_arrow().to_pylist() == content
        if update is None:
            assert old == content
        else:
            model.check_update(seen, update, model.content_of(table))
            changed = update.removed_keys_pre
            for keys in update.modified_keys_post:
                changed |= update.shifts.unapply(keys)
            assert (changed - touched).is_empty
        if is_recorded:
            check_recorded(table.take_change(), update, old, content)
        pinned.append((table.pinned(), list(content)))
        for one, rows in pinned[-3:]:
            assert one.to_arrow().to_pylist() == rows


def numbers(first: int, count: int) -> pa.Table:
    return pa.table({"n": np.arange(first, first + count)}, schema=NUMBERS)


def peak(act: Callable[[], object]) -> int:
    """Bytes that numpy had at most meanwhile, besides those before."""
    tracemalloc.start()
    try:
        act()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.fixture
def large() -> ListTable:
    table = ListTable(UpdateGraph(), NUMBERS)
    table.stage_add(numbers(0, MEBIBYTE))
    table.graph.run_cycle()
    table.stage_insert(5, numbers(0, 1))
    table.graph.run_cycle()
    return table


def test_rows_that_come_at_the_end_cost_what_they_are(large: ListTable) -> None:
    large.stage_add(numbers(7, 3))
    assert peak(large.graph.run_cycle) < MEBIBYTE // 4
    assert large.to_arrow()["n"].to_pylist()[-3:] == [7, 8, 9]


@pytest.mark.parametrize(
    "change",
    [
        lambda table: table.stage_insert(9, numbers(7, 3)),
        lambda table: table.stage_delete(MEBIBYTE // 2, MEBIBYTE // 2 + 9),
        lambda table: [table.stage_insert(at * 1000, numbers(7, 1)) for at in range(50)],
    ],
)
def test_edits_copy_the_order_once(large: ListTable, change: Callable[[ListTable], object]) -> None:
    change(large)
    order_nbytes = 8 * MEBIBYTE
    assert peak(large.graph.run_cycle) < 1.5 * order_nbytes


def test_a_replacement_looks_at_a_bounded_number_of_rows(
    large: ListTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(list_table, "COMPARED_ROWS_MAX", 1000)
    read = []
    for name in ("take", "read"):
        plain = getattr(SlotStorage, name)

        def counted(self, keys, columns, plain=plain):
            read.append(len(keys))
            return plain(self, keys, columns)

        monkeypatch.setattr(SlotStorage, name, counted)
    ends = numbers(-500, 2 * MEBIBYTE)
    large.stage_replace(ends)
    update = large.graph.run_cycle().updates[large]
    assert sum(read) <= 3000
    assert len(update.removed_keys_pre) == MEBIBYTE + 1
    rows = large.to_arrow()
    assert rows == ends
    middle = pa.concat_tables([rows.slice(0, 700), numbers(-3, 2), rows.slice(900)])
    read.clear()
    large.stage_replace(middle)
    update = large.graph.run_cycle().updates[large]
    assert sum(read) <= 3000
    assert len(update.removed_keys_pre) == 2 * MEBIBYTE - 1700
    assert large.to_arrow() == middle


def test_free_slots_of_a_large_list_are_given_back_a_few_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(list_table, "FREE_SLOTS_MIN", 10)
    monkeypatch.setattr(list_table, "COMPACTED_CELLS_MAX", 100)
    monkeypatch.setattr(list_table, "MOVED_CELLS", 1000)
    table = ListTable(UpdateGraph(), NUMBERS)
    for number in range(10):
        table.stage_add(numbers(number * 1000, 1000))
        table.graph.run_cycle()
    for number in range(10):
        table.stage_delete(number * 100 + 100, number * 100 + 1000)
    table.graph.run_cycle()
    held = [table.storage.nbytes]
    for _ in range(12):
        appended = len(table.storage.columns[0])
        table.stage_add(numbers(5, 1))
        table.graph.run_cycle()
        assert len(table.storage.columns[0]) - appended <= 101
        held.append(table.storage.nbytes)
    assert held[-1] < held[0] // 3


@pytest.mark.parametrize("exchanged", [300, 2_000, 4_500, 9_000])
def test_a_list_holds_few_slots_without_rows_however_much_comes(
    monkeypatch: pytest.MonkeyPatch, exchanged: int
) -> None:
    """Of 10,000 rows some stay for ever, and the others are exchanged in every cycle: a hundred
    cells move besides."""
    monkeypatch.setattr(list_table, "COMPACTED_CELLS_MAX", 0)
    monkeypatch.setattr(list_table, "FREE_SLOTS_MIN", 0)
    monkeypatch.setattr(list_table, "MOVED_CELLS", 100)
    table = ListTable(UpdateGraph(), NUMBERS)
    table.stage_add(numbers(0, 10_000))
    table.graph.run_cycle()
    stays = numbers(0, 10_000 - exchanged)
    for cycle in range(60):
        table.stage_delete(10_000 - exchanged, 10_000)
        table.stage_add(numbers(cycle, exchanged))
        appended = table._slots_used
        table.graph.run_cycle()
        assert table._slots_used - table._forgotten <= 2.5 * 10_000 + 2 * exchanged
        # What comes and twice as many, at most, are written in one cycle.
        assert table._slots_used - appended <= 3 * exchanged + 100
    rows = table.to_arrow()
    assert rows.slice(0, len(stays)).equals(stays)
    assert rows.slice(len(stays)).equals(numbers(59, exchanged))


def test_an_edit_costs_as_much_however_many_came_before_in_the_cycle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked_at: list[int] = []
    joined = list_table._joined

    def counted(runs: list_table.Runs, base: int) -> list_table.Runs:
        looked_at.append(len(runs[0]))
        return joined(runs, base)

    monkeypatch.setattr(list_table, "_joined", counted)
    monkeypatch.setattr(list_table, "BLOCK_RUNS_MAX", 16)
    table, prng = ListTable(UpdateGraph(), NUMBERS), random.Random(3)
    table.stage_add(numbers(0, 5_000))
    table.graph.run_cycle()
    rows = list(range(5_000))
    for number in range(2_000):
        position = prng.randrange(len(rows))
        table.stage_insert(position, numbers(number, 1))
        rows[position:position] = numbers(number, 1)["n"].to_pylist()
    looked_at.clear()
    assert len(table.touched_keys()) == 0
    table.graph.run_cycle()
    assert table.to_arrow()["n"].to_pylist() == rows
    # Each is spliced twice, and in the end all runs are looked at a few times.
    spliced, at_last = looked_at[: 2 * 2_000], looked_at[2 * 2_000 :]
    assert max(spliced) <= 16 + 3
    assert len(at_last) < 10
    assert max(at_last) > 3_000


def test_nothing_is_left_of_a_content_that_was_replaced() -> None:
    schema = pa.schema([("d", pa.dictionary(pa.int32(), pa.string()))])
    table = ListTable(UpdateGraph(), schema)
    held = []
    for turn in range(6):
        words = [f"{turn} {number}" for number in range(5000)]
        table.stage_replace(pa.table({"d": words}))
        table.graph.run_cycle()
        held.append(table.storage.nbytes)
    assert held[-1] == held[0]


def test_a_large_table_keeps_no_dictionary_of_rows_that_are_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(list_table, "COMPACTED_CELLS_MAX", 0)
    monkeypatch.setattr(list_table, "FREE_SLOTS_MIN", 10)
    monkeypatch.setattr(encoded, "WHOLE_VALUES", 50)
    schema = pa.schema([("d", pa.dictionary(pa.int32(), pa.string()))])
    graph = UpdateGraph()
    table = ListTable(graph, schema)
    pins = []
    for start in range(0, 3000, 20):
        texts = pa.array([f"text {number}" for number in range(start, start + 20)])
        if table.size > 60:
            table.stage_delete(0, 20)
        table.stage_add(pa.table([texts.dictionary_encode()], schema=schema))
        graph.run_cycle()
        first = max(0, start - 60)
        expected = [f"text {number}" for number in range(first, start + 20)]
        assert table.to_arrow()["d"].to_pylist() == expected
        pins.append((table.pinned(), expected))
    assert table.storage.columns[0]._cells._value_count < 1000  # type: ignore[attr-defined]
    for pin, expected in pins:
        assert pin.to_arrow()["d"].to_pylist() == expected
