"""``barrage doctor``: what this machine can do, and what to change where it cannot; and how a
server or a relay is."""

import json
from typing import Annotated

import typer

from barrage.cli.command_errors import EXIT_ERROR
from barrage.cli.health import examine, worst
from barrage.cli.server_health import examine_servers
from barrage.cli.target import JsonOption, TokenOption, UserOption, parse_server
from barrage.cli.tls.tls_options import TlsChoice, with_tls_options
from barrage.transport.findings import CheckStatus, Finding

ServersArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[HOST:PORT]",
        help="Look at this server, or at several with commas between, instead of this machine.",
        show_default=False,
    ),
]


@with_tls_options
def doctor(
    server: ServersArgument = None,
    *,
    tls: TlsChoice,
    token: TokenOption = None,
    user: UserOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check what barrage needs of this machine, and say what to do where it is missing.

    Shared memory and UCX are really tried. Exit code 1 when something is a problem; a warning is
    none. With HOST:PORT it is the server there that is looked at: whether it answers, and of a
    relay its upstream servers, and the state and the lag of each table.

    \b
    Examples:
      barrage doctor
      barrage doctor relay:10000
      barrage doctor --json | jq -r '.checks[] | select(.status != "ok") | .advice'
      BARRAGE_UCX_LIBRARY=system barrage doctor
    """
    findings = examine() if server is None else examine_servers(parse_server(server, tls), token)
    status = worst(findings)
    if as_json:
        checks = [finding.facts() for finding in findings]
        typer.echo(json.dumps({"status": status.value, "checks": checks}))
    else:
        for line in lines(findings):
            typer.echo(line)
    if status is CheckStatus.PROBLEM:
        raise typer.Exit(EXIT_ERROR)


def lines(findings: list[Finding]) -> list[str]:
    """``warning  ucx  1.13.1, ...`` with what to do about it below."""
    name_width = max(len(finding.name) for finding in findings)
    answer = []
    for finding in findings:
        answer.append(f"{finding.status.value:<9}{finding.name:<{name_width}}  {finding.text}")
        if finding.advice:
            answer.append(f"{'':<{9 + name_width}}  -> {finding.advice}")
    return answer
