"""``barrage serve``: a server for tables that clients put, files and live tables of the machine."""

import json
import signal
from contextlib import ExitStack, nullcontext
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from barrage.cli.command_errors import EXIT_INTERRUPTED
from barrage.cli.running_server import (
    host_tables,
    listen,
    new_server,
    parse_table_option,
    publish_files,
    settings,
)
from barrage.cli.target import JsonOption, TokenOption

PortOption = Annotated[
    int | None,
    typer.Option(
        "--port",
        metavar="N",
        min=0,
        max=65535,
        help="Port to listen on, 10000 by default; 0 takes any free one.",
        show_default=False,
    ),
]
HostOption = Annotated[
    str | None,
    typer.Option(
        "--host",
        metavar="ADDRESS",
        help="Address to listen on, 127.0.0.1 by default; any but loopback gets a token.",
        show_default=False,
    ),
]
ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config", metavar="FILE", help="Settings in TOML.", show_default=False, dir_okay=False
    ),
]
TablesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--table",
        metavar="NAME=FILE",
        help="Publish a .parquet, .csv or .arrow file; may be repeated.",
        show_default=False,
    ),
]


DataOption = Annotated[
    Path | None,
    typer.Option(
        "--data",
        metavar="DIR",
        help="Keep tables in this directory; they are back after a restart.",
        show_default=False,
        file_okay=False,
    ),
]


class JournalChoice(StrEnum):
    """What keeps the changes of tables for which nothing else is said."""

    DURABLE = "durable"
    MEMORY = "memory"
    NONE = "none"


JournalOption = Annotated[
    JournalChoice | None,
    typer.Option(
        "--journal",
        help="Where changes are kept: on disk (default with --data), in memory, or not at all.",
        show_default=False,
    ),
]


BodiesOption = Annotated[
    str | None,
    typer.Option(
        "--bodies",
        metavar="WAYS",
        help="Faster ways for large messages to our own clients: shm (shared memory, same host), "
        "ucx (only where every caller is trusted: see docs/security.md), or shm,ucx; off by "
        "default.",
        show_default=False,
    ),
]


UsersOption = Annotated[
    Path | None,
    typer.Option(
        "--users",
        metavar="FILE",
        help="Users with passwords (`barrage user add`); read again when it changes.",
        show_default=False,
        dir_okay=False,
    ),
]
PolicyOption = Annotated[
    Path | None,
    typer.Option(
        "--policy",
        metavar="FILE",
        help="Rules of who may see and do what (`barrage policy check`); read again when the file "
        "changes.",
        show_default=False,
        dir_okay=False,
    ),
]
AnonymousOption = Annotated[
    bool | None,
    typer.Option(
        "--anonymous/--no-anonymous",
        help="Whether callers that show nothing pass; by default only where others cannot reach "
        "the server and no other way to log in is set up.",
        show_default=False,
    ),
]
AuditOption = Annotated[
    Path | None,
    typer.Option(
        "--audit",
        metavar="FILE",
        help="Write who did what to which table to this file, in lines of JSON.",
        show_default=False,
        dir_okay=False,
    ),
]
TlsCertOption = Annotated[
    str | None,
    typer.Option(
        "--tls-cert",
        metavar="FILE",
        help="Certificate in PEM; with --tls-key all connections are TLS.",
        show_default=False,
    ),
]
TlsKeyOption = Annotated[
    str | None,
    typer.Option("--tls-key", metavar="FILE", help="Key of --tls-cert in PEM.", show_default=False),
]
TlsClientCaOption = Annotated[
    str | None,
    typer.Option(
        "--tls-client-ca",
        metavar="FILE",
        help="Authorities of clients; every client must show a certificate of one of them.",
        show_default=False,
    ),
]
ConnectorOption = Annotated[
    str | None,
    typer.Option(
        "--connector",
        metavar="HOST:PORT",
        help="Serve sources of the connector protocol there; each program's streams land in a "
        "table of its name.",
        show_default=False,
    ),
]


class Demo(StrEnum):
    """Tables that tick by themselves."""

    HOST = "host"


DemoOption = Annotated[
    Demo | None,
    typer.Option("--demo", help="Publish live tables of this machine.", show_default=False),
]


def serve(
    *,
    port: PortOption = None,
    host: HostOption = None,
    token: TokenOption = None,
    config: ConfigOption = None,
    demo: DemoOption = None,
    table: TablesOption = None,
    data: DataOption = None,
    journal: JournalOption = None,
    bodies: BodiesOption = None,
    users: UsersOption = None,
    policy: PolicyOption = None,
    anonymous: AnonymousOption = None,
    audit: AuditOption = None,
    tls_cert: TlsCertOption = None,
    tls_key: TlsKeyOption = None,
    tls_client_ca: TlsClientCaOption = None,
    connector: ConnectorOption = None,
    as_json: JsonOption = False,
) -> None:
    """Serve tables until Ctrl+C. Settings: defaults, then --config, then BARRAGE_… variables, then
    flags.

    \b
    Examples:
      barrage serve
      barrage serve --data tables
      barrage serve --demo host --port 10001
      barrage serve --table trades=trades.parquet --table quotes=quotes.arrow
      barrage serve --host 0.0.0.0 --token secret
      barrage serve --users users.jsonl --audit audit.log
      barrage serve --users users.jsonl --policy policy.toml
      barrage serve --host 0.0.0.0 --anonymous
      barrage serve --host 0.0.0.0 --tls-cert server.pem --tls-key server.key
      barrage serve --bodies shm
      barrage serve --data tables --connector 127.0.0.1:10020
      barrage serve --config barrage.toml
      barrage serve --port 0 --json
    """
    files = [parse_table_option(text) for text in table or []]
    with ExitStack() as stack:
        chosen = settings(
            config,
            host=host,
            port=port,
            token=token,
            data=data,
            journal=None if journal is None else journal.value,
            bodies=bodies,
            users=None if users is None else str(users),
            policy=None if policy is None else str(policy),
            anonymous=anonymous,
            audit=None if audit is None else str(audit),
            tls_cert=tls_cert,
            tls_key=tls_key,
            tls_client_ca=tls_client_ca,
            connector=connector,
        )
        server = stack.enter_context(new_server(chosen))
        publish_files(server, files)
        live = host_tables(server) if demo is Demo.HOST else nullcontext()
        listen(server)
        stack.enter_context(live)
        # What a server is made of is loaded only once there is to be one.
        from barrage.server.serving.stop_signals import StopSignals

        signals = stack.enter_context(StopSignals())
        _announce(server.address, server.port, as_json=as_json, connector=server.connector_port)
        if signals.wait() == signal.SIGINT:
            raise typer.Exit(EXIT_INTERRUPTED)


def _announce(address: str, port: int, *, as_json: bool, connector: int | None) -> None:
    """Say where the server listens: a JSON line on stdout for scripts, words on stderr else."""
    if as_json:
        doors = {} if connector is None else {"connector_port": connector}
        typer.echo(json.dumps({"address": address, "port": port, **doors}))
        return
    typer.echo(
        f"serving on {address}; `barrage ls {address}` lists the tables; Ctrl+C stops", err=True
    )
