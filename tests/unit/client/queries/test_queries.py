"""Chained operators: what they say to our servers and to Deephaven's, and what they refuse."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace

import pyarrow as pa
import pytest

from barrage.client.connection.table_sources import NamedSource
from barrage.client.queries.query import ExportedQuerySource, QuerySource
from barrage.client.queries.query_batch import run_query
from barrage.client.queries.query_steps import Step
from barrage.errors import ConfigError, ExpressionError, UnsupportedError
from barrage.model.query import Query
from tests.unit.client.scripted import scripted_session

T = {"table": "t", "ops": []}


def query_of(build):
    """The JSON in the ticket of a query on our server."""

    async def ask():
        async with scripted_session() as (session, _):
            table = build(session)
            ticket = await table._source.ticket()
            assert ticket.startswith(b"q/")
            assert Query.parse(ticket[2:]).to_json().encode() == ticket[2:]
            return json.loads(ticket[2:])

    return asyncio.run(ask())


@pytest.mark.parametrize(
    ("build", "operations"),
    [
        (lambda t: t.where("a > 1", "b == 'x'"), [["where", "a > 1"], ["where", "b == 'x'"]]),
        (lambda t: t.sort("-a", "b"), [["sort", ["-a", "b"]]]),
        (
            lambda t: t.agg_by("s", n="count()", a="sum(b)"),
            [["agg_by", ["s"], {"n": "count()", "a": "sum(b)"}]],
        ),
        (lambda t: t.agg_by(n="count()"), [["agg_by", [], {"n": "count()"}]]),
        (lambda t: t.select("a", b="a * 2"), [["select", ["a"], {"b": "a * 2"}]]),
        (lambda t: t.select("a"), [["select", ["a"], {}]]),
        (lambda t: t.drop("a"), [["drop", ["a"]]]),
        (lambda t: t.head(3).tail(2), [["head", 3], ["tail", 2]]),
        (lambda t: t.slice(-5, 3), [["slice", -5, 3]]),
        (lambda t: t.merge(t, t.head(1)), [["merge", T, {"table": "t", "ops": [["head", 1]]}]]),
        (lambda t: t.last_by("s"), [["last_by", ["s"]]]),
        (lambda t: t.select_distinct(), [["select_distinct", []]]),
        (lambda t: t.flatten(), [["flatten"]]),
    ],
)
def test_operators_travel_in_the_ticket(build, operations):
    query = query_of(lambda session: build(session.table("t")))
    assert query == {"table": "t", "ops": operations}


def test_a_join_names_the_query_it_joins():
    query = query_of(
        lambda session: session.table("t").natural_join(
            session.table("u").where("x > 1"), on="s=sym", add=["name"]
        )
    )
    other = {"table": "u", "ops": [["where", "x > 1"]]}
    assert query["ops"] == [["natural_join", other, ["s=sym"], ["name"]]]


def test_the_order_of_new_columns_is_kept():
    query = query_of(lambda session: session.table("t").select(z="a", a="z"))
    assert list(query["ops"][0][2]) == ["z", "a"]


def test_a_query_is_named_as_it_is_written():
    async def ask():
        async with scripted_session() as (session, _):
            table = session.table("t").where("a > 1").agg_by("s", n="count()").head(2)
            assert table.name == "t.where('a > 1').agg_by('s', n='count()').head(2)"

    asyncio.run(ask())


@pytest.mark.parametrize(
    "build",
    [
        lambda t: t.where(),
        lambda t: t.where(3),
        lambda t: t.sort(),
        lambda t: t.agg_by("s"),
        lambda t: t.update_by("s"),
        lambda t: t.update_by(total=3),
        lambda t: t.select(),
        lambda t: t.head(-1),
        lambda t: t.head("3"),
        lambda t: t.head_by(-1, "s"),
        lambda t: t.tail_by(1, ""),
        lambda t: t.slice(0, "3"),
        lambda t: t.merge(),
        lambda t: t.natural_join(t, on=[]),
    ],
)
def test_operators_refuse_what_makes_no_sense(build):
    async def ask():
        async with scripted_session() as (session, _):
            with pytest.raises(ExpressionError):
                build(session.table("t"))
            with pytest.raises(ConfigError):
                session.table("t").natural_join("u", on="s")
            with pytest.raises(ConfigError):
                session.table("t").merge("u")

    asyncio.run(ask())


class Calls:
    """Records batches instead of sending them."""

    def __init__(self, columns=("a", "b")):
        self.batches = []
        self.released = []
        self.schema = pa.schema([(name, pa.int64()) for name in columns])
        self.generation = 1

    async def describe(self, ticket, label, timeout):
        return self

    async def batch(self, operations, *, label, texts):
        assert len(operations) == len(texts)
        self.batches.append(operations)
        return SimpleNamespace(ticket=b"e" + bytes([len(self.batches), 0, 0, 0]))

    def release_soon(self, exported):
        self.released.append(exported.ticket)


class Root(NamedSource):
    def __init__(self):
        super().__init__(None, "t")


def batches_of(*steps):
    calls = Calls()
    asyncio.run(run_query(calls, Root(), steps, label="q"))
    return calls


def test_operators_become_one_batch():
    calls = batches_of(
        Step("where", ("a > `x`",)),
        Step("sort", (("-a", "b"),)),
        Step("select", (("a",), (("c", "a*2"),))),
        Step("head", (5,)),
    )
    (operations,) = calls.batches
    where, sort, view, head = (getattr(op, op.WhichOneof("op")) for op in operations)
    assert where.source_id.ticket.ticket == b"s/t"
    assert list(where.filters) == ["a > `x`"]
    assert [(s.column_name, s.direction) for s in sort.sorts] == [("a", -1), ("b", 1)]
    assert list(view.column_specs) == ["a", "c = a*2"]
    assert (head.num_rows, head.source_id.batch_offset) == (5, 2)


def test_merges_and_slices():
    calls = batches_of(Step("merge", (Root(), Root())), Step("slice", (-5, -1)))
    merge, cut = calls.batches[0]
    assert [source.ticket.ticket for source in merge.merge.source_ids] == [b"s/t"] * 3
    assert (cut.slice.first_position_inclusive, cut.slice.last_position_exclusive) == (-5, -1)


def test_arguments_that_are_fields():
    calls = batches_of(
        Step("natural_join", (Root(), ("a=b",), ("c",))),
        Step("head_by", (3, ("a",))),
        Step("tail_by", (1, ())),
        Step("ungroup", (("b",),)),
        Step("drop", (("c",),)),
    )
    join, first, last, cells, rest = calls.batches[0]
    assert join.natural_join.left_id.ticket.ticket == b"s/t"
    assert join.natural_join.right_id.ticket.ticket == b"s/t"
    assert list(join.natural_join.columns_to_match) == ["a=b"]
    assert (first.head_by.num_rows, [*first.head_by.group_by_column_specs]) == (3, ["a"])
    assert (last.tail_by.num_rows, [*last.tail_by.group_by_column_specs]) == (1, [])
    assert (cells.ungroup.null_fill, [*cells.ungroup.columns_to_ungroup]) == (False, ["b"])
    assert list(rest.drop_columns.column_names) == ["c"]


def test_aggregations():
    calls = batches_of(Step("agg_by", (("s",), (("n", "count()"), ("top", "max( a )")))))
    request = calls.batches[0][0].aggregate
    assert list(request.group_by_columns) == ["s"]
    count, top = request.aggregations
    assert count.count.column_name == "n"
    assert top.columns.spec.WhichOneof("type") == "max"
    assert list(top.columns.match_pairs) == ["top = a"]


@pytest.mark.parametrize(
    ("text", "error"),
    [("median(a)", UnsupportedError), ("a + 1", ExpressionError), ("sum(a", ExpressionError)],
)
def test_aggregations_that_cannot_be_sent(text, error):
    with pytest.raises(error):
        batches_of(Step("agg_by", ((), (("n", text),))))


def test_distinct_rows_of_all_columns_ask_for_the_columns_first():
    calls = batches_of(
        Step("where", ("a > 1",)), Step("select_distinct", ((),)), Step("head", (1,))
    )
    first, second = calls.batches
    assert [op.WhichOneof("op") for op in first] == ["unstructured_filter"]
    assert [op.WhichOneof("op") for op in second] == ["select_distinct", "head"]
    assert list(second[0].select_distinct.column_names) == ["a", "b"]
    assert second[0].select_distinct.source_id.ticket.ticket == b"e\x01\0\0\0"
    assert calls.released == [b"e\x01\0\0\0"]


def test_steps_that_deephaven_does_not_have():
    for name, arguments in (("update_by", (("s",), (("t", "cum_sum(a)"),))), ("teleport", ())):
        with pytest.raises(UnsupportedError, match=name):
            batches_of(Step(name, arguments))


def test_queries_keep_what_they_start_from():
    """The source of a query is used while the query is, and not by one that never was."""
    root = Root()
    connection = SimpleNamespace(calls=Calls())
    one = ExportedQuerySource(connection, root, (Step("head", (1,)),))
    assert not root.is_used
    one.retain()
    assert root.is_used
    two = ExportedQuerySource(connection, root, (Step("head", (2,)),))
    two.retain()
    one.release()
    assert root.is_used
    two.release()
    assert not root.is_used


def test_queries_of_our_servers_hold_nothing():
    source = QuerySource(None, "t", (Step("head", (1,)),))
    source.retain()
    source.release()
    assert not source.is_used
