"""``barrage ls``: the tables of a server."""

import json
from collections.abc import Iterable
from typing import Annotated, Any

import typer

from barrage.cli.target import JsonOption, TokenOption, UserOption, open_session, parse_server
from barrage.cli.text_table import format_rows
from barrage.cli.tls.tls_options import TlsChoice, with_tls_options

ServerArgument = Annotated[str, typer.Argument(metavar="HOST:PORT", show_default=False)]


@with_tls_options
def ls(
    server: ServerArgument,
    *,
    tls: TlsChoice,
    token: TokenOption = None,
    user: UserOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the tables of a server.

    \b
    Examples:
      barrage ls localhost:10000
      barrage ls localhost:10000 --json | jq -r '.[].name'
    """
    with open_session(parse_server(server, tls), token) as session:
        tables = [_facts(info) for info in session.tables()]
    tables.sort(key=lambda facts: facts["name"])
    if as_json:
        typer.echo(json.dumps(tables))
        return
    if not tables:
        typer.echo(f"no tables yet; publish one with `barrage put FILE {server}/NAME`", err=True)
        return
    for line in _lines(tables):
        typer.echo(line)


def _facts(info: Any) -> dict[str, Any]:
    return {
        "name": info.name,
        "rows": info.total_records,
        "columns": len(info.schema),
        "kind": info.kind,
        "key": list(info.key),
        "ticking": info.is_ticking,
    }


def _lines(tables: Iterable[dict[str, Any]]) -> list[str]:
    rows = [
        [
            facts["name"],
            "?" if facts["rows"] is None else f"{facts['rows']:,}",
            str(facts["columns"]),
            facts["kind"] or "",
            ",".join(facts["key"]),
            "yes" if facts["ticking"] else "no",
        ]
        for facts in tables
    ]
    columns = [list(column) for column in zip(*rows, strict=True)]
    names = ["name", "rows", "columns", "kind", "key", "ticking"]
    return format_rows(names, columns, right=[False, True, True, False, False, False], width=None)
