"""The settings of a server that are options of commands, each declared once.

A new one is an annotation here and its line in :data:`SETTING_OPTIONS`; it reaches the commands
under the name of the setting, those that take some of them alone when they name it.
"""

from __future__ import annotations

import functools
import inspect
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, get_type_hints

import typer

from barrage.cli.target import TokenOption

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

GivenSettings: TypeAlias = "dict[str, str | int | bool | None]"
"""By the name of the setting: what a flag said, or None."""

_ARGUMENT = "given"
"""The argument of the command that gets them."""

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
TlsCrlOption = Annotated[
    str | None,
    typer.Option(
        "--tls-crl",
        metavar="FILE",
        help="Lists of revoked certificates of clients, one of each of these authorities.",
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
ConnectorConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--connector-config",
        metavar="FILE",
        help="Programs that sources may have, and what their messages become (docs/connectors.md).",
        show_default=False,
        dir_okay=False,
    ),
]
MetricsPortOption = Annotated[
    int | None,
    typer.Option(
        "--metrics-port",
        metavar="N",
        min=0,
        max=65535,
        help="Answer Prometheus and probes there by HTTP: /metrics, /healthz, /readyz; on loopback "
        "unless metrics_host says otherwise.",
        show_default=False,
    ),
]
TraceOption = Annotated[
    bool | None,
    typer.Option(
        "--trace/--no-trace",
        help="Remember what the updates of the last minute went through (`barrage trace`).",
        show_default=False,
    ),
]
LogLevelOption = Annotated[
    str | None,
    typer.Option(
        "--log-level",
        metavar="LEVEL",
        help="debug, info, warning (the default) or error, and those of parts: "
        "'warning,journal=debug'.",
        show_default=False,
    ),
]
LogJsonOption = Annotated[
    bool | None,
    typer.Option("--log-json/--no-log-json", help="Lines of the log are JSON.", show_default=False),
]
AlertsOption = Annotated[
    Path | None,
    typer.Option(
        "--alerts",
        metavar="FILE",
        help="Alerts: what is sent to which address when a condition upon rows becomes true.",
        show_default=False,
        dir_okay=False,
    ),
]
AlertHostsOption = Annotated[
    str | None,
    typer.Option(
        "--alert-hosts",
        metavar="HOSTS",
        help="Hosts that alerts may be sent to, with commas between them; by default any that has "
        "a public address.",
        show_default=False,
    ),
]
WebOption = Annotated[
    bool | None,
    typer.Option(
        "--web/--no-web",
        help="Whether browsers are served: the page with live tables. On by default where only "
        "this machine can reach the server.",
        show_default=False,
    ),
]
WebPortOption = Annotated[
    int | None,
    typer.Option(
        "--web-port",
        metavar="N",
        min=0,
        max=65535,
        help="Port for browsers, 10080 by default, or any free one where it is taken.",
        show_default=False,
    ),
]
WebOriginsOption = Annotated[
    str | None,
    typer.Option(
        "--web-origins",
        metavar="URLS",
        help="Origins of other pages that may call the server, with commas between them.",
        show_default=False,
    ),
]


SETTING_OPTIONS: dict[str, Any] = {
    "port": PortOption,
    "host": HostOption,
    "token": TokenOption,
    "data": DataOption,
    "journal": JournalOption,
    "bodies": BodiesOption,
    "users": UsersOption,
    "policy": PolicyOption,
    "anonymous": AnonymousOption,
    "audit": AuditOption,
    "tls_cert": TlsCertOption,
    "tls_key": TlsKeyOption,
    "tls_client_ca": TlsClientCaOption,
    "tls_crl": TlsCrlOption,
    "connector": ConnectorOption,
    "connector_config": ConnectorConfigOption,
    "metrics_port": MetricsPortOption,
    "trace": TraceOption,
    "log_level": LogLevelOption,
    "log_json": LogJsonOption,
    "alerts": AlertsOption,
    "alert_hosts": AlertHostsOption,
    "web": WebOption,
    "web_port": WebPortOption,
    "web_origins": WebOriginsOption,
}
"""By the name of the setting, in the order of ``--help``."""


def with_setting_options(
    command: Callable[..., None], *, names: Sequence[str] = tuple(SETTING_OPTIONS)
) -> Callable[..., None]:
    """A command with these options before its own, which reach it as one argument ``given``."""

    @functools.wraps(command)
    def run(**named: Any) -> None:
        given = {name: _plain(named.pop(name)) for name in names}
        command(**{_ARGUMENT: given}, **named)

    keyword = inspect.Parameter.KEYWORD_ONLY
    hints = get_type_hints(command, include_extras=True)
    settings = [
        inspect.Parameter(name, keyword, default=None, annotation=SETTING_OPTIONS[name])
        for name in names
    ]
    own = [
        parameter.replace(annotation=hints[name])
        for name, parameter in inspect.signature(command).parameters.items()
        if name != _ARGUMENT
    ]
    # What has no flag stands first.
    told = sorted([*settings, *own], key=lambda each: each.kind)
    run.__signature__ = inspect.Signature(told)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in told}
    return run


def _plain(value: Any) -> str | int | bool | None:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, StrEnum):
        return value.value
    return value  # type: ignore[no-any-return]
