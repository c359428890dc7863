"""Natural joins: names and types, duplicates, and updates that tell only what changed."""

from __future__ import annotations

import math
import random
from typing import Any

import pyarrow as pa
import pytest

from barrage.engine import (
    AppendOnlyTable,
    BlinkTable,
    KeyedTable,
    ListTable,
    StaticTable,
    Table,
    UpdateGraph,
)
from barrage.engine.operators import derive
from barrage.engine.operators import natural_join as natural_join_module
from barrage.errors import RowError, SchemaError
from barrage.model.storage import hashing
from tests.helpers import model

TRADES = pa.schema([("id", pa.int64()), ("symbol", pa.string()), ("price", pa.float64())])
SECTORS = pa.schema(
    [
        pa.field("symbol", pa.string(), nullable=False),
        pa.field("sector", pa.string(), nullable=False),
        pa.field("lots", pa.int64(), metadata={"unit": "pieces"}),
    ]
)


def trades(*rows: tuple[int, str | None, float]) -> pa.Table:
    return pa.Table.from_pylist(
        [{"id": i, "symbol": s, "price": p} for i, s, p in rows], schema=TRADES
    )


def sectors(*rows: tuple[str | None, str, int | None]) -> pa.Table:
    return pa.Table.from_pylist(
        [{"symbol": s, "sector": x, "lots": n} for s, x, n in rows], schema=SECTORS
    )


def column(table: Table, name: str) -> list[Any]:
    return table.to_arrow()[name].to_pylist()  # type: ignore[no-any-return]


class Market:
    """Keyed trades joined with keyed sectors."""

    def __init__(self) -> None:
        self.graph = UpdateGraph()
        self.left = KeyedTable(self.graph, TRADES, key="id")
        self.right = KeyedTable(self.graph, SECTORS, key="symbol")
        self.left.stage_upsert(
            trades((1, "A", 1.0), (2, "B", 2.0), (3, "A", 3.0), (4, "C", 4.0), (5, None, 5.0))
        )
        self.right.stage_upsert(sectors(("A", "tech", 10), ("B", "food", 20), ("D", "tech", 10)))
        self.graph.run_cycle()
        self.joined = derive.natural_join(self.left, self.right, ["symbol"])

    def modified(self) -> dict[str, str]:
        """Run a cycle; the modified rows per column, after checking the update as a whole."""
        before = model.content_of(self.joined)
        update = self.graph.run_cycle().updates.get(self.joined)
        if update is None:
            return {}
        model.check_update(before, update, model.content_of(self.joined))
        names = self.joined.schema.names
        return {
            name: keys.to_text()
            for name, keys in zip(names, update.modified_keys_post, strict=True)
            if len(keys)
        }


def test_each_row_shows_the_row_of_its_key() -> None:
    market = Market()
    assert market.joined.schema.names == ["id", "symbol", "price", "sector", "lots"]
    assert column(market.joined, "sector") == ["tech", "food", "tech", None, None]
    assert column(market.joined, "lots") == [10, 20, 10, None, None]
    assert market.joined.key_columns == ("id",)
    assert market.joined.schema.field("sector").nullable, "rows without a match are null"
    assert market.joined.schema.field("lots").metadata == {b"unit": b"pieces"}


def test_only_cells_that_changed_are_modified() -> None:
    market = Market()
    market.right.stage_upsert(sectors(("A", "tech", 11)))
    assert market.modified() == {"lots": "0,2"}
    market.left.stage_upsert(trades((4, "D", 4.0)))
    assert market.modified() == {"symbol": "3", "sector": "3", "lots": "3"}
    market.left.stage_upsert(trades((4, "A", 4.0)))
    assert market.modified() == {"symbol": "3", "lots": "3"}, "both rows say tech"
    market.right.stage_upsert(sectors(("C", "coal", 1)))
    assert market.modified() == {}, "nobody has that key any more"
    market.left.stage_upsert(trades((1, "A", 1.5)))
    assert market.modified() == {"price": "0"}
    market.right.stage_remove(pa.table({"symbol": ["A"]}))
    assert market.modified() == {"sector": "0,2-3", "lots": "0,2-3"}


