"""A table's journal as the server tells it: what the planning rules ask, over Flight."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import flight

from barrage.errors import RemoteProtocolError
from spark_sink.connection import Failure, ServerError
from spark_sink.planning import APPENDED_KINDS, Amount, Bound, Facts
from spark_sink.watch import TableWatch, VersionMark

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spark_sink.connection import ServerConnection
    from spark_sink.planning import Piece

_EPOCH = re.compile(r"[0-9a-f]{16}\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFacts:
    """What ``journal.info`` tells."""

    facts: Facts
    kind: str
    key: tuple[str, ...]
    rows: int
    timestamp_us: int
    schema: pa.Schema
    stripe_ids_max: int = 0
    """Most row ids in one stripe that a ticket may ask for; 0: it cannot."""
    chooses_feed_columns: bool = False
    """Whether a ticket may leave out what a feed says of its rows."""

    @classmethod
    def of(cls, found: dict[str, Any], *, table: str) -> SourceFacts:
        """Check and read the answer; RemoteProtocolError."""
        try:
            epoch = found["epoch"]
            numbers = [found[name] for name in ("version", "earliest", "rows", "timestamp_us")]
            version, earliest, rows, timestamp_us = numbers
            if not _EPOCH.match(epoch) or not all(type(number) is int for number in numbers):
                raise ValueError("epoch or versions")
            schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(found["schema"])))
            stripe_ids = found.get("stripe_ids_max", 0)
            if type(stripe_ids) is not int:
                raise ValueError("stripe_ids_max")
            kind, key = str(found["kind"]), tuple(str(name) for name in found.get("key") or ())
        except (KeyError, TypeError, ValueError, pa.ArrowException) as error:
            raise RemoteProtocolError(
                f"what the server tells of the journal of table {table!r} makes no sense: {error}"
            ) from error
        return cls(
            facts=Facts(epoch=epoch, version=version, earliest=earliest),
            kind=kind,
            key=key,
            rows=rows,
            timestamp_us=timestamp_us,
            schema=schema,
            stripe_ids_max=stripe_ids,
            chooses_feed_columns="feed_columns" in found,
        )


class RemoteJournal:
    """The journal of one table at a server. Implements :class:`spark_sink.planning.Journal`."""

    def __init__(
        self,
        connection: ServerConnection,
        table: str,
        *,
        consumer: str,
        lease_ms: int,
        has_preimage: bool = False,
    ) -> None:
        self._connection = connection
        self._table = table
        self._consumer = consumer
        self._lease_ms = lease_ms
        self._preimage = {"preimage": True} if has_preimage else {}
        self._watch = TableWatch(connection, table, consumer=consumer, lease_ms=lease_ms)
        self._described: SourceFacts | None = None

    # --- what planning asks ---

    def facts(self) -> Facts:
        return self.describe().facts

    def bound(
        self, epoch: str, after: int, cap: int, *, rows_max: int | None, bytes_max: int | None
    ) -> Bound:
        asked = {"max_rows": rows_max, "max_bytes": bytes_max}
        limits = [{name: limit} for name, limit in asked.items() if limit is not None]
        bounds = [
            self._bound_of({"epoch": epoch, "from": after, "cap": cap, **limit, **self._preimage})
            for limit in limits
        ]
        return min(bounds, key=lambda bound: bound.version)

    def _bound_of(self, body: dict[str, Any]) -> Bound:
        found = self._action("journal.bound", **body)
        return Bound(int(found["version"]), int(found["rows"]), int(found["bytes"]))

    def amount(self, epoch: str, version: int) -> Amount:
        return self._amount({"mode": "snapshot", "epoch": epoch, "to": version})

    def id_bounds(self, epoch: str, version: int, parts: int) -> Sequence[int]:
        info = self._plan({"mode": "snapshot", "epoch": epoch, "to": version, "splits": parts})
        found = [_ids_of(endpoint.ticket.ticket) for endpoint in info.endpoints]
        return sorted({low for low, _ in found if low > 0})

    def version_before(self, time_us: int) -> int:
        try:
            return self.version_at(time_us - 1)
        except ServerError as error:
            if error.failure is Failure.LOST:
                return -1
            raise

    # --- what the reader asks ---

    def describe(self) -> SourceFacts:
        """Everything ``journal.info`` tells, asked now."""
        found = self._action("journal.info")
        self._described = SourceFacts.of(found, table=self._table)
        return self._described

    @property
    def described(self) -> SourceFacts:
        """What it told last."""
        return self._described or self.describe()

    def newest(self) -> VersionMark:
        """The newest version, from memory."""
        return self._watch.newest()

    def newest_asked(self) -> VersionMark:
        """The newest version there is now, asked."""
        return self._watch.newest_asked()

    def version_at(self, time_us: int) -> int:
        """The version that was current at a time; ServerError (LOST) before the journal."""
        return int(self._action("journal.version", timestamp_us=time_us)["version"])

    def mark_before(self, epoch: str, version: int) -> VersionMark | None:
        """What the watch told of a version, or of the last before it that is remembered."""
        return self._watch.marks.before(epoch, version)

    def change_rows(self, epoch: str, after: int, upto: int) -> int:
        """Rows of the feed of (after, upto], before a filter."""
        # What the watch counts has the rows of before a modification in it.
        if self._preimage or self.described.kind in APPENDED_KINDS:
            known = self._watch.marks.rows_between(epoch, after, upto)
            if known is not None:
                return known
        plan = {"mode": "changes", "epoch": epoch, "from": after, "to": upto, **self._preimage}
        return self._amount(plan).rows

    def hold(self, version: int) -> None:
        """Tell how far this consumer has come, so that what is after that is kept. A server that
        cannot is not an error: it says so again where it matters."""
        try:
            self._connection.action(
                "journal.cursor",
                table=self._table,
                consumer=self._consumer,
                version=version,
                lease_ms=self._lease_ms,
            )
        except ServerError as error:
            if error.failure not in (Failure.UNREACHABLE, Failure.LOST):
                raise

    def prepared(self, pieces: list[Piece]) -> list[Piece]:
        """As they are: tasks ask the server."""
        return pieces

    def close(self) -> None:
        """End the watch. The lease stays until it runs out: the query may come back."""
        self._watch.close()

    @property
    def away_seconds(self) -> float:
        """How long the watch has been without its server."""
        return self._watch.away_seconds

    def _action(self, name: str, **body: Any) -> dict[str, Any]:
        return self._connection.action(name, is_known=self._is_known, table=self._table, **body)

    @property
    def _is_known(self) -> bool:
        """Whether the table was there before."""
        return self._described is not None or self._watch.marks.newest is not None

    def _amount(self, plan: dict[str, Any]) -> Amount:
        info = self._plan({**plan, "splits": 1})
        return Amount(max(0, info.total_records), max(0, info.total_bytes))

    def _plan(self, plan: dict[str, Any]) -> Any:
        connection = self._connection
        text = json.dumps({"table": self._table, **plan}, separators=(",", ":"))
        descriptor = flight.FlightDescriptor.for_command(b"j/" + text.encode())
        return connection.retried(
            lambda: connection.client().get_flight_info(
                descriptor, connection.call_options(connection.timeout_ms)
            ),
            doing=f"planning a read of table {self._table!r} at {connection.where}",
            is_known=self._is_known,
        )


def _ids_of(ticket: bytes) -> tuple[int, int]:
    try:
        fields = json.loads(ticket.removeprefix(b"j/"))
        low, high = fields.get("ids") or (0, 0)
        return int(low), int(high)
    except (ValueError, TypeError, AttributeError) as error:
        raise RemoteProtocolError(f"a ticket of a snapshot has no row ids: {error}") from error
