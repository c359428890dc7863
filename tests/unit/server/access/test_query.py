"""Queries become tables: every operation, shared results, and errors that name the operation."""

from __future__ import annotations

import pyarrow as pa
import pytest

from barrage.engine import KeyedTable, StaticTable, UpdateGraph
from barrage.errors import (
    BarrageError,
    CycleTooLongError,
    ExpressionError,
    RowError,
    SchemaError,
    TableNotFoundError,
)
from barrage.limits import DEFAULT_LIMITS
from barrage.model.operators import OPERATORS
from barrage.model.query import Query
from barrage.server.access.query import QueryRun, apply_query
from barrage.server.runtime.catalog import Catalog, Publication

SCHEMA = pa.schema([("k", pa.int64()), ("s", pa.string()), ("p", pa.float64())])
ROWS = pa.table({"k": [1, 2, 3], "s": ["A", "B", "A"], "p": [1.0, 2.0, 4.0]}, schema=SCHEMA)
LISTS = pa.table({"k": [7, 8], "l": [["x", None], ["y"]]})


@pytest.fixture
def catalog() -> Catalog:
    table = KeyedTable(UpdateGraph(), SCHEMA, key="k")
    table.stage_upsert(ROWS)
    table.graph.run_cycle()
    catalog = Catalog()
    catalog.add(Publication(name="t", table=table, kind="keyed"))
    lists = StaticTable(table.graph, LISTS)
    catalog.add(Publication(name="lists", table=lists, kind="static"))
    return catalog


def query(ops: str) -> str:
    return f'{{"table":"t","ops":[{ops}]}}'


TOTALS = '{"table":"t","ops":[["agg_by",["s"],{"sum":"sum(p)"}]]}'
CASES = {
    "where": ('["where","p > 1"]', {"k": [2, 3], "s": ["B", "A"], "p": [2.0, 4.0]}),
    "sort": ('["sort",["-p"]],["select",["k"]]', {"k": [3, 2, 1]}),
    "select": ('["select",["k"],{"d":"p * 2"}]', {"k": [1, 2, 3], "d": [2.0, 4.0, 8.0]}),
    "drop": ('["drop",["p","s"]]', {"k": [1, 2, 3]}),
    "head": ('["head",2],["select",["k"]]', {"k": [1, 2]}),
    "tail": ('["tail",2],["select",["k"]]', {"k": [2, 3]}),
    "slice": ('["slice",-2,-1],["select",["k"]]', {"k": [2]}),
    "last_by": ('["last_by",["s"]],["select",["k"]]', {"k": [3, 2]}),
    "agg_by": ('["agg_by",[],{"n":"count()"}]', {"n": [3]}),
    "select_distinct": ('["select_distinct",["s"]]', {"s": ["A", "B"]}),
    "natural_join": (
        f'["natural_join",{TOTALS},["s"]],["select",["k","sum"]]',
        {"k": [1, 2, 3], "sum": [5.0, 2.0, 5.0]},
    ),
    "merge": ('["merge",{"table":"t"}],["select",["k"]]', {"k": [1, 2, 3, 1, 2, 3]}),
    "head_by": ('["head_by",1,["s"]],["select",["k"]]', {"k": [1, 2]}),
    "tail_by": ('["tail_by",1,["s"]],["select",["k"]]', {"k": [2, 3]}),
    "ungroup": ('["ungroup",["l"]]', {"k": [7, 7, 8], "l": ["x", None, "y"]}),
    "update_by": (
        '["update_by",["s"],{"t":"cum_sum(p)"}],["select",["t"]]',
        {"t": [1.0, 2.0, 5.0]},
    ),
    "flatten": ('["flatten"],["select",["k"]]', {"k": [1, 2, 3]}),
}


def test_every_operation_has_a_case() -> None:
    assert set(CASES) == set(OPERATORS)


@pytest.mark.parametrize("name", CASES)
def test_operations(catalog: Catalog, name: str) -> None:
    ops, expected = CASES[name]
    text = query(ops).replace('"t","ops"', '"lists","ops"') if name == "ungroup" else query(ops)
    table = apply_query(catalog, text.encode())
    assert table.to_arrow().to_pydict() == expected
    assert apply_query(catalog, Query.parse(text)) is table


def test_no_operation_is_the_table_itself(catalog: Catalog) -> None:
    assert apply_query(catalog, '{"table":"t"}') is catalog.get("t").table


@pytest.mark.parametrize(
    ("ops", "error", "message"),
    [
        ('["head",1],["where","nope > 1"]', ExpressionError, "operation 2 of the query, where: "),
        ('["agg_by",["s"],{"n":"sum(s)"}]', SchemaError, "operation 1 of the query, agg_by: sum"),
        ('["agg_by",["s"],{"n":"sun(p)"}]', ExpressionError, "agg_by: unknown aggregation"),
        ('["drop",["x"]]', SchemaError, "operation 1 of the query, drop: unknown column 'x'"),
        (f'["natural_join",{TOTALS},["x"]]', SchemaError, "operation 1 of the query, natural_join"),
        ('["slice",3,1]', ExpressionError, "operation 1 of the query, slice: "),
        (
            '["natural_join",{"table":"t","ops":[["select",["s"],{"x":"k"}]]},["s"]]',
            RowError,
            "operation 1 of the query, natural_join: key 'A' occurs twice",
        ),
    ],
)
def test_what_does_not_fit_the_table(
    catalog: Catalog, ops: str, error: type[BarrageError], message: str
) -> None:
    with pytest.raises(error) as caught:
        apply_query(catalog, query(ops))
    assert message in str(caught.value)


def test_tables_that_do_not_exist(catalog: Catalog) -> None:
    with pytest.raises(TableNotFoundError, match="'tt' not found; did you mean 't'"):
        apply_query(catalog, '{"table":"tt"}')
    with pytest.raises(TableNotFoundError, match="'u' not found"):
        apply_query(catalog, query('["merge",{"table":"u"}]'))


def test_a_query_that_is_run_again_takes_no_table_that_was_ended(catalog: Catalog) -> None:
    run = QueryRun(catalog, query('["sort",["-p"]],["head",2]'), DEFAULT_LIMITS)
    first = run()
    (sort,) = first.parents
    for table in (sort, first):
        table.fail(CycleTooLongError())
    again = run()
    assert again is not first
    assert again.to_arrow()["k"].to_pylist() == [3, 2]