def test_changes_on_both_sides_in_one_cycle() -> None:
    market = Market()
    market.left.stage_upsert(trades((4, "E", 4.0), (6, "E", 6.0)))
    market.left.stage_remove(pa.table({"id": [1]}))
    market.right.stage_upsert(sectors(("E", "new", 5), ("A", "tech", 12)))
    market.right.stage_remove(pa.table({"symbol": ["B"]}))
    assert market.modified() == {"symbol": "3", "sector": "1,3", "lots": "1-3"}
    assert column(market.joined, "sector") == [None, "tech", "new", None, "new"]


def test_a_right_row_may_take_over_the_key_of_another_one() -> None:
    graph = UpdateGraph()
    left = KeyedTable(graph, TRADES, key="id")
    right = ListTable(graph, SECTORS)
    left.stage_upsert(trades((1, "A", 1.0), (2, "B", 2.0), (3, "C", 3.0)))
    right.stage_add(sectors(("A", "one", 1), ("B", "two", 1)))
    graph.run_cycle()
    joined = derive.natural_join(left, right, ["symbol"])
    right.stage_overwrite(0, sectors(("B", "one", 1), ("A", "two", 1)))
    update = graph.run_cycle().updates[joined]
    assert column(joined, "sector") == ["two", "one", None]
    assert [keys.to_text() for keys in update.modified_keys_post[3:]] == ["0-1", ""]
    right.stage_replace(sectors(("C", "new", 1), ("A", "two", 1)))
    graph.run_cycle()
    assert column(joined, "sector") == ["two", None, "new"]


def test_names_may_be_given_for_both_sides_and_for_the_result() -> None:
    market = Market()
    renamed = derive.select(market.right, code="symbol", price="lots")
    joined = derive.natural_join(
        market.left, renamed, ["symbol = code"], ["lots=price", "key=code"]
    )
    assert joined.schema.names == ["id", "symbol", "price", "lots", "key"]
    assert column(joined, "lots") == [10, 20, 10, None, None]
    assert column(joined, "key") == ["A", "B", "A", None, None]
    assert (
        derive.natural_join(market.left, renamed, ["symbol==code"], ["lots=price", "key=code"])
        is joined
    )


def test_a_null_key_matches_a_null_key_and_nan_matches_nan() -> None:
    graph = UpdateGraph()
    left = StaticTable(graph, pa.table({"k": [1.0, None, math.nan]}))
    right = StaticTable(graph, pa.table({"k": [math.nan, None], "v": ["nan", "null"]}))
    assert column(derive.natural_join(left, right, ["k"]), "v") == [None, "null", "nan"]


def test_dictionaries_match_the_plain_type_of_their_values() -> None:
    graph = UpdateGraph()
    names = pa.array(["x", "y", None, "z"])
    left = StaticTable(graph, pa.table({"k": names.dictionary_encode()}))
    right = StaticTable(graph, pa.table({"k": ["z", "x"], "v": pa.array(["p", "q"])}))
    assert column(derive.natural_join(left, right, ["k"]), "v") == ["q", None, None, "p"]
    encoded = derive.natural_join(derive.select(right, "k", w="k"), left, ["k"], ["other=k"])
    assert column(encoded, "other") == ["z", "x"]


TEXT, SHORT = pa.dictionary(pa.int32(), pa.string()), pa.dictionary(pa.int8(), pa.string())


