"""``barrage cert``: certificates for trying TLS."""

import json
from pathlib import Path
from typing import Annotated

import typer

from barrage.cli.target import JsonOption
from barrage.cli.tls.dev_certificates import DAYS_DEFAULT, DevOptions, make_dev_certificates

cert = typer.Typer(
    name="cert",
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Certificates for trying TLS.",
    epilog="`barrage cert COMMAND --help` has examples.",
)

DirectoryArgument = Annotated[
    Path, typer.Argument(metavar="[DIR]", help="Where the files go; made when it is missing.")
]
HostsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--host",
        metavar="NAME",
        help="Another name or address of the server; may be repeated.",
        show_default=False,
    ),
]
ClientOption = Annotated[
    str, typer.Option("--client", metavar="NAME", help="Who the client's certificate is for.")
]
DaysOption = Annotated[
    int, typer.Option("--days", metavar="N", min=1, max=3650, help="How long they are good for.")
]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace files that are there.")]


@cert.callback()
def root() -> None:
    """Certificates for trying TLS."""


@cert.command("dev")
def dev(
    directory: DirectoryArgument = Path("tls"),
    *,
    host: HostsOption = None,
    client: ClientOption = "dev",
    days: DaysOption = DAYS_DEFAULT,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Make an authority, a certificate of a server and one of a client, for trying.

    The server's is good for localhost, 127.0.0.1, ::1 and the name of this machine. The key of the
    authority is thrown away, so that nobody can sign more with it. Needs `pip install
    'barrage[tls]'`.

    \b
    Examples:
      barrage cert dev
      barrage cert dev tls --host engine.example.org --client alice
      barrage serve --tls-cert tls/server.pem --tls-key tls/server.key
      barrage ls grpcs://localhost:10000 --tls-ca tls/ca.pem
    """
    options = DevOptions(hosts=tuple(host or ()), client=client, days=days, is_forced=force)
    files = make_dev_certificates(directory, options)
    if as_json:
        typer.echo(json.dumps({name: str(path) for name, path in files.items()}))
        return
    typer.echo(f"made {', '.join(path.name for path in files.values())} in {directory}", err=True)
    typer.echo(
        f"barrage serve --tls-cert {files['server']} --tls-key {files['server_key']}\n"
        f"barrage ls grpcs://localhost:10000 --tls-ca {files['ca']}"
    )
