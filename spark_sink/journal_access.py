"""The two places a table's journal can be: at its server, or in a directory this side keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from spark_sink.fetch import fetch_piece
from spark_sink.planning import Journal
from spark_sink.remote_journal import RemoteJournal

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from spark_sink.options import SourceOptions
    from spark_sink.planning import Piece
    from spark_sink.remote_journal import SourceFacts
    from spark_sink.watch import VersionMark


class SourceJournal(Journal, Protocol):
    """What the reader asks, besides what the planning rules do."""

    def describe(self) -> SourceFacts:
        """The journal and its table, asked now."""

    @property
    def described(self) -> SourceFacts:
        """The last such answer."""

    def newest(self) -> VersionMark:
        """The newest version, from memory."""

    def newest_asked(self) -> VersionMark:
        """The newest version there is now, where that can be asked."""

    @property
    def away_seconds(self) -> float:
        """How long there has been no connection; 0 when there is one."""

    def mark_before(self, epoch: str, version: int) -> VersionMark | None:
        """What is remembered of a version, or of the last before it."""

    def version_at(self, time_us: int) -> int:
        """The version that was current at a time."""

    def change_rows(self, epoch: str, after: int, upto: int) -> int:
        """Rows of the feed of (after, upto], before a filter."""

    def hold(self, version: int) -> None:
        """Keep what is after ``version`` for this consumer."""

    def prepared(self, pieces: list[Piece]) -> list[Piece]:
        """The pieces in a form tasks can read."""

    def close(self) -> None:
        """End what runs in the background."""


def open_journal(
    options: SourceOptions, *, consumer: str, is_writing: bool = True
) -> SourceJournal:
    """The journal the options speak of. ``is_writing``: with ``journalLocation``, follow the table
    and write; else only read what is there."""
    if options.journal_location is not None:
        from spark_sink.client_journal import ClientJournal

        return ClientJournal(options, is_writing=is_writing)
    return RemoteJournal(
        options.connection,
        options.table,
        consumer=consumer,
        lease_ms=options.lease_ms,
        has_preimage=options.form.has_preimage,
    )


def fetch(options: SourceOptions, piece: Piece, target: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of a piece, in whatever process this is."""
    if options.journal_location is not None and piece.ticket is not None:
        from spark_sink.client_journal import read_piece

        return read_piece(piece, target)
    return fetch_piece(
        options.connection,
        piece,
        target,
        fails_on_data_loss=options.fails_on_data_loss,
        may_share_memory=options.bodies != "inline",
    )
