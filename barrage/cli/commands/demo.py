"""``barrage demo``: a server with live tables of this machine, and one of them on the screen."""

from dataclasses import replace
from secrets import token_urlsafe
from typing import Annotated

import typer

from barrage.cli.commands.setting_options import BodiesOption, HostOption, PortOption, WebPortOption
from barrage.cli.commands.watch import (
    OnceOption,
    RowCountOption,
    SecondsOption,
    plain_options,
)
from barrage.cli.running_server import asks_who_calls, host_tables, listen, new_server, settings
from barrage.cli.target import JsonOption, TableAddress, TokenOption, parse_server
from barrage.cli.watch.run import PLAIN_ROWS, watch_table

BrowserOption = Annotated[
    bool | None,
    typer.Option(
        "--web/--no-web",
        help="--web opens the page in a browser; --no-web serves none.",
        show_default=False,
    ),
]

DEMO_TABLE = "processes_by_cpu"
DEMO_INTERVAL_MS = 100


def demo(
    *,
    port: PortOption = None,
    host: HostOption = None,
    rows: RowCountOption = PLAIN_ROWS,
    seconds: SecondsOption = None,
    once: OnceOption = False,
    token: TokenOption = None,
    bodies: BodiesOption = None,
    web: BrowserOption = None,
    web_port: WebPortOption = None,
    as_json: JsonOption = False,
) -> None:
    """Serve this machine live and watch its processes.

    The busiest come first; q or Ctrl+C ends both.

    \b
    Examples:
      barrage demo
      barrage demo --port 10001
      barrage demo --web
      barrage demo --once --rows 5
      barrage demo --seconds 10 | tee processes.txt
    """
    plain = plain_options(rows=rows, seconds=seconds, is_once=once, is_json=as_json)
    config = settings(
        None,
        is_for_people=True,
        host=host,
        port=port,
        token=token,
        journal="memory",
        bodies=bodies,
        web=web,
        web_port=web_port,
    )
    if config.token is None and asks_who_calls(config):
        # It watches its own server with a key that nobody else knows.
        config = replace(config, token=token_urlsafe(32))
    with new_server(config) as server:
        live = host_tables(server)
        listen(server)
        address = TableAddress(server=parse_server(server.uri), table=DEMO_TABLE)
        _announce(str(address.server), server.web_uri)
        if web and server.web_uri is not None:
            # Beside the terminal: what the browser says is nobody's business here.
            typer.launch(server.web_uri)
        with live:
            watch_table(address, token=server.token, interval_ms=DEMO_INTERVAL_MS, plain=plain)


def _announce(address: str, web: str | None) -> None:
    page = "" if web is None else f"; in a browser: {web}"
    typer.echo(f"serving on {address}; in another terminal: barrage ls {address}{page}", err=True)
