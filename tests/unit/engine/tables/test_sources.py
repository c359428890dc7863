"""Sources: staging is complete and all-or-nothing, commits say exactly what changed."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from barrage.engine import (
    AppendOnlyTable,
    BlinkTable,
    KeyedTable,
    ListTable,
    RingTable,
    SourceTable,
    StaticTable,
    UpdateGraph,
    coerce_rows,
)
from barrage.errors import (
    EngineError,
    LimitExceededError,
    RowError,
    SchemaError,
    UnsupportedError,
)
from barrage.limits import Limits
from barrage.rowset import RowSet, Shift
from tests.helpers import model

SCHEMA = pa.schema([("sym", pa.string()), ("price", pa.float64()), ("n", pa.int64())])


def rows(sym: list[str | None], price: list[float | None], n: list[int | None]) -> pa.Table:
    return pa.table({"sym": sym, "price": price, "n": n}, schema=SCHEMA)


@pytest.fixture
def graph() -> UpdateGraph:
    return UpdateGraph()


def test_append_only_rows_get_the_next_keys(graph: UpdateGraph) -> None:
    table = AppendOnlyTable(graph, SCHEMA)
    assert (graph.step, graph.has_pending, table.size) == (0, False, 0)
    table.stage_add(rows(["a", "b"], [1.0, 2.0], [1, 2]))
    table.stage_add(rows(["c"], [3.0], [3]).to_batches()[0])
    assert graph.has_pending
    assert table.size == 0, "nothing shows before the cycle"
    result = graph.run_cycle()
    assert result.step == graph.step == 1
    assert result.updates[table].added_keys_post == RowSet.of_span(0, 3)
    table.stage_add(rows(["d"], [4.0], [4]))
    assert graph.run_cycle().updates[table].added_keys_post == RowSet([3])
    assert table.to_arrow()["sym"].to_pylist() == ["a", "b", "c", "d"]
    assert table.is_append_only
    assert table.is_flat
    assert not graph.run_cycle().updates


def test_read_selects_rows_and_columns(graph: UpdateGraph) -> None:
    table = AppendOnlyTable(graph, SCHEMA)
    table.stage_add(rows(list("abcdef"), [1.0] * 6, [0, 1, 2, 3, 4, 5]))
    graph.run_cycle()
    sym, n = table.read(RowSet([1, 3, 4]), (0, 2, 9))
    assert sym.to_pylist() == ["b", "d", "e"]
    assert n.to_pylist() == [1, 3, 4]
    assert [len(column) for column in table.read(RowSet.empty())] == [0, 0, 0]


def test_long_runs_are_read_as_slices(graph: UpdateGraph) -> None:
    table = AppendOnlyTable(graph, pa.schema([("n", pa.int64())]))
    table.stage_add(pa.table({"n": np.arange(10_000)}))
    graph.run_cycle()
    keys = RowSet.of_span(0, 2000) | RowSet.of_span(5000, 8000)
    (cells,) = table.read(keys)
    assert isinstance(cells, pa.ChunkedArray)
    assert cells.to_pylist() == keys.to_numpy().tolist()


def test_upserts_name_only_cells_that_changed(graph: UpdateGraph) -> None:
    table = KeyedTable(graph, SCHEMA, key="sym")
    table.stage_upsert(rows(["a", "b", "c"], [1.0, float("nan"), None], [1, 2, 3]))
    graph.run_cycle()
    before = model.content_of(table)
    table.stage_upsert(rows(["d", "c", "b", "a"], [9.0, None, float("nan"), 5.0], [9, 4, 2, 1]))
    update = graph.run_cycle().updates[table]
    assert update.added_keys_post == RowSet([3])
    assert update.modified_keys_post == (RowSet.empty(), RowSet([0]), RowSet([2]))
    model.check_update(before, update, model.content_of(table))
    model.check_exact(before, update, model.content_of(table))
    table.stage_upsert(rows(["a"], [5.0], [1]))
    assert not graph.run_cycle().updates, "rewriting the same cells changes nothing"


def test_keys_of_several_columns_and_types(graph: UpdateGraph) -> None:
    schema = pa.schema(
        [
            ("d", pa.dictionary(pa.int8(), pa.string())),
            ("t", pa.timestamp("ns")),
            ("m", pa.decimal128(20, 2)),
            ("v", pa.list_(pa.int64())),
        ]
    )
    table = KeyedTable(graph, schema, key=["d", "t", "m"])
    assert table.schema.field("d").type == pa.dictionary(pa.int32(), pa.string())
    assert table.key_columns == ("d", "t", "m")
    first = pa.table(
        {"d": ["x", "y"], "t": [1, 1], "m": [1, 1], "v": [[1], [2, None]]},
    )
    table.stage_upsert(first)
    graph.run_cycle()
    table.stage_upsert(pa.table({"d": ["y", "y"], "t": [1, 2], "m": [1, 1], "v": [[3], None]}))
    update = graph.run_cycle().updates[table]
    assert update.added_keys_post == RowSet([2])
    assert update.modified_keys_post[3] == RowSet([1])
    assert table.to_arrow()["v"].to_pylist() == [[1], [3], None]


def test_removals_by_key_ignore_what_is_not_there(graph: UpdateGraph) -> None:
    table = KeyedTable(graph, SCHEMA, key="sym")
    table.stage_add(rows(["a", "b"], [1.0, 2.0], [1, 2]))
    graph.run_cycle()
    table.stage_remove(pa.table({"sym": ["b", "zz", "b"]}))
    update = graph.run_cycle().updates[table]
    assert update.removed_keys_pre == RowSet([1])
    table.stage_remove(pa.table({"sym": ["b"]}))
    assert not graph.run_cycle().updates
    table.stage_upsert(rows(["b"], [2.0], [2]))
    assert graph.run_cycle().updates[table].added_keys_post == RowSet([1]), "behind the last row"


def test_a_row_added_and_removed_in_one_cycle_never_was(graph: UpdateGraph) -> None:
    table = KeyedTable(graph, SCHEMA, key="sym")
    table.stage_upsert(rows(["a"], [1.0], [1]))
    table.stage_remove(pa.table({"sym": ["a"]}))
    assert not graph.run_cycle().updates
    assert table.size == 0


def test_replacing_keeps_rows_with_known_keys(graph: UpdateGraph) -> None:
    table = KeyedTable(graph, SCHEMA, key="sym")
    table.stage_upsert(rows(["a", "b", "c"], [1.0, 2.0, 3.0], [1, 2, 3]))
    graph.run_cycle()
    table.stage_upsert(rows(["x"], [0.0], [0]))
    table.stage_replace(rows(["b", "d"], [2.0, 4.0], [7, 4]))
    update = graph.run_cycle().updates[table]
    assert update.removed_keys_pre == RowSet([0, 2])
    assert update.modified_keys_post == (RowSet.empty(), RowSet.empty(), RowSet([1]))
    assert table.to_arrow()["sym"].to_pylist() == ["b", "d"]


def test_a_sparse_keyed_table_is_renumbered_with_shifts(graph: UpdateGraph) -> None:
    schema = pa.schema([("k", pa.int64()), ("v", pa.string())])
    table = KeyedTable(graph, schema, key="k")
    count = 12_000
    keys = np.arange(count)
    table.stage_upsert(pa.table({"k": keys, "v": [str(key) for key in keys]}))
    graph.run_cycle()
    before = model.content_of(table)
    table.stage_remove(pa.table({"k": keys[(keys % 100) != 3]}))
    table.stage_upsert(pa.table({"k": [count, 203], "v": ["new", "changed"]}))
    update = graph.run_cycle().updates[table]
    assert not update.shifts.is_empty
    assert table.row_keys == RowSet.of_span(0, 121)
    model.check_update(before, update, model.content_of(table))
    model.check_exact(before, update, model.content_of(table))
    table.stage_upsert(pa.table({"k": [count], "v": ["again"]}))
    update = graph.run_cycle().updates[table]
    assert update.modified_keys_post[1] == RowSet([120]), "the index knows the new numbers"


def test_list_edits_shift_the_rows_behind(graph: UpdateGraph) -> None:
    table = ListTable(graph, pa.schema([("n", pa.int64())]))
    table.stage_add(pa.table({"n": [0, 1, 2, 3]}))
    graph.run_cycle()
    table.stage_insert(1, pa.table({"n": [10, 11]}))
    table.stage_delete(4, 5)
    table.stage_overwrite(0, pa.table({"n": [0, 12]}))
    update = graph.run_cycle().updates[table]
    assert table.to_arrow()["n"].to_pylist() == [0, 12, 11, 1, 3]
    assert update.removed_keys_pre == RowSet([2])
    assert update.added_keys_post == RowSet([1, 2])
    assert list(update.shifts) == [Shift(1, 1, 2), Shift(3, 3, 1)]
    assert update.modified_keys_post == (RowSet.empty(),), "overwritten new rows are additions"


def test_replacing_a_list_keeps_equal_rows(graph: UpdateGraph) -> None:
    table = ListTable(graph, SCHEMA)
    content = rows([*"abcde", None, None], [1.0, 2.0, 3.0, 4.0, 5.0, None, None], [*range(6), 5])
    table.stage_replace(content)
    graph.run_cycle()
    table.stage_replace(content)
    assert not graph.run_cycle().updates, "the same content is no change"
    new = rows([*"xbde", None, "c"], [0.0, 2.0, 4.0, 5.0, None, 3.0], [9, 1, 3, 4, 5, 2])
    table.stage_replace(new)
    update = graph.run_cycle().updates[table]
    assert table.to_arrow() == new
    assert update.removed_keys_pre == RowSet([0, 2, 6])
    assert update.added_keys_post == RowSet([0, 5])
    assert list(update.shifts) == [Shift(3, 5, -1)]
    table.stage_replace(new.slice(0, 0))
    assert graph.run_cycle().updates[table].removed_keys_pre.size == 6


def test_replacing_a_list_with_anything_ends_in_that(graph: UpdateGraph) -> None:
    schema = pa.schema([("n", pa.int64()), ("l", pa.list_(pa.int64()))])
    table = ListTable(graph, schema)
    random = np.random.default_rng(5)
    for turn in range(200):
        before = model.content_of(table)
        numbers = random.integers(0, 1 + turn % 7, random.integers(0, 12)).tolist()
        lists = [[n % 2] if n != 3 else None for n in numbers]
        new = pa.table({"n": numbers, "l": lists}, schema=schema)
        if turn % 5 == 0 and table.size:
            table.stage_delete(0, 1)
        table.stage_replace(new)
        if turn % 3 == 0:
            table.stage_insert(len(new) // 2, new.slice(0, 2))
            new = pa.concat_tables(
                [new.slice(0, len(new) // 2), new.slice(0, 2), new.slice(len(new) // 2)]
            )
        update = graph.run_cycle().updates.get(table)
        assert table.to_arrow() == new
        if update is not None:
            model.check_update(before, update, model.content_of(table))


def test_list_slots_are_reclaimed(graph: UpdateGraph) -> None:
    table = ListTable(graph, pa.schema([("n", pa.int64())]))
    for turn in range(5):
        table.stage_replace(pa.table({"n": np.arange(3000) + 3000 * turn}))
        graph.run_cycle()
    assert table.to_arrow()["n"].to_pylist() == list(range(12_000, 15_000))
    assert table.storage.nbytes < 8 * 12_000


def test_list_positions_are_checked_against_the_staged_size(graph: UpdateGraph) -> None:
    table = ListTable(graph, pa.schema([("n", pa.int64())]))
    table.stage_add(pa.table({"n": [1, 2]}))
    table.stage_insert(2, pa.table({"n": [3]}))
    with pytest.raises(RowError, match="positions 4 to 4 are outside the table of 3 rows"):
        table.stage_insert(4, pa.table({"n": [1]}))
    with pytest.raises(RowError, match="outside"):
        table.stage_delete(-1, 2)
    with pytest.raises(RowError, match="outside"):
        table.stage_overwrite(2, pa.table({"n": [1, 2]}))


def test_a_ring_keeps_the_newest_rows(graph: UpdateGraph) -> None:
    table = RingTable(graph, pa.schema([("n", pa.int64())]), capacity=3)
    table.stage_add(pa.table({"n": [0, 1]}))
    graph.run_cycle()
    table.stage_add(pa.table({"n": [2, 3]}))
    update = graph.run_cycle().updates[table]
    assert (update.removed_keys_pre, update.added_keys_post) == (RowSet([0]), RowSet([2, 3]))
    table.stage_add(pa.table({"n": list(range(4, 14))}))
    update = graph.run_cycle().updates[table]
    assert update.removed_keys_pre == RowSet([1, 2, 3])
    assert update.added_keys_post == RowSet([11, 12, 13])
    assert table.to_arrow()["n"].to_pylist() == [11, 12, 13]
    with pytest.raises(EngineError, match="capacity 0"):
        RingTable(graph, SCHEMA, capacity=0)


def test_blink_rows_live_for_one_cycle(graph: UpdateGraph) -> None:
    table = BlinkTable(graph, pa.schema([("n", pa.int64())]))
    assert not graph.has_pending
    table.stage_add(pa.table({"n": [1, 2]}))
    graph.run_cycle()
    assert graph.has_pending, "the rows have to go"
    table.stage_add(pa.table({"n": [3]}))
    update = graph.run_cycle().updates[table]
    assert (update.removed_keys_pre, update.added_keys_post) == (RowSet([0, 1]), RowSet([0]))
    assert table.to_arrow()["n"].to_pylist() == [3]
    update = graph.run_cycle().updates[table]
    assert (update.removed_keys_pre, update.added_keys_post) == (RowSet([0]), RowSet.empty())
    assert not graph.has_pending


def test_static_tables_refuse_every_write(graph: UpdateGraph) -> None:
    table = StaticTable(graph, rows(["a"], [1.0], [1]))
    assert table.is_static
    assert table.size == 1
    assert table.staged_mark() == 0
    table.rollback(0)
    some = rows(["a"], [1.0], [1])
    for write in (
        lambda: table.stage_add(some),
        lambda: table.stage_upsert(some),
        lambda: table.stage_remove(some),
        lambda: table.stage_insert(0, some),
        lambda: table.stage_delete(0, 1),
        lambda: table.stage_replace(some),
    ):
        with pytest.raises(UnsupportedError, match="not possible in a static table"):
            write()
    assert not graph.run_cycle().updates
    with pytest.raises(UnsupportedError, match=r"upserting rows .* in an append-only table"):
        AppendOnlyTable(graph, SCHEMA).stage_upsert(some)


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (
            {"sym": ["a", "a"], "price": [1.0, 2.0], "n": [1, 2]},
            RowError,
            r"'a' occurs twice.*row 1",
        ),
        ({"sym": ["a", None], "price": [1.0, 2.0], "n": [1, 2]}, RowError, r"null.*'sym', row 1"),
        ({"sym": ["a", "b"], "price": ["1", "x"], "n": [1, 2]}, RowError, r"'x'.*'price', row 1"),
        (
            {"sym": ["a"], "price": [1.5], "n": [1.5]},
            RowError,
            r"1.5 does not fit int64.*'n', row 0",
        ),
        ({"sym": ["a"], "prize": [1.0], "n": [1]}, SchemaError, "'prize'; did you mean 'price'"),
        ({"sym": ["a"], "n": [1]}, SchemaError, "column 'price' is missing"),
        ({"sym": ["a"], "price": [[1.0]], "n": [1]}, SchemaError, "column 'price' is list"),
    ],
)
def test_a_bad_batch_is_refused_as_a_whole(
    graph: UpdateGraph, data: dict[str, list[object]], error: type[Exception], message: str
) -> None:
    table = KeyedTable(graph, SCHEMA, key="sym")
    with pytest.raises(error, match=message):
        table.stage_upsert(pa.table(data))
    assert not graph.has_pending


def test_bad_keys_are_named(graph: UpdateGraph) -> None:
    with pytest.raises(SchemaError, match="'sim' does not exist; did you mean 'sym'"):
        KeyedTable(graph, SCHEMA, key="sim")
    with pytest.raises(SchemaError, match="named twice"):
        KeyedTable(graph, SCHEMA, key=("sym", "sym"))
    with pytest.raises(SchemaError, match="at least one"):
        KeyedTable(graph, SCHEMA, key=())
    with pytest.raises(SchemaError, match="cannot be a key"):
        KeyedTable(graph, pa.schema([("l", pa.list_(pa.int64()))]), key="l")
    table = KeyedTable(graph, SCHEMA, key="sym")
    with pytest.raises(RowError, match="null"):
        table.stage_remove(pa.table({"sym": pa.array([None], pa.string())}))
    with pytest.raises(SchemaError, match="'sym' is missing"):
        table.stage_remove(pa.table({"other": [1]}))


def test_schemas_are_checked(graph: UpdateGraph) -> None:
    with pytest.raises(SchemaError, match="'a' occurs twice"):
        AppendOnlyTable(graph, pa.schema([("a", pa.int64()), ("a", pa.int64())]))
    deep = pa.int64()
    for _ in range(20):
        deep = pa.list_(deep)
    with pytest.raises(SchemaError, match="nested deeper than 16"):
        AppendOnlyTable(graph, pa.schema([("a", deep)]))
    narrow = UpdateGraph(Limits(columns_max=2))
    with pytest.raises(LimitExceededError, match="3 columns, the limit is 2"):
        AppendOnlyTable(narrow, SCHEMA)
    AppendOnlyTable(narrow, pa.schema([("a", pa.int64()), ("b", pa.int64())]))


def test_coercion_reorders_casts_and_encodes() -> None:
    schema = pa.schema(
        [
            pa.field("a", pa.int32(), nullable=False),
            ("d", pa.dictionary(pa.int32(), pa.string())),
            ("r", pa.run_end_encoded(pa.int32(), pa.int64())),
            ("v", pa.string()),
        ]
    )
    data = pa.table(
        {
            "v": pa.array(["x", "y"], pa.string_view()),
            "r": pa.array([1, 1], pa.int32()),
            "d": pa.array(["p", None]).dictionary_encode(),
            "a": pa.array([1, 2], pa.int64()),
        }
    )
    rows_ = coerce_rows(schema, data)
    assert rows_.schema == schema
    assert rows_.to_pylist() == [
        {"a": 1, "d": "p", "r": 1, "v": "x"},
        {"a": 2, "d": None, "r": 1, "v": "y"},
    ]
    with pytest.raises(RowError, match=r"null is not allowed \(column 'a', row 1\)"):
        coerce_rows(schema, data.set_column(3, "a", pa.array([1, None])))
    with pytest.raises(SchemaError, match="Arrow table or record batch, not dict"):
        coerce_rows(schema, {})  # type: ignore[arg-type]
    back = coerce_rows(pa.schema([("r", pa.int64())]), rows_.select(["r"]))
    assert back.to_pylist() == [{"r": 1}, {"r": 1}]


def sources(graph: UpdateGraph) -> list[SourceTable]:
    return [
        AppendOnlyTable(graph, SCHEMA),
        KeyedTable(graph, SCHEMA, key="sym"),
        ListTable(graph, SCHEMA),
        RingTable(graph, SCHEMA, capacity=5),
        BlinkTable(graph, SCHEMA),
    ]


def test_rollback_takes_back_what_was_staged_since(graph: UpdateGraph) -> None:
    for table in sources(graph):
        table.stage_add(rows(["a"], [1.0], [1]))
        mark = table.staged_mark()
        table.stage_add(rows(["b"], [1.0], [1]))
        table.stage_add(rows(["c"], [1.0], [1]))
        table.rollback(mark)
        graph.run_cycle()
        assert table.to_arrow()["sym"].to_pylist() == ["a"]
        late = table.staged_mark()
        table.stage_add(rows(["d"], [1.0], [1]))
        table.rollback(mark)
        assert not table._staged, "a mark from before the cycle takes back what came after it"
        table.rollback(late)
        with pytest.raises(EngineError, match="was never handed out"):
            table.rollback(99)
