"""The operators of the Python API, synchronous and awaited."""

from __future__ import annotations

import asyncio

import pytest

import barrage
from barrage.errors import (
    EngineError,
    ExpressionError,
    RequestRefusedError,
    RowError,
    SchemaError,
    TableFailedError,
)
from tests.helpers.serving import HOST

SCHEMA = {"sym": "string", "price": "float64", "method": "int64"}
ROWS = {"sym": ["A", "B", "A"], "price": [1.0, 2.0, 4.0], "method": [10, 20, None]}
SECTORS = {"symbol": ["A"], "sector": ["energy"]}


def shown(view) -> list[dict]:
    return view.to_arrow().to_pylist()


def test_groups_tick_with_their_parent(server):
    table = server.create_table("t", SCHEMA)
    table.add(ROWS)
    # A column may be called like an argument of some function on the way.
    stats = table.agg_by("sym", n="count()", method="sum(method)", self="avg(price)")
    symbols = table.select_distinct("sym")
    published = server.publish("stats", stats)
    assert published.key_columns == ("sym",)
    table.add({"sym": ["B", "C"], "price": [3.0, 0.0], "method": [1, 2]})
    assert shown(published) == [
        {"sym": "A", "n": 2, "method": 10, "self": 2.5},
        {"sym": "B", "n": 2, "method": 21, "self": 2.5},
        {"sym": "C", "n": 1, "method": 2, "self": 0.0},
    ]
    assert shown(symbols) == [{"sym": "A"}, {"sym": "B"}, {"sym": "C"}]
    assert shown(table.agg_by(total="sum(price)")) == [{"total": 10.0}]


def test_joins_tick_with_both_sides_and_fail_alone(server):
    table, sectors = server.create_table("t", SCHEMA), server.create_table("s", data=SECTORS)
    table.add(ROWS)
    view = table.natural_join(sectors, "sym=symbol", ["of=sector"])
    assert [row["of"] for row in shown(view)] == ["energy", None, "energy"]
    sectors.add({"symbol": ["B"], "sector": ["food"]})
    assert [row["of"] for row in shown(view)] == ["energy", "food", "energy"]
    sectors.add({"symbol": ["B"], "sector": ["more food"]})
    with pytest.raises(TableFailedError, match="key 'B' occurs twice"):
        view.to_arrow()
    assert len(shown(table)) == 3
    with pytest.raises(RowError, match="key 'B' occurs twice"):
        table.natural_join(sectors, ["sym=symbol"])


def test_pieces_and_copies(server):
    table, more = server.create_table("t", SCHEMA), server.create_table("u", SCHEMA)
    table.add(ROWS)
    more.add({"sym": ["Z"], "price": [9.0], "method": [9]})
    both = table.merge(more, more)
    assert both.to_arrow()["sym"].to_pylist() == ["A", "B", "A", "Z", "Z"]
    assert both.slice(-3, -1).to_arrow()["sym"].to_pylist() == ["A", "Z"]
    frozen, flat = both.snapshot(), both.flatten()
    table.add(ROWS)
    assert len(frozen) == 5
    assert len(flat) == 8


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda t: t.agg_by("sym", n="sum(sym)"), SchemaError),
        (lambda t: t.agg_by("sym", n="summ(price)"), ExpressionError),
        (lambda t: t.select_distinct("nope"), SchemaError),
        (lambda t: t.merge(t.drop("sym")), SchemaError),
        (lambda t: t.natural_join(t, "nope"), SchemaError),
        (lambda t: t.slice(3, 1), EngineError),
    ],
)
def test_what_does_not_fit_is_said_at_once(server, make, error):
    table = server.create_table("t", SCHEMA)
    with pytest.raises(error):
        make(table)


def test_tables_of_two_servers_do_not_mix(server):
    table = server.create_table("t", SCHEMA)
    with barrage.Server(HOST) as other, pytest.raises(EngineError, match="different update graphs"):
        table.merge(other.create_table("t", SCHEMA))


def test_ends_of_groups_running_values_and_lists(server):
    table = server.create_table("t", SCHEMA)
    table.add(ROWS)
    running = table.update_by("sym", total="cum_sum(price)", smooth="ema_tick(method, 5)")
    server.publish("ends", running.tail_by(1, "sym"))
    lists = server.publish("lists", server.create_table("l", data={"n": [1, 2], "c": [[3], [4]]}))
    table.add({"sym": ["B"], "price": [0.5], "method": [None]})
    with barrage.connect(server.uri) as session:
        remote = session.table("t").update_by("sym", total="cum_sum(price)").head_by(2, "sym")
        assert remote.snapshot()["total"].to_pylist() == [1.0, 2.0, 5.0, 2.5]
        assert session.table("ends").snapshot()["total"].to_pylist() == [5.0, 2.5]
        assert session.table("ends").snapshot()["smooth"].to_pylist() == [10.0, 20.0]
        assert session.table("lists").ungroup().snapshot()["c"].to_pylist() == [3, 4]
        with pytest.raises(RequestRefusedError, match="update_by: cum_sum takes numbers"):
            session.table("t").update_by(t="cum_sum(sym)").snapshot()
    assert lists.ungroup("c").to_arrow()["n"].to_pylist() == [1, 2]


def test_awaited():
    async def main() -> None:
        async with barrage.AsyncServer() as server:
            table = await server.create_table("t", SCHEMA)
            sectors = await server.create_table("s", data=SECTORS)
            await table.add(ROWS)
            stats = await table.agg_by("sym", method="max(price)")
            joined = await stats.natural_join(sectors, on="sym=symbol")
            merged = await joined.merge(joined)
            frozen = await merged.snapshot()
            flat = await (await merged.slice(1, 3)).flatten()
            await table.add(ROWS)
            assert (await stats.to_arrow())["method"].to_pylist() == [4.0, 2.0]
            assert (await joined.to_arrow())["sector"].to_pylist() == ["energy", None]
            assert (await flat.to_arrow())["sym"].to_pylist() == ["B", "A"]
            assert len(frozen) == 4
            assert len(await table.select_distinct("sym")) == 2
            assert len(await (await table.update_by(t="cum_sum(price)")).head_by(1, "sym")) == 2

    asyncio.run(main())
