"""Queries as text: one canonical form, and everything else refused with the place it is at."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrage.errors import BarrageError, ExpressionError, LimitExceededError, UnsupportedError
from barrage.limits import DEFAULT_LIMITS
from barrage.model.cursor import Cursor
from barrage.model.operators import OPERATORS, Form
from barrage.model.query import AppliedOperator, Query, past_places

TEXT = (
    '{"table":"quotes","ops":[["where","price > 3"],["sort",["-price","größe"]],'
    '["agg_by",["symbol"],{"n":"count()","a":"avg(price)"}],["select",["a"],{"b":"a*2"}],'
    '["natural_join",{"table":"s","ops":[["flatten"]]},["symbol"],["sector"]],["head",10],'
    '["slice",-3,0],["select_distinct",[]]]}'
)

texts = st.text(min_size=1, max_size=5).filter(lambda t: t.isprintable() and t.isascii())


def arguments(form: Form, queries: st.SearchStrategy[Query]) -> st.SearchStrategy:
    lists = {"max_size": 3}
    return {
        Form.TEXT: texts,
        Form.TEXTS: st.lists(texts, **lists).map(tuple),
        Form.SOME_TEXTS: st.lists(texts, min_size=1, **lists).map(tuple),
        Form.PAIRS: st.dictionaries(texts, texts, **lists).map(lambda d: tuple(d.items())),
        Form.COUNT: st.integers(0, 2**63 - 1),
        Form.POSITION: st.integers(-(2**62), 2**62),
        Form.QUERY: queries,
    }[form]


def operations(queries: st.SearchStrategy[Query]) -> st.SearchStrategy[AppliedOperator]:
    return st.one_of(
        st.tuples(*(arguments(parameter.form, queries) for parameter in spec.parameters)).map(
            lambda given, name=name: AppliedOperator(name, given)
        )
        for name, spec in OPERATORS.items()
    )


queries = st.recursive(
    st.builds(Query, texts),
    lambda inner: st.builds(Query, texts, st.lists(operations(inner), max_size=4).map(tuple)),
    max_leaves=4,
)


@given(queries)
def test_text_and_query_are_the_same(query: Query) -> None:
    text = query.to_json()
    assert Query.parse(text) == Query.parse(text.encode()) == query
    assert hash(Query.parse(text)) == hash(query)
    assert Query.parse(text).to_json() == text


def test_the_text_is_canonical() -> None:
    assert Query.parse(TEXT).to_json() == TEXT.replace('["sector"]', '["sector"]')
    loose = json.dumps(json.loads(TEXT), indent=3)
    assert Query.parse(loose).to_json() == TEXT


def test_what_may_be_left_out_is_empty() -> None:
    query = Query.parse('{"table":"t","ops":[["select",["a"]],["agg_by",[],[]]]}')
    assert query.operations == (
        AppliedOperator("select", (("a",), ())),
        AppliedOperator("agg_by", ((), ())),
    )
    assert Query.parse('{"table":"t"}') == Query("t")


@pytest.mark.parametrize(
    ("ops", "message"),
    [
        ('["where"]', "operation 2 of the query, where: argument 1 is missing, a text"),
        ('["where","a","b"]', "where: takes 1 arguments at most"),
        ('["where",""]', "where: argument 1 is a text, not ''"),
        ('["where",["a"]]', "where: argument 1 is a text, not a list of 1"),
        ('["where","\\ud800"]', "where: argument 1 is a text"),
        ('["sort",[]]', "sort: argument 1 is a list of at least one text"),
        ('["sort",["a",1]]', "sort: argument 1 is a list"),
        ('["select",{"a":"b"}]', "select: argument 1 is a list of texts, not an object"),
        ('["agg_by",[],{"a":1}]', "agg_by: argument 2 is an object of texts"),
        ('["agg_by",[],{"a":"b","a":"c"}]', "agg_by: argument 2 is an object of texts"),
        ('["agg_by",[]]', "agg_by: argument 2 is missing, an object of texts"),
        ('["head",-1]', "head: argument 1 is a number of rows, not -1"),
        ('["head",true]', "head: argument 1 is a number of rows, not True"),
        ('["head",1.5]', "head: argument 1 is a number of rows, not 1.5"),
        ('["head",9223372036854775808]', "head: argument 1 is a number of rows"),
        ('["slice",0]', "slice: argument 2 is missing, a whole number"),
        ('["natural_join","t",["a"]]', "natural_join: argument 1 is a query, not 't'"),
        ('["merge"]', "merge: argument 1 is missing, a query"),
        ('["flatten",1]', "flatten: takes 0 arguments at most"),
        ("[]", "operation 2 of the query is a list"),
        ('{"where":"a"}', "operation 2 of the query is a list"),
        ('["natural_join",{"tabel":"t"},["a"]]', "members 'table', 'ops' and 'at', not 'tabel'"),
    ],
)
def test_operations_that_do_not_fit(ops: str, message: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        Query.parse(f'{{"table":"t","ops":[["head",1],{ops}]}}')
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        *(b"", b"\xff", b"{", b"[]", b"3", b"{}", b'{"table":1}', b'{"table":""}', b"[" * 60_000),
        *(b'{"table":"t","ops":{}}', b'{"table":"t","table":"t"}', b'{"table":"t","x":1}'),
        *(b'{"table":"t","ops":[["head",NaN]]}', b'{"table":"t","ops":[["head",%s]]}'),
        b'{"table":"t","ops":[["head",' + b"9" * 5000 + b"]]}",
    ],
)
def test_text_that_is_no_query(text: bytes) -> None:
    with pytest.raises(ExpressionError):
        Query.parse(text)


def test_an_unknown_operation_is_named() -> None:
    with pytest.raises(
        UnsupportedError, match="operation 1 of the query: no operation 'wher'; did"
    ):
        Query.parse('{"table":"t","ops":[["wher","a"]]}')
    with pytest.raises(UnsupportedError, match="no operation 7; there are where, sort"):
        Query.parse('{"table":"t","ops":[[7]]}')


def nested(depth: int) -> str:
    text = '{"table":"t"}'
    for _ in range(depth - 1):
        text = f'{{"table":"t","ops":[["merge",{text}]]}}'
    return text


def test_limits() -> None:
    limits = replace(
        DEFAULT_LIMITS, expression_bytes_max=300, expression_depth_max=3, operations_max=4
    )
    Query.parse(nested(3), limits)
    with pytest.raises(LimitExceededError, match="query is 4 tables deep"):
        Query.parse(nested(4), limits)
    steps = ",".join(['["flatten"]'] * 2)
    inner = f'["merge",{{"table":"t","ops":[{steps}]}}]'
    Query.parse(f'{{"table":"t","ops":[{inner},["flatten"]]}}', limits)
    with pytest.raises(LimitExceededError, match="query is 5 operations"):
        Query.parse(f'{{"table":"t","ops":[{inner},["flatten"],["flatten"]]}}', limits)
    text = '{"table":"' + "t" * 288 + '"}'
    assert len(text) == 300
    Query.parse(text, limits)
    with pytest.raises(LimitExceededError, match="query is 301 bytes"):
        Query.parse(text + " ", limits)
    assert isinstance(Query.parse(nested(64)), Query)


@given(st.binary(max_size=60) | st.text(max_size=60))
def test_any_text_is_a_query_or_a_typed_error(text: bytes | str) -> None:
    try:
        Query.parse(text)
    except BarrageError:
        return


def test_the_past_of_a_query_and_of_those_in_it() -> None:
    epoch = "0123456789abcdef"
    inner = {"table": "b", "at": f"{epoch}:7", "ops": []}
    text = json.dumps({"table": "a", "at": f"{epoch}:5", "ops": [["merge", inner]]})
    assert past_places(Query.parse(text)) == {("a", Cursor(epoch, 5)), ("b", Cursor(epoch, 7))}
    assert past_places(Query.parse(TEXT)) == set()
    assert Query.parse(json.dumps({"table": "a", "at": None, "ops": []})).at is None


@pytest.mark.parametrize("at", ["", "5", "x:1", 5, ["a"]])
def test_a_past_that_is_none(at: object) -> None:
    with pytest.raises(ExpressionError, match="the 'at' of a query"):
        Query.parse(json.dumps({"table": "a", "at": at, "ops": []}))
