"""The options that make a query of a table, shared by all commands that read one."""

from __future__ import annotations

import functools
import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import typer

from barrage.cli.arguments import split_names
from barrage.cli.command_errors import usage_error

if TYPE_CHECKING:
    from collections.abc import Callable

JoinOption = Annotated[
    list[str] | None,
    typer.Option(
        "--join",
        metavar="TABLE:ON[:ADD]",
        help="Columns of the one row of another table that agrees in ON, such as "
        "sectors:symbol:sector; names are separated by commas; may be repeated.",
        show_default=False,
    ),
]
WhereOption = Annotated[
    list[str] | None,
    typer.Option(
        "--where",
        metavar="CONDITION",
        help="Only rows for which this holds, such as 'price > 3'; may be repeated.",
        show_default=False,
    ),
]
ByOption = Annotated[
    str | None,
    typer.Option(
        "--by", metavar="A,B,…", help="Group by these columns; needs --agg.", show_default=False
    ),
]
AggOption = Annotated[
    list[str] | None,
    typer.Option(
        "--agg",
        metavar="NAME=FUNCTION(COLUMN)",
        help="A column per group, such as n='count()' or total='sum(price)'; may be repeated.",
        show_default=False,
    ),
]
DistinctOption = Annotated[
    str | None,
    typer.Option(
        "--distinct",
        metavar="A,B,…",
        help="Each combination of these columns once.",
        show_default=False,
    ),
]
SortOption = Annotated[
    str | None,
    typer.Option("--sort", metavar="A,-B,…", help="Sort; - is descending.", show_default=False),
]
HeadOption = Annotated[
    int | None,
    typer.Option("--head", metavar="N", min=0, help="The first rows.", show_default=False),
]
TailOption = Annotated[
    int | None,
    typer.Option("--tail", metavar="N", min=0, help="The last rows.", show_default=False),
]

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryOptions:
    """What is done to the table, in this order: join, where, by and agg, distinct, sort, head,
    tail."""

    join: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = ()
    """Other table, columns to match, columns to add (none: all others)."""
    where: tuple[str, ...] = ()
    by: tuple[str, ...] = ()
    agg: tuple[tuple[str, str], ...] = ()
    distinct: tuple[str, ...] = ()
    sort: tuple[str, ...] = ()
    head: int | None = None
    tail: int | None = None

    def apply(self, table_of: Callable[[str], T], name: str) -> T:
        """The query on the table ``name``; ``table_of`` gives the remote tables of either
        client."""
        query: Any = table_of(name)
        for other, on, add in self.join:
            query = query.natural_join(table_of(other), on, add)
        if self.where:
            query = query.where(*self.where)
        if self.agg:
            query = query.agg_by(*self.by, **dict(self.agg))
        if self.distinct:
            query = query.select_distinct(*self.distinct)
        if self.sort:
            query = query.sort(*self.sort)
        if self.head is not None:
            query = query.head(self.head)
        if self.tail is not None:
            query = query.tail(self.tail)
        return query  # type: ignore[no-any-return]


def parse_query(
    *,
    join: list[str] | None,
    where: list[str] | None,
    by: str | None,
    agg: list[str] | None,
    distinct: str | None,
    sort: str | None,
    head: int | None,
    tail: int | None,
) -> QueryOptions:
    """The options as given; a usage error for what cannot be."""
    aggregations = tuple(_aggregation(text) for text in agg or ())
    groups = tuple(split_names(by) or ())
    if groups and not aggregations:
        raise usage_error("--by groups rows for --agg; add, for example, --agg n='count()'")
    if len(dict(aggregations)) != len(aggregations):
        raise usage_error("two --agg make a column of the same name")
    return QueryOptions(
        join=tuple(_join(text) for text in join or ()),
        where=tuple(where or ()),
        by=groups,
        agg=aggregations,
        distinct=tuple(split_names(distinct) or ()),
        sort=tuple(split_names(sort) or ()),
        head=head,
        tail=tail,
    )


def _aggregation(text: str) -> tuple[str, str]:
    name, equals, function = (part.strip() for part in text.partition("="))
    if not equals or not name or not function:
        raise usage_error(f"--agg {text!r}: write NAME=FUNCTION(COLUMN), such as n='count()'")
    return name, function


def _join(text: str) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    table, *names = (part.strip() for part in text.split(":"))
    if not table or not 1 <= len(names) <= 2 or not all(names):
        raise usage_error(
            f"--join {text!r}: write TABLE:ON or TABLE:ON:ADD, such as sectors:symbol:sector"
        )
    on, add = (
        tuple(split_names(part) or ()) for part in (names[0], names[1] if names[1:] else None)
    )
    return table, on, add


_OPTIONS: dict[str, Any] = {
    "join": JoinOption,
    "where": WhereOption,
    "by": ByOption,
    "agg": AggOption,
    "distinct": DistinctOption,
    "sort": SortOption,
    "head": HeadOption,
    "tail": TailOption,
}


def with_query_options(command: Callable[..., None]) -> Callable[..., None]:
    """A command with the options of a query in front of its own, which reach it as one argument
    ``query``."""

    @functools.wraps(command)
    def run(**arguments: Any) -> None:
        given = {name: arguments.pop(name) for name in _OPTIONS}
        command(query=parse_query(**given), **arguments)

    hints = get_type_hints(command, include_extras=True)
    own = [
        parameter.replace(annotation=hints[name])
        for name, parameter in inspect.signature(command).parameters.items()
        if name != "query"
    ]
    added = [
        inspect.Parameter(
            name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None, annotation=kind
        )
        for name, kind in _OPTIONS.items()
    ]
    run.__signature__ = inspect.Signature([own[0], *added, *own[1:]])  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in (own[0], *added, *own[1:])}
    return run
