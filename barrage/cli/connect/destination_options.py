"""What all commands of ``barrage connect`` share: where to, as what, and how it is run."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from barrage.cli.arguments import split_names
from barrage.cli.command_errors import usage_error
from barrage.cli.progress import row_progress
from barrage.cli.target import JsonOption, QuietOption, TokenOption, UserOption, credentials
from barrage.connector import (
    SinkFollower,
    Source,
    SourceMapping,
    TableDelivery,
    WorkerDelivery,
    run_sources,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from barrage.connector import DeliveryProgress, SourceDelivery

DRY_MESSAGES = 10
DRY_SECONDS = 5.0
FORMATS = ("json", "csv", "arrow", "raw")

ToOption = Annotated[
    str,
    typer.Option(
        "--to",
        metavar="grpc://HOST:PORT|HOST:PORT",
        help="A server, which is written to as any client does; or, without a scheme, the address "
        "of its `--connector`.",
    ),
]
FromServerOption = Annotated[
    str, typer.Option("--from", metavar="grpc://HOST:PORT", help="The server of the table.")
]
TableOption = Annotated[
    str | None,
    typer.Option("--table", metavar="NAME", help="Table of the server.", show_default=False),
]
ProgramOption = Annotated[
    str | None,
    typer.Option(
        "--program",
        metavar="NAME",
        help="Program to say to a worker; the table when nothing is said.",
        show_default=False,
    ),
]
FormatOption = Annotated[
    str,
    typer.Option("--format", metavar="FORMAT", help="Of payloads: json, csv, arrow or raw."),
]
ColumnTypesOption = Annotated[
    str | None,
    typer.Option(
        "--columns",
        metavar="NAME=TYPE,...",
        help="Columns of the table when there is none, and the fields of CSV.",
        show_default=False,
    ),
]
KeyColumnsOption = Annotated[
    str | None,
    typer.Option("--key", metavar="COL,COL", help="Upsert by these columns.", show_default=False),
]
NameOption = Annotated[
    str | None,
    typer.Option(
        "--name",
        metavar="NAME",
        help="Of the stream: its identity, under which its position is kept.",
        show_default=False,
    ),
]
StateOption = Annotated[
    Path | None,
    typer.Option(
        "--state",
        metavar="DIR",
        help="What is remembered between runs; ~/.local/state/barrage by default.",
        show_default=False,
        file_okay=False,
    ),
]
OnceOption = Annotated[bool, typer.Option("--once", help="End when all that is there is safe.")]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Show the first messages; send and change nothing.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """What the shared options say."""

    to: str
    table: str | None
    program: str | None
    payload_format: str
    columns: str | None
    key: str | None
    name: str | None
    state: Path | None
    once: bool
    dry_run: bool
    token: str | None
    user: str | None
    as_json: bool
    quiet: bool


_SHARED: dict[str, tuple[Any, Any]] = {
    "to": (ToOption, inspect.Parameter.empty),
    "table": (TableOption, None),
    "program": (ProgramOption, None),
    "payload_format": (FormatOption, "json"),
    "columns": (ColumnTypesOption, None),
    "key": (KeyColumnsOption, None),
    "name": (NameOption, None),
    "state": (StateOption, None),
    "once": (OnceOption, False),
    "dry_run": (DryRunOption, False),
    "token": (TokenOption, None),
    "user": (UserOption, None),
    "as_json": (JsonOption, False),
    "quiet": (QuietOption, False),
}


def with_destination(command: Callable[..., None]) -> Callable[..., None]:
    """A command with the shared options behind its own, which reach it as one ``destination``."""

    @functools.wraps(command)
    def run(**named: Any) -> None:
        shared = {name: named.pop(name) for name in _SHARED}
        command(**named, destination=Destination(**shared))

    keyword = inspect.Parameter.KEYWORD_ONLY
    hints = get_type_hints(command, include_extras=True)
    own = [
        parameter.replace(annotation=hints[name])
        for name, parameter in inspect.signature(command).parameters.items()
        if name != "destination"
    ]
    shared = [
        inspect.Parameter(name, keyword, default=default, annotation=option)
        for name, (option, default) in _SHARED.items()
    ]
    run.__signature__ = inspect.Signature([*own, *shared])  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in [*own, *shared]}
    return run


def mapping_of(destination: Destination, **more: Any) -> SourceMapping:
    """How payloads become rows of the table."""
    fields = {
        "format": destination.payload_format,
        "columns": column_types(destination.columns),
        "key": tuple(split_names(destination.key) or ()),
        **more,
    }
    if fields["format"] not in FORMATS:
        raise usage_error(f"--format is one of {', '.join(FORMATS)}, not {fields['format']!r}")
    return SourceMapping(program="*", table=destination.table or "", **fields)


def column_types(text: str | None) -> dict[str, str] | None:
    """``a=int64,b=string`` as a mapping. A comma within brackets is one of a type."""
    if text is None:
        return None
    found: dict[str, str] = {}
    depth = start = 0
    for at, letter in enumerate([*text, ","]):
        depth += (letter in "[(") - (letter in "])")
        if letter == "," and depth == 0:
            name, equals, kind = text[start:at].partition("=")
            if not (equals and name.strip() and kind.strip()):
                raise usage_error(f"--columns is NAME=TYPE,NAME=TYPE, not {text!r}")
            found[name.strip()] = kind.strip()
            start = at + 1
    return found


def delivery_to(destination: Destination, mapping: SourceMapping) -> SourceDelivery:
    """To a server's table, or to a worker."""
    if "://" in destination.to:
        if destination.table is None:
            raise usage_error("--to a server needs --table")
        auth = credentials(destination.token)
        return TableDelivery(destination.to, mapping=mapping, auth=auth)
    program = destination.program or destination.table
    if program is None:
        raise usage_error("--to a worker needs --program or --table")
    return WorkerDelivery(destination.to, program=program, cookie=destination.token or "")


