"""A journal on this side, for servers that keep none: ``journalLocation``.

The driver-side process subscribes to the table and records what happens to it, in the same kind of
journal our servers keep, synced to disk before an offset names it. After a restart it subscribes
anew and records the difference to the last state it has, so the history has no gap, only fewer
versions. What the tasks of a batch read is written as Arrow files beside the journal, in a
directory the executors must see under the same path; they are removed when the batch is done.

One process does all of it, so this is for tables that change at modest rates.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import pyarrow as pa

from barrage.clock import SystemClock
from barrage.conditions import Condition
from barrage.errors import ConfigError, HistoryLostError, SchemaError
from barrage.journal import (
    ChangeTracker,
    FeedOptions,
    JournalOptions,
    JournalStore,
    LocalStorage,
    TableIdentity,
    change_batches,
    id_bounds,
    options_schema,
    snapshot_batches,
)
from spark_sink.connection import Failure, ServerError
from spark_sink.fetch import gathered
from spark_sink.planning import Amount, Bound, Facts, Piece
from spark_sink.remote_journal import SourceFacts
from spark_sink.table_follower import TableFollower, remote_schema
from spark_sink.types import cast_batch, truncate_batch
from spark_sink.watch import VersionMark

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

    from barrage.client import Update
    from barrage.journal import TableJournal
    from spark_sink.options import SourceOptions

KIND = "list"
"""What is assumed of a table nothing is known of: any row may change."""

LOCK_SECONDS = 15.0
"""How long to wait for a reader that is just ending to let go of the directory."""

LEASE_NS = 10 * 365 * 86_400 * 10**9
"""The journal is kept for one query, so what that has not read is held for as long as it takes."""


class ClientJournal:
    """The journal of one table in a directory. Implements
    :class:`spark_sink.journal_access.SourceJournal`.

    ``is_writing`` False only tells the table's schema: a second process cannot have the directory.
    """

    def __init__(self, options: SourceOptions, *, is_writing: bool) -> None:
        self._options = options
        self._is_writing = is_writing
        self._recorder: TableRecorder | None = None
        self._described: SourceFacts | None = None

    def _recording(self) -> TableRecorder:
        if not self._is_writing:
            raise ConfigError(
                "option journalLocation is for readStream: a journal belongs to one query"
            )
        if self._recorder is None:
            self._recorder = TableRecorder(self._options)
        return self._recorder

    # --- what planning asks ---

    def facts(self) -> Facts:
        return self._recording().facts()

    def bound(
        self, epoch: str, after: int, cap: int, *, rows_max: int | None, bytes_max: int | None
    ) -> Bound:
        index = self._recording().journal.index(after, cap)
        has_preimage = self._options.form.has_preimage
        rows = index.feed_counts(has_preimage=has_preimage).cumsum()
        sizes = index.byte_counts.cumsum()
        count = len(index)
        if rows_max is not None:
            count = min(count, int(rows.searchsorted(rows_max, side="right")))
        if bytes_max is not None:
            count = min(count, int(sizes.searchsorted(bytes_max, side="right")))
        if not len(index):
            return Bound(after, 0, 0)
        last = max(count, 1) - 1
        return Bound(int(index.steps[last]), int(rows[last]), int(sizes[last]))

    def amount(self, epoch: str, version: int) -> Amount:
        state = self._recording().journal.state_at(version)
        return Amount(state.rows.num_rows, state.rows.nbytes)

    def id_bounds(self, epoch: str, version: int, parts: int) -> Sequence[int]:
        ranges = id_bounds(self._recording().journal.row_ids_at(version), parts)
        return [low for low, _ in ranges if low > 0]

    def version_before(self, time_us: int) -> int:
        try:
            return self.version_at(time_us - 1)
        except HistoryLostError:
            return -1

    # --- what the reader asks ---

    def describe(self) -> SourceFacts:
        if self._is_writing:
            recorder = self._recording()
            self._described = recorder.describe()
        else:
            schema = remote_schema(self._options)
            nothing = Facts(epoch="", version=0, earliest=0)
            self._described = SourceFacts(
                facts=nothing, kind=KIND, key=(), rows=0, timestamp_us=0, schema=schema
            )
        return self._described

    @property
    def described(self) -> SourceFacts:
        return self._described or self.describe()

    def newest(self) -> VersionMark:
        return self._recording().newest()

    def newest_asked(self) -> VersionMark:
        """The newest that is recorded: a subscription cannot be asked."""
        return self.newest()

    def version_at(self, time_us: int) -> int:
        return self._recording().journal.version_at_time(time_us * 1000)

    @property
    def away_seconds(self) -> float:
        return 0.0 if self._recorder is None else self._recorder.away_seconds

    def mark_before(self, epoch: str, version: int) -> VersionMark | None:
        journal = self._recording().journal
        if epoch != journal.epoch or version < journal.earliest_version:
            return None
        index = journal.index(journal.earliest_version, version)
        if not len(index):
            return None
        return VersionMark(epoch, int(index.steps[-1]), 0, 0, int(index.wall_ns[-1]) // 1000)

    def change_rows(self, epoch: str, after: int, upto: int) -> int:
        index = self._recording().journal.index(after, upto)
        return int(index.feed_counts(has_preimage=self._options.form.has_preimage).sum())

    def hold(self, version: int) -> None:
        self._recording().hold(version)

    def prepared(self, pieces: list[Piece]) -> list[Piece]:
        """The pieces as files the executors can read."""
        recorder = self._recording()
        return [piece if piece.ticket is None else recorder.written(piece) for piece in pieces]

    def close(self) -> None:
        if self._recorder is not None:
            self._recorder.close()
            self._recorder = None


class TableRecorder:
    """Follows the table and writes its journal; one a directory."""

    def __init__(self, options: SourceOptions) -> None:
        assert options.journal_location is not None
        self._options = options
        self._clock = SystemClock()
        self._directory = table_directory(options.journal_location, options.table)
        self._batches = self._directory / "batches"
        self._failure: Exception | None = None
        self._caught_up_version: int | None = None
        self._changed = threading.Condition()
        schema = remote_schema(options)
        self._store = _opened(self._directory)
        try:
            self._store.start()
            self.journal = self._journal_for(schema)
            state = self.journal.state_at(self.journal.latest_version)
            self._tracker = ChangeTracker(
                schema, key=options.key_columns, keys=state.keys, rows=state.rows
            )
            self._stop_listening = self.journal.on_durable(self._note)
            shutil.rmtree(self._batches, ignore_errors=True)
            self._batches.mkdir(parents=True)
            self._follower = TableFollower(options, self._record, self._fail)
        except BaseException:
            self._store.close()
            raise

    def _journal_for(self, schema: pa.Schema) -> TableJournal:
        name = self._options.table
        journal = self._store.journals.get(name)
        if journal is not None and not journal.identity.schema.equals(schema):
            # Another table under the same name: its history begins anew.
            self._store.drop(name)
            journal = None
        if journal is None:
            identity = TableIdentity(name=name, kind=KIND, schema=schema, is_read_only=True)
            journal = self._store.create(identity)
        return journal

    # --- the follower's thread ---

    def _record(self, update: Update | None) -> None:
        """One update; None for the beginning of a new subscription."""
        if update is None:
            self._tracker.restart()
            return
        step = max(self.journal.latest_version, self._store.first_step) + 1
        change = self._tracker.apply(update.recordable(), step=step)
        version = self.journal.latest_version
        if change is not None:
            self.journal.append(
                change, step=step, wall_ns=update.source_time_ns or self._clock.wall_ns()
            )
            self._store.step_committed(step)
            version = step
        if self._tracker.is_following and self._caught_up_version is None:
            with self._changed:
                self._caught_up_version = version
                self._changed.notify_all()

    def _fail(self, error: Exception) -> None:
        with self._changed:
            self._failure = error
            self._changed.notify_all()

    def _note(self, _: int) -> None:
        with self._changed:
            self._changed.notify_all()

    # --- the reader's thread ---

    def newest(self) -> VersionMark:
        """The newest version that is on disk, once the journal is up to date with the table."""
        timeout = self._options.connection.timeout_ms / 1000
        with self._changed:
            self._changed.wait_for(self._is_up_to_date, timeout)
            if self._failure is not None:
                raise self._failure
            if not self._is_up_to_date():
                raise ServerError(
                    Failure.UNREACHABLE,
                    f"no state of the table within {timeout:g} s",
                    doing=f"following table {self._options.table!r}",
                    advice="raise option fetchTimeoutMs",
                )
        trouble = self._follower.trouble(self._options.connection.reconnect_ms / 1000)
        if trouble is not None:
            raise trouble
        version = self.journal.durable_version
        return VersionMark(self.journal.epoch, version, 0, 0, self._clock.wall_ns() // 1000)

    @property
    def away_seconds(self) -> float:
        return self._follower.away_seconds

    def _is_up_to_date(self) -> bool:
        version = self._caught_up_version
        is_there = version is not None and self.journal.durable_version >= version
        return is_there or self._failure is not None

    def facts(self) -> Facts:
        journal = self.journal
        return Facts(
            epoch=journal.epoch,
            version=journal.durable_version,
            earliest=journal.earliest_version,
        )

    def describe(self) -> SourceFacts:
        return SourceFacts(
            facts=self.facts(),
            kind=KIND,
            key=self._options.key_columns,
            rows=self.journal.row_count,
            timestamp_us=self._clock.wall_ns() // 1000,
            schema=self.journal.identity.schema,
        )

    def hold(self, version: int) -> None:
        """Keep what is after a version, and no files of batches up to it."""
        with contextlib.suppress(HistoryLostError):
            self.journal.hold("query", version, self._clock.wall_ns() + LEASE_NS)
        for path in self._batches.glob("*.arrow"):
            if int(path.name.partition("-")[0]) <= version:
                path.unlink(missing_ok=True)

    def written(self, piece: Piece) -> Piece:
        """The piece as a file; :func:`read_piece` reads it."""
        ticket = piece.ticket
        assert ticket is not None
        upto = ticket["to"] if ticket["mode"] == "changes" else ticket["version"]
        options = _feed_options(ticket, self.journal.identity.schema)
        if ticket["mode"] == "changes":
            entries = self.journal.entries(ticket["from"], upto)
            batches = change_batches(entries, options)
        else:
            batches = snapshot_batches(self.journal, upto, options, ids=tuple(ticket["ids"]))
        schema = options_schema(self.journal.identity.schema, options)
        path = self._batches / f"{upto}-{time.monotonic_ns()}.arrow"
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, _plain(schema)) as writer:
            for batch in batches:
                writer.write_batch(_plain_batch(batch))
        return Piece(epoch=piece.epoch, ticket={"mode": "file", "path": str(path)})

    def close(self) -> None:
        self._follower.close()
        self._stop_listening()
        self._store.close()


def read_piece(piece: Piece, target: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of a piece, in an executor."""
    if piece.truncate_at is not None:
        yield truncate_batch(target, piece.truncate_at)
        return
    assert piece.ticket is not None
    path = piece.ticket["path"]
    try:
        stream = pa.ipc.open_stream(path)
    except FileNotFoundError as error:
        raise ConfigError(
            f"option journalLocation: {path} is not there; the directory must be one that driver "
            "and executors see under the same path"
        ) from error
    with stream:
        for batch in gathered(iter(stream)):
            yield cast_batch(batch, target)


