"""``barrage journal``: the journals in a data directory, without a server."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import typer

from barrage.cli.command_errors import EXIT_ERROR, CommandError, usage_error
from barrage.cli.data_file import check_writable, write_data_file
from barrage.cli.progress import row_progress
from barrage.cli.target import JsonOption, QuietOption
from barrage.cli.text_table import format_rows
from barrage.errors import BarrageError, ConfigError, JournalCorruptError
from barrage.journal import LocalStorage
from barrage.journal.change_feed.feed import change_batches
from barrage.journal.change_feed.feed_schema import FeedOptions, options_schema
from barrage.journal.files.opening import TABLES
from barrage.journal.files.recovery import RecoveredTable
from barrage.journal.stores.backup import Backup, make_backup, restore_backup
from barrage.journal.stores.offline import (
    FoundTable,
    compact,
    find_table,
    find_tables,
    look_at,
    read_history,
    salvaged,
    state_of,
    table_bytes,
    verify,
)

journal = typer.Typer(
    name="journal",
    rich_markup_mode=None,
    no_args_is_help=True,
    help="The journals in a data directory: list, verify, export, compact, back up, restore.",
    epilog="`barrage journal COMMAND --help` has examples.",
)

DirectoryArgument = Annotated[
    Path, typer.Argument(metavar="DIR", help="What `barrage serve --data` was given.")
]
BackupArgument = Annotated[
    Path, typer.Argument(metavar="BACKUP", help="A directory that has, or will have, a backup.")
]
TableArgument = Annotated[str, typer.Argument(metavar="TABLE")]
TablesArgument = Annotated[
    list[str] | None, typer.Argument(metavar="[TABLE]...", show_default=False)
]
OutOption = Annotated[
    Path,
    typer.Option(
        "--out", metavar="FILE", help="Write to a .parquet, .arrow or .csv file.", dir_okay=False
    ),
]
VersionOption = Annotated[
    int | None,
    typer.Option(
        "--version", metavar="STEP", min=0, help="The rows as of this step.", show_default=False
    ),
]
ChangesOption = Annotated[bool, typer.Option("--changes", help="The changes instead of the rows.")]
SalvageOption = Annotated[
    bool,
    typer.Option("--salvage", help="Of a damaged table, what is before the damage; exit code 1."),
]
FromOption = Annotated[
    int | None,
    typer.Option(
        "--from", metavar="STEP", min=0, help="Changes after this step.", show_default=False
    ),
]
ToOption = Annotated[
    int | None,
    typer.Option(
        "--to", metavar="STEP", min=0, help="Changes up to this step.", show_default=False
    ),
]


def open_directory(path: Path) -> LocalStorage:
    """The directory, when there is one with journals in it."""
    if not path.is_dir():
        raise CommandError(f"no such directory: {path}; check the path")
    if not (path / TABLES).is_dir():
        raise CommandError(f"{path} has no journals; `barrage serve --data DIR` makes some")
    return LocalStorage(path)


def _chosen(storage: LocalStorage, names: list[str] | None) -> list[FoundTable]:
    return [find_table(storage, name) for name in names] if names else find_tables(storage)


# --- ls -------------------------------------------------------------------------------------------


@journal.command("ls")
def list_tables(directory: DirectoryArgument, as_json: JsonOption = False) -> None:
    """List the tables in a data directory, also while a server uses it.

    \b
    Examples:
      barrage journal ls ./data
      barrage journal ls ./data --json | jq -r '.[].name'
    """
    storage = open_directory(directory)
    tables = [_facts(storage, table) for table in find_tables(storage)]
    if as_json:
        typer.echo(json.dumps(tables))
        return
    if not tables:
        typer.echo(f"no tables in {directory}", err=True)
        return
    for line in _lines(tables):
        typer.echo(line)


def _facts(storage: LocalStorage, table: FoundTable) -> dict[str, Any]:
    facts: dict[str, Any] = {"name": table.name, "directory": table.directory}
    try:
        found = look_at(storage, table)
    except JournalCorruptError as error:
        return {**facts, "damage": str(error)}
    return {
        **facts,
        "kind": found.record.identity.kind,
        "key": list(found.record.identity.key),
        "epoch": found.record.epoch,
        "rows": len(found.state.ids),
        "earliest": found.begin.version,
        "latest": found.state.version,
        "changes": len(found.index),
        "bytes": table_bytes(storage, table),
        "damage": None,
    }


def _lines(tables: list[dict[str, Any]]) -> list[str]:
    names = ["name", "kind", "rows", "earliest", "latest", "changes", "bytes", "state"]
    rows = [
        [
            facts["name"],
            facts.get("kind", "?"),
            *(
                f"{facts[name]:,}" if name in facts else "?"
                for name in ("rows", "earliest", "latest", "changes", "bytes")
            ),
            "ok" if facts["damage"] is None else facts["damage"],
        ]
        for facts in tables
    ]
    columns = [list(column) for column in zip(*rows, strict=True)]
    right = [name in names[2:7] for name in names]
    return format_rows(names, columns, right=right, width=None)


# --- verify ---------------------------------------------------------------------------------------


@journal.command("verify")
def verify_tables(
    directory: DirectoryArgument,
    tables: TablesArgument = None,
    *,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Read every record and checkpoint and compare them with their CRCs, also while a server uses
    the directory. Exit code 1 when something is damaged; each damaged file is named, with the byte.

    \b
    Examples:
      barrage journal verify ./data
      barrage journal verify ./data trades quotes
      barrage journal verify ./data --json | jq '.[] | select(.damage != [])'
    """
    storage = open_directory(directory)
    chosen = _chosen(storage, tables)
    total = sum(table_bytes(storage, table) for table in chosen)
    answers = []
    done = 0
    with row_progress("verifying bytes", total=total, is_quiet=quiet) as progress:

        def advance(size: int) -> None:
            nonlocal done
            done += size
            progress.advance_to(done)

        for table in chosen:
            damages = verify(storage, table, advance)
            answers.append((table, damages))
    if as_json:
        typer.echo(json.dumps([_verified(table, damages) for table, damages in answers]))
    else:
        for table, damages in answers:
            for damage in damages:
                typer.echo(f"{table.name}: {damage}")
            if not damages:
                typer.echo(f"{table.name}: ok")
    if any(damages for _, damages in answers):
        raise typer.Exit(EXIT_ERROR)


