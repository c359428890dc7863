"""``barrage spark``: for those who use Spark with a server."""

import json
from importlib.util import find_spec
from typing import Annotated

import typer

from barrage.cli.command_errors import EXIT_ERROR, usage_error
from barrage.cli.commands.doctor import lines
from barrage.cli.health import worst
from barrage.cli.target import JsonOption, TokenOption
from barrage.errors import ConfigError
from barrage.transport.findings import CheckStatus

spark = typer.Typer(
    name="spark",
    rich_markup_mode=None,
    no_args_is_help=True,
    help="What Spark needs to read and write tables: look at it.",
    epilog="`barrage spark COMMAND --help` has examples.",
)

ServerArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[HOST:PORT]",
        help="Look at this server, too, and write and read a row there.",
        show_default=False,
    ),
]
OptionOption = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        "-o",
        metavar="NAME=VALUE",
        help="An option of the source about the connection (docs/spark.md).",
    ),
]


@spark.callback()
def group() -> None:
    """What Spark needs to read and write tables: look at it."""


@spark.command()
def doctor(
    server: ServerArgument = None,
    *,
    option: OptionOption = None,
    token: TokenOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check Java, PySpark and the interpreter of Spark's workers; with HOST:PORT, whether a row
    that is written to the server can be read again by the calls Spark's tasks make.

    Exit code 1 when something is a problem; a warning is none. The row goes into a table of its
    own, which is dropped.

    \b
    Examples:
      barrage spark doctor
      barrage spark doctor localhost:10000
      barrage spark doctor grpcs://db:10000 -o tls.rootCertificates=ca.pem --json
    """
    if find_spec("spark_sink") is None:
        raise usage_error("the package spark_sink is not installed: pip install 'barrage[spark]'")
    from barrage.cli.spark_checks.spark_health import examine_spark

    options = _options(server, option or [], token)
    try:
        findings = examine_spark(options)
    except ConfigError as error:
        raise usage_error(str(error)) from error
    status = worst(findings)
    if as_json:
        checks = [finding.facts() for finding in findings]
        typer.echo(json.dumps({"status": status.value, "checks": checks}))
    else:
        for line in lines(findings):
            typer.echo(line)
    if status is CheckStatus.PROBLEM:
        raise typer.Exit(EXIT_ERROR)


def _options(server: str | None, given: list[str], token: str | None) -> dict[str, str] | None:
    """The options of a connection; None when there is no server to look at."""
    if server is None:
        if given:
            raise usage_error("--option is about a server: name it")
        return None
    options = {"uri": server}
    if token is not None:
        options["auth.token"] = token
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise usage_error(f"--option {text}: write NAME=VALUE")
        options[name] = value
    return options