def run_connector(
    sources: Source | Sequence[Source], destination: Destination, mapping: SourceMapping
) -> None:
    """Deliver until sources end or the user does; say how that went."""
    every = [sources] if isinstance(sources, Source) else list(sources)
    if destination.dry_run:
        asyncio.run(_show(every[0]))
        return
    delivery = delivery_to(destination, mapping)

    async def run(show: Any) -> DeliveryProgress:
        async with contextlib.AsyncExitStack() as opened:
            for each in every:
                if isinstance(each, contextlib.AbstractAsyncContextManager):
                    await opened.enter_async_context(each)
            return await run_sources(
                every, delivery, on_progress=lambda now: show.advance_to(now.messages_sent)
            )

    with row_progress(f"to {destination.to}", total=None, is_quiet=destination.quiet) as show:
        progress = asyncio.run(run(show))
    told = {
        "messages": progress.messages_sent,
        "rejected": progress.messages_rejected,
        "connections": progress.connections,
    }
    if destination.as_json:
        typer.echo(json.dumps(told))
    elif not destination.quiet:
        typer.echo(f"{progress.messages_sent:,} messages are safe at {destination.to}", err=True)


def run_follower(follower: SinkFollower, *, once: bool, is_json: bool) -> None:
    """Follow a table, for ever or until the sink has what there is."""
    follower.run_blocking(until=(lambda _: True) if once else None)
    if is_json:
        typer.echo(json.dumps({"rows": follower.rows_written, "cursor": str(follower.cursor)}))


async def _show(source: Source) -> None:
    """The first messages of a source, as they would be sent."""
    left = DRY_MESSAGES
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DRY_SECONDS):
            async for batch in source.read(None):
                columns = batch.columns(source.name)
                for number, payload in zip(
                    columns.ids.to_pylist(), columns.payloads.to_pylist(), strict=True
                ):
                    text = payload.decode("utf-8", "backslashreplace")
                    typer.echo(json.dumps({"stream": source.name, "id": number, "payload": text}))
                    left -= 1
                    if not left:
                        return
