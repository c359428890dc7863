"""``barrage schema``: the columns of a table."""

import json
from typing import Annotated

import typer

from barrage.cli.cells import printable
from barrage.cli.query_options import QueryOptions, with_query_options
from barrage.cli.target import JsonOption, TokenOption, UserOption, open_session, parse_table
from barrage.cli.text_table import format_rows
from barrage.cli.tls.tls_options import TlsChoice, with_tls_options

TableArgument = Annotated[str, typer.Argument(metavar="HOST:PORT/TABLE", show_default=False)]


@with_tls_options
@with_query_options
def schema(
    table: TableArgument,
    query: QueryOptions,
    *,
    tls: TlsChoice,
    token: TokenOption = None,
    user: UserOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the columns of a table and their Arrow types.

    \b
    Examples:
      barrage schema localhost:10000/processes
      barrage schema localhost:10000/processes --json
      barrage schema localhost:10000/processes --by user --agg load='sum(cpu_percent)'
    """
    address = parse_table(table, tls)
    with open_session(address.server, token) as session:
        fields = list(query.apply(session.table, address.table).schema)
    if as_json:
        typer.echo(
            json.dumps(
                [{"name": f.name, "type": str(f.type), "nullable": f.nullable} for f in fields]
            )
        )
        return
    names, types = (
        [printable(field.name) for field in fields],
        [str(field.type) for field in fields],
    )
    for line in format_rows(["column", "type"], [names, types], right=[False, False], width=None):
        typer.echo(line)
