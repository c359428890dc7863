"""``barrage version``: what is installed."""

import json
import platform

import grpc
import pyarrow as pa
import typer

import barrage
from barrage.cli.target import JsonOption


def version(as_json: JsonOption = False) -> None:
    """Show the versions of barrage, Python, pyarrow and grpc.

    \b
    Examples:
      barrage version
      barrage version --json
    """
    versions = {
        "barrage": barrage.__version__,
        "python": platform.python_version(),
        "pyarrow": pa.__version__,
        "grpc": grpc.__version__,
    }
    if as_json:
        typer.echo(json.dumps(versions))
        return
    for name, text in versions.items():
        typer.echo(f"{name} {text}")