def table_directory(location: str, table: str) -> Path:
    """Where the journal of a table is; ConfigError for a location that is no path."""
    path = location.removeprefix("file://")
    if "://" in path or not path.strip():
        raise ConfigError(
            f"option journalLocation is a path that driver and executors see, not {location!r}"
        )
    return Path(path) / quote(table, safe="")


def _opened(directory: Path) -> JournalStore:
    """The store in a directory, locked. A reader that was just stopped may still have it."""
    deadline = time.monotonic() + LOCK_SECONDS
    options = JournalOptions(reserve_bytes=0)
    while True:
        store = JournalStore(LocalStorage(directory / "journal"), options)
        try:
            store.open_all()
        except ConfigError as error:
            if time.monotonic() > deadline:
                raise ConfigError(f"option journalLocation: {error}") from error
        else:
            return store
        threading.Event().wait(0.1)


def _feed_options(ticket: dict[str, Any], schema: pa.Schema) -> FeedOptions:
    predicate: Callable[[pa.RecordBatch], Any] | None = None
    if "filter" in ticket:
        predicate = _condition(ticket["filter"], schema)
    columns = ticket.get("columns")
    return FeedOptions(
        columns=None if columns is None else tuple(columns),
        predicate=predicate,
        preimage=bool(ticket.get("preimage")),
        net=bool(ticket.get("net")),
        stripe=tuple(ticket.get("stripe", (0, 1))),
        row_key=bool(ticket.get("row_key")),
        modified_columns=bool(ticket.get("modified_columns")),
    )


def _condition(text: str, schema: pa.Schema) -> Condition:
    try:
        return Condition.of(text, schema)
    except Exception as error:
        raise SchemaError(f"option filter: {error}") from error


def _plain(schema: pa.Schema) -> pa.Schema:
    """The schema without dictionaries: a file holds them once, batches bring different ones."""
    return pa.schema(
        [
            field.with_type(field.type.value_type) if pa.types.is_dictionary(field.type) else field
            for field in schema
        ]
    )


def _plain_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same rows in that schema."""
    columns = [
        column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
        for column in batch.columns
    ]
    return pa.RecordBatch.from_arrays(columns, schema=_plain(batch.schema))