@pytest.mark.parametrize("left_type", [TEXT, SHORT, pa.string()], ids=str)
@pytest.mark.parametrize("right_type", [TEXT, SHORT, pa.string()], ids=str)
def test_keys_in_dictionaries_come_and_go(
    left_type: pa.DataType, right_type: pa.DataType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(natural_join_module, "FREE_NUMBERS_MIN", 0)
    monkeypatch.setattr(natural_join_module, "PACKED_TOGETHER", 3)
    graph, prng = UpdateGraph(), random.Random(0)
    left = KeyedTable(graph, pa.schema([("id", pa.int64()), ("k", left_type)]), key="id")
    right = KeyedTable(graph, pa.schema([("k", right_type), ("v", pa.int64())]), key="k")
    joined = derive.natural_join(left, right, ["k"])
    for cycle in range(60):
        words = [None, *(f"word {cycle // 3 + number}" for number in range(8))]
        ids = prng.sample(range(12), 5)
        cells = pa.array(prng.choices(words, k=5), pa.string())
        cells = cells if left_type == pa.string() else cells.dictionary_encode().cast(left_type)
        left.stage_upsert(pa.table([pa.array(ids), cells], schema=left.schema))
        keys = pa.array(prng.sample(words[1:], 4), pa.string())
        keys = keys if right_type == pa.string() else keys.dictionary_encode().cast(right_type)
        right.stage_upsert(pa.table([keys, pa.array([cycle] * 4)], schema=right.schema))
        if cycle % 4 == 3:
            right.stage_remove(right.to_arrow().slice(0, 6).select(["k"]))
        assert not graph.run_cycle().failed
        shown = dict(zip(column(right, "k"), column(right, "v"), strict=True))
        assert column(joined, "v") == [shown.get(key) for key in column(left, "k")]


def test_keys_in_dictionaries_are_not_written_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """One long text may be the key of many rows."""
    hashed: list[int] = []
    hash_text = hashing._hash_text

    def counted(values: pa.Array) -> hashing.UInt64Array:
        hashed.append(len(values))
        return hash_text(values)

    graph = UpdateGraph()
    many = pa.DictionaryArray.from_arrays(pa.array([0] * 5_000, pa.int32()), ["a long one"])
    left = AppendOnlyTable(graph, pa.schema([("k", TEXT)]))
    right = StaticTable(graph, pa.table({"k": ["a long one"], "v": [1]}))
    left.stage_add(pa.table([many], schema=left.schema))
    graph.run_cycle()
    monkeypatch.setattr(hashing, "_hash_text", counted)
    joined = derive.natural_join(left, right, ["k"])
    left.stage_add(pa.table([many], schema=left.schema))
    graph.run_cycle()
    assert sum(hashed) < 20
    assert column(joined, "v") == [1] * 10_000


@pytest.mark.parametrize(
    "values",
    [
        pa.array([[1, 2], [3]]),
        pa.nulls(2),
        pa.array(["a", "b"]).dictionary_encode(),
        pa.array([1, 2]),
        pa.array([{"x": 1}, {"x": None}]),
    ],
    ids=lambda values: str(values.type),
)
def test_columns_of_any_type_can_be_added(values: pa.Array) -> None:
    graph = UpdateGraph()
    left = StaticTable(graph, pa.table({"k": [2, 7, 1]}))
    right = StaticTable(graph, pa.table({"k": [1, 2], "v": values}))
    joined = derive.natural_join(left, right, ["k"])
    second, first = values.to_pylist()[1], values.to_pylist()[0]
    assert column(joined, "v") == [second, None, first]
    assert joined.to_arrow().schema.field("v").type == values.type


def test_run_end_encoded_columns_can_be_added() -> None:
    graph = UpdateGraph()
    encoded = pa.RunEndEncodedArray.from_arrays(pa.array([2, 3], pa.int32()), pa.array(["a", "b"]))
    left = StaticTable(graph, pa.table({"k": [3, 9, 1]}))
    right = StaticTable(graph, pa.table({"k": [1, 2, 3], "v": encoded}))
    assert column(derive.natural_join(left, right, ["k"]), "v") == ["b", None, "a"]


def test_two_right_rows_with_one_key_are_refused_by_name() -> None:
    graph = UpdateGraph()
    left = AppendOnlyTable(graph, TRADES)
    right = AppendOnlyTable(graph, SECTORS)
    joined = derive.natural_join(left, right, ["symbol"])
    right.stage_add(sectors(("A", "one", 1), ("B", "two", 2)))
    assert not graph.run_cycle().failed
    right.stage_add(sectors(("C", "three", 3), ("B", "four", 4)))
    result = graph.run_cycle()
    assert str(result.failed[joined]) == (
        "key 'B' occurs twice on the right side of a natural join (column 'symbol')"
    )
    with pytest.raises(RowError, match="'B' occurs twice"):
        derive.natural_join(left, right, ["symbol"])


def test_two_new_right_rows_with_one_null_key_are_refused() -> None:
    graph = UpdateGraph()
    left = AppendOnlyTable(graph, TRADES)
    right = AppendOnlyTable(graph, pa.schema([("s", pa.string()), ("i", pa.int64())]))
    joined = derive.natural_join(left, right, ["symbol=s", "id=i"])
    right.stage_add(pa.table({"s": pa.array([None, "x", None], pa.string()), "i": [3, 3, 3]}))
    assert "key None, 3 occurs twice" in str(graph.run_cycle().failed[joined])


def test_without_key_columns_every_row_shows_the_only_row() -> None:
    graph = UpdateGraph()
    left = StaticTable(graph, pa.table({"a": [1, 2]}))
    right = ListTable(graph, pa.schema([("v", pa.int64())]))
    joined = derive.natural_join(left, right, [])
    assert column(joined, "v") == [None, None]
    right.stage_add(pa.table({"v": [5]}))
    graph.run_cycle()
    assert column(joined, "v") == [5, 5]
    right.stage_add(pa.table({"v": [6]}))
    assert "at most one row" in str(graph.run_cycle().failed[joined])


@pytest.mark.parametrize(
    ("on", "add", "message"),
    [
        (["symbl"], [], "the left table has no column 'symbl'; did you mean 'symbol'?"),
        (["symbol=sym"], [], "the right table has no column 'sym'; did you mean 'symbol'?"),
        (["id=symbol"], [], "cannot match 'id' of type int64 with 'symbol' of type string"),
        (["symbol"], ["price=lots"], "two columns 'price'"),
        (["symbol"], ["x=lots", "x=sector"], "two columns 'x'"),
        (["symbol"], ["nothing"], "the right table has no column 'nothing'"),
        (["tags"], [], "'tags' of type list<item: int64> cannot be a key"),
    ],
)
def test_columns_that_do_not_fit_are_named(on: list[str], add: list[str], message: str) -> None:
    graph = UpdateGraph()
    left = AppendOnlyTable(graph, TRADES.append(pa.field("tags", pa.list_(pa.int64()))))
    right = AppendOnlyTable(graph, SECTORS)
    with pytest.raises(SchemaError) as refusal:
        derive.natural_join(left, right, on, add)
    assert message in str(refusal.value)


def test_what_a_join_promises_follows_from_both_sides() -> None:
    graph = UpdateGraph()
    static = StaticTable(graph, sectors(("A", "one", 1)))
    growing = AppendOnlyTable(graph, TRADES)
    blink = BlinkTable(graph, TRADES)
    assert derive.natural_join(growing, static, ["symbol"]).is_append_only
    assert not derive.natural_join(growing, blink, ["symbol"], ["p=price"]).is_append_only
    assert derive.natural_join(blink, static, ["symbol"]).is_blink
    assert not derive.natural_join(growing, blink, ["symbol"], ["p=price"]).is_blink
    assert derive.natural_join(static, static, ["symbol"], ["s=sector"]).is_static
    assert not derive.natural_join(static, blink, ["symbol"], ["p=price"]).is_static


def test_keys_nobody_has_any_more_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(natural_join_module, "FREE_NUMBERS_MIN", 10)
    graph = UpdateGraph()
    left, right = BlinkTable(graph, TRADES), KeyedTable(graph, SECTORS, key="symbol")
    joined: Any = derive.natural_join(left, right, ["symbol"])
    right.stage_upsert(sectors(("s7", "seven", 7), ("s99", "last", 99)))
    for number in range(100):
        left.stage_add(trades((1, f"s{number}", 1.0), (2, f"s{number + 1}", 1.0)))
        graph.run_cycle()
        assert joined._numbers.count <= 2 * (2 + 2) + 10
    assert column(joined, "sector") == ["last", None]
    left.stage_add(trades((1, "s7", 1.0)))
    graph.run_cycle()
    assert column(joined, "sector") == ["seven"]


def test_joining_nothing_but_the_key_adds_no_column() -> None:
    market = Market()
    keys = derive.select(market.right, "symbol")
    joined = derive.natural_join(market.left, keys, ["symbol"])
    assert joined.schema.names == TRADES.names
    market.right.stage_upsert(sectors(("Z", "z", 1)))
    assert joined not in market.graph.run_cycle().updates
