"""The options of a query: what they make of a table, and how wrong ones are refused."""

from __future__ import annotations

import pytest

from barrage.cli.command_errors import CommandError
from barrage.cli.query_options import OperatorCall, QueryOptions, parse_query


class Recorder:
    def __init__(self, calls=()):
        self.calls = list(calls)

    def __getattr__(self, name):
        return lambda *args, **more: Recorder([*self.calls, (name, args, more)])


def test_no_options_leave_the_table_as_it_is():
    assert parse_query().apply(str.upper, "table") == "TABLE"


def test_options_are_applied_in_one_order():
    query = parse_query(
        tail=1,
        head=5,
        update=["t=cum_sum(a)"],
        update_by="s",
        ungroup="l",
        head_by="2:s, t",
        tail_by="1:s",
        sort="-n, s",
        distinct="n,s",
        by="s,t",
        agg=["n=count()", "top = max(a)"],
        where=["a > 1"],
        join=["sectors:s=symbol,t:sector", "other : t"],
    )
    tables = {name: Recorder([name]) for name in ("first", "sectors", "other")}
    assert query.apply(tables.__getitem__, "first").calls == [
        "first",
        ("natural_join", (tables["sectors"], ("s=symbol", "t"), ("sector",)), {}),
        ("natural_join", (tables["other"], ("t",), ()), {}),
        ("where", ("a > 1",), {}),
        ("ungroup", ("l",), {}),
        ("update_by", ("s",), {"t": "cum_sum(a)"}),
        ("agg_by", ("s", "t"), {"n": "count()", "top": "max(a)"}),
        ("head_by", (2, "s", "t"), {}),
        ("tail_by", (1, "s"), {}),
        ("select_distinct", ("n", "s"), {}),
        ("sort", ("-n", "s"), {}),
        ("head", (5,), {}),
        ("tail", (1,), {}),
    ]


def test_a_total_needs_no_groups():
    call = OperatorCall(operator="agg_by", arguments=((), (("n", "count()"),)))
    assert parse_query(agg=["n=count()"]) == QueryOptions(calls=(call,))


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"by": "s"}, "--agg"),
        ({"update_by": "s"}, "--update t"),
        ({"agg": ["count()"]}, "NAME="),
        ({"agg": ["=count()"]}, "NAME="),
        ({"agg": ["n="]}, "NAME="),
        ({"agg": ["n=count()", "n=sum(a)"]}, "same name"),
        ({"sort": ","}, "names"),
        ({"head_by": "2"}, "N:A,B"),
        ({"tail_by": "x:s"}, "such as 3:symbol"),
        ({"tail_by": "-1:s"}, "such as 3:symbol"),
        ({"join": ["sectors"]}, "TABLE:ON"),
        ({"join": ["a:b:c:d"]}, "TABLE:ON"),
        ({"join": [":b"]}, "TABLE:ON"),
    ],
)
def test_wrong_options_are_usage_errors(options, word):
    with pytest.raises(CommandError, match=word) as caught:
        parse_query(**options)
    assert caught.value.exit_code == 2