def _verified(table: FoundTable, damages: list[JournalCorruptError]) -> dict[str, Any]:
    return {
        "name": table.name,
        "damage": [
            {"file": each.file, "offset": each.offset, "reason": each.reason} for each in damages
        ],
    }


# --- export ---------------------------------------------------------------------------------------


@journal.command("export")
def export_table(
    directory: DirectoryArgument,
    table: TableArgument,
    *,
    out: OutOption,
    version: VersionOption = None,
    changes: ChangesOption = False,
    after: FromOption = None,
    upto: ToOption = None,
    salvage: SalvageOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Write the rows of a table, now or as of a step, or its changes to a file. No server is
    needed, and one that uses the directory is not disturbed.

    \b
    Examples:
      barrage journal export ./data trades --out trades.parquet
      barrage journal export ./data trades --version 1200 --out then.parquet
      barrage journal export ./data trades --changes --from 1000 --to 1200 --out changes.arrow
      barrage journal export ./data trades --salvage --out before_the_damage.parquet
    """
    if changes and version is not None:
        raise usage_error("--version is for rows; --changes takes --from and --to")
    if not changes and (after is not None or upto is not None):
        raise usage_error("--from and --to are for changes; add --changes")
    check_writable(out)
    storage = open_directory(directory)
    chosen = find_table(storage, table)
    damage = None
    if salvage:
        found, damage = salvaged(storage, chosen)
    else:
        found = look_at(storage, chosen)
    rows = (
        _changes(storage, found, after=after, upto=upto)
        if changes
        else _rows(storage, found, version)
    )
    with row_progress(f"writing {out.name}", total=rows.num_rows, is_quiet=quiet) as progress:
        write_data_file(out, rows, on_progress=progress.advance_to)
    if as_json:
        typer.echo(json.dumps({"table": table, "rows": rows.num_rows, "file": str(out)}))
    elif not quiet:
        typer.echo(f"{rows.num_rows:,} rows written to {out}", err=True)
    if damage is not None:
        raise CommandError(f"what was written ends at step {found.state.version}: {damage}")


def _check_reach(found: RecoveredTable, version: int) -> None:
    if not found.begin.version <= version <= found.state.version:
        raise CommandError(
            f"table {found.record.identity.name!r} has steps {found.begin.version} to "
            f"{found.state.version}, not {version}"
        )


def _rows(storage: LocalStorage, found: RecoveredTable, version: int | None) -> pa.Table:
    if version is not None:
        _check_reach(found, version)
        return state_of(storage, found, version).rows
    return found.state.rows


def _changes(
    storage: LocalStorage, found: RecoveredTable, *, after: int | None, upto: int | None
) -> pa.Table:
    first = found.begin.version if after is None else after
    last = found.state.version if upto is None else upto
    for version in (first, last):
        _check_reach(found, version)
    if first > last:
        raise usage_error(f"--from {first} is after --to {last}")
    options = FeedOptions(preimage=True)
    batches = list(change_batches(read_history(storage, found, after=first, upto=last), options))
    plain = found.record.identity.entry_schema
    columns = pa.schema([plain.field(index) for index in range(2, len(plain))])
    rows = pa.Table.from_batches(batches, options_schema(columns, options))
    return rows.set_column(0, "_change_type", rows.column(0).cast(pa.string()))


# --- compact --------------------------------------------------------------------------------------


@journal.command("compact")
def compact_tables(
    directory: DirectoryArgument,
    tables: TablesArgument = None,
    *,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Forget all changes of tables and keep their rows: the history begins anew, with the same
    epoch. Consumers that stand before it start over. The server must be stopped.

    \b
    Examples:
      barrage journal compact ./data
      barrage journal compact ./data trades
    """
    storage = open_directory(directory)
    try:
        storage.lock()
    except ConfigError as error:
        raise CommandError(str(error)) from error
    try:
        answers = _compacted(storage, _chosen(storage, tables), is_quiet=quiet)
    finally:
        storage.unlock()
    if as_json:
        typer.echo(json.dumps(answers))
    elif not quiet:
        for each in answers:
            typer.echo(
                f"{each['name']}: {each['bytes_before']:,} to {each['bytes_after']:,} bytes, "
                f"begins with step {each['earliest']:,}"
            )


def _compacted(
    storage: LocalStorage, chosen: list[FoundTable], *, is_quiet: bool
) -> list[dict[str, Any]]:
    answers = []
    with row_progress("compacting tables", total=len(chosen), is_quiet=is_quiet) as progress:
        for number, table in enumerate(chosen):
            progress.advance_to(number, note=table.name)
            try:
                done = compact(storage, table)
            except BarrageError as error:
                raise CommandError(f"{table.name}: {error}") from error
            answers.append(
                {
                    "name": table.name,
                    "bytes_before": done.bytes_before,
                    "bytes_after": done.bytes_after,
                    "earliest": done.earliest,
                }
            )
    return answers


# --- backup and restore ---------------------------------------------------------------------------


@journal.command("backup")
def back_up(
    directory: DirectoryArgument,
    backup: BackupArgument,
    *,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Copy a data directory, also while a server uses it: all tables as they were at one step, with
    their histories. Every record is checked as it is copied, and the copy is opened. The backup
    appears only when it is whole.

    \b
    Examples:
      barrage journal backup ./data /backups/monday
      barrage journal backup ./data "/backups/$(date +%F)" --json
    """
    storage = open_directory(directory)
    total = sum(table_bytes(storage, table) for table in find_tables(storage))
    with row_progress("copying bytes", total=total, is_quiet=quiet) as progress:
        made = make_backup(directory, backup, _Advance(progress.advance_to))
    _tell_backup(made, f"backed up to {backup}", as_json=as_json, is_quiet=quiet)


@journal.command("restore")
def restore(
    backup: BackupArgument,
    directory: DirectoryArgument,
    *,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Make a data directory of a backup, every byte of which is checked. DIR must not be there, or
    be empty: stop the server and move the old one away first. Clients that were shown steps of
    after the backup get snapshots.

    \b
    Examples:
      barrage journal restore /backups/monday ./data
      barrage serve --data ./data
    """
    total = Backup.read(backup).byte_count
    with row_progress("restoring bytes", total=total, is_quiet=quiet) as progress:
        made = restore_backup(backup, directory, _Advance(progress.advance_to))
    _tell_backup(made, f"restored to {directory}", as_json=as_json, is_quiet=quiet)


class _Advance:
    """Adds up what was copied, for a progress bar."""

    def __init__(self, advance_to: Callable[[int], object]) -> None:
        self._advance_to = advance_to
        self._done = 0

    def __call__(self, byte_count: int) -> None:
        self._done += byte_count
        self._advance_to(self._done)


def _tell_backup(made: Backup, what: str, *, as_json: bool, is_quiet: bool) -> None:
    if as_json:
        tables = [
            {"name": each.name, "version": each.version, "rows": each.rows} for each in made.tables
        ]
        typer.echo(json.dumps({"step": made.step, "bytes": made.byte_count, "tables": tables}))
    elif not is_quiet:
        typer.echo(
            f"{len(made.tables)} tables with {made.byte_count:,} bytes, as of step {made.step:,}, "
            f"{what}",
            err=True,
        )
