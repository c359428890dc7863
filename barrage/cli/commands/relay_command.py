"""``barrage relay``: a server that follows tables of upstream servers and serves them on."""

from __future__ import annotations

import asyncio
import json
import signal
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from barrage.cli.command_errors import EXIT_INTERRUPTED, CommandError, usage_error
from barrage.cli.commands.setting_options import (
    GivenSettings,
    with_setting_options,
)
from barrage.cli.running_server import (
    UPSTREAM_TOKEN_VARIABLE,
    UPSTREAM_USER_VARIABLE,
    check_host,
    log_to_stderr,
)
from barrage.cli.running_server import settings as server_settings
from barrage.cli.target import (
    JsonOption,
    QuietOption,
    login,
    parse_server,
    password_variable,
)
from barrage.cli.tls.tls_options import UPSTREAM, TlsChoice, with_tls_options
from barrage.errors import ConfigError

if TYPE_CHECKING:
    from barrage.relay.relay_server import Relay

UpstreamsArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="UPSTREAM...",
        help="HOST:PORT of the server to follow, and of those to go on with when it is lost.",
    ),
]
PatternsOption = Annotated[
    str,
    typer.Option(
        "--tables", metavar="NAMES", help="Names and patterns of tables, such as 'quotes,trades*'."
    ),
]
UpstreamTokenOption = Annotated[
    str | None,
    typer.Option(
        "--upstream-token",
        envvar=UPSTREAM_TOKEN_VARIABLE,
        show_envvar=True,
        metavar="TOKEN",
        help="Token the upstream servers ask for.",
    ),
]
UpstreamUserOption = Annotated[
    str | None,
    typer.Option(
        "--upstream-user",
        envvar=UPSTREAM_USER_VARIABLE,
        show_envvar=True,
        metavar="NAME",
        help=f"User the relay is there, with the password in {password_variable(UPSTREAM)}.",
        show_default=False,
    ),
]
LagOption = Annotated[
    int | None,
    typer.Option(
        "--lag-ms-max",
        metavar="N",
        min=1,
        help="Do not serve a table that is further behind, until it has caught up.",
        show_default=False,
    ),
]
DataOption = Annotated[
    Path | None,
    typer.Option(
        "--data",
        metavar="DIR",
        help="Keep the newest states of the tables in this directory: the next start serves them "
        "at once and asks upstream only for what changed since.",
        show_default=False,
        file_okay=False,
    ),
]
ReadOnlyOption = Annotated[
    bool,
    typer.Option("--read-only", help="Refuse writes instead of passing them on to the owner."),
]
SETTINGS = ("port", "host", "token", "metrics_port", "trace", "log_level", "log_json")
"""The options of a server that a relay has; others are set by the environment."""

ITS_PART = "relay"
"""Of the log: what is connected, lost, resumed."""


@partial(with_tls_options, prefix=UPSTREAM)
@partial(with_setting_options, names=SETTINGS)
def relay(
    upstreams: UpstreamsArgument,
    *,
    given: GivenSettings,
    tls: TlsChoice,
    tables: PatternsOption = "*",
    upstream_token: UpstreamTokenOption = None,
    upstream_user: UpstreamUserOption = None,
    lag_ms_max: LagOption = None,
    data: DataOption = None,
    read_only: ReadOnlyOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Serve tables of another server, under the same names, until Ctrl+C.

    Each table is followed once, however many read it here, and every step of it: clients that lose
    one relay, or the server itself, resume at another with nothing missed. The servers need a
    journal for that (`barrage serve --data DIR` or `--journal memory`). What is written here is
    passed on to the server that owns the table, with the upstream credentials, and so are its
    answers.

    \b
    Examples:
      barrage relay engine:10000
      barrage relay engine:10000 --tables 'quotes,trades*' --port 10001
      barrage relay relay-1:10000 relay-2:10000 --host 0.0.0.0 --token secret
      barrage relay engine:10000 --upstream-token secret --lag-ms-max 2000
      barrage relay grpcs://engine:10000 --upstream-user relay
      barrage relay engine:10000 --read-only
      barrage relay engine:10000 --data relay-states
      barrage relay engine:10000 --metrics-port 9464 --log-json --trace
      barrage watch localhost:10000/_relayed                 where each table stands
    """
    servers = [parse_server(text, tls) for text in upstreams]
    addresses = tuple(each.uri for each in servers)
    auth = login(upstream_token, upstream_user, prefix=UPSTREAM)
    config = server_settings(None, is_for_people=False, **given)
    check_host(config)
    # What a server is made of is loaded only once there is to be one.
    from barrage.relay.patterns import TablePatterns
    from barrage.relay.relay_server import Relay
    from barrage.relay.settings import RelaySettings, relay_config
    from barrage.relay.upstream_link import UpstreamSettings
    from barrage.server.settings.config import DEFAULT_ORIGIN

    try:
        chosen = RelaySettings(
            upstream=UpstreamSettings(addresses=addresses, auth=auth, tls=tls.tls),
            patterns=TablePatterns.parse(tables),
            lag_ms_max=lag_ms_max,
            is_read_only=read_only,
            data=data,
        )
        made = Relay(chosen, config=relay_config(config))
    except ConfigError as error:
        raise usage_error(str(error)) from error
    if config.origin("log_level") == DEFAULT_ORIGIN and not quiet:
        config = replace(config, log_level=f"{config.log_level},{ITS_PART}=info")
    with log_to_stderr(config):
        ended_by = asyncio.run(_serve(made, as_json=as_json))
    if ended_by == signal.SIGINT:
        raise typer.Exit(EXIT_INTERRUPTED)


async def _serve(made: Relay, *, as_json: bool) -> int:
    """Serve until a signal, which is returned."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[int] = loop.create_future()

    def end(number: int) -> None:
        if not ended.done():
            ended.set_result(number)

    try:
        await made.start()
    except ConfigError as error:
        raise CommandError(f"{error}: choose another address with --host or --port") from error
    try:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, end, number)
        if as_json:
            told: dict[str, str | int] = {"address": made.address, "port": made.port}
            if made.metrics_port is not None:
                told["metrics_port"] = made.metrics_port
            typer.echo(json.dumps(told))
        else:
            typer.echo(f"relaying on {made.address}; Ctrl+C stops", err=True)
        return await ended
    finally:
        await made.stop()
