"""A journal behind a Flight server, small enough to be believed: every version's rows are kept as
Python objects. It speaks the calls a journal reader makes, and can be told to misbehave."""

from __future__ import annotations

import base64
import json
import secrets
import threading
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

FEED = [
    pa.field("_change_type", pa.string()),
    pa.field("_commit_version", pa.int64()),
    pa.field("_commit_timestamp", pa.timestamp("us", tz="UTC")),
    pa.field("_row_id", pa.int64()),
]
WATCH = pa.schema(
    [
        ("epoch", pa.string()),
        ("version", pa.int64()),
        ("rows", pa.int64()),
        ("bytes", pa.int64()),
        ("timestamp_us", pa.int64()),
    ]
)


class FakeTable:
    """One table: rows by id, and what each version changed."""

    def __init__(self, schema: pa.Schema, kind: str = "keyed") -> None:
        self.schema, self.kind = schema, kind
        self.begin_epoch()

    def begin_epoch(self) -> None:
        self.epoch = secrets.token_hex(8)
        self.version = self.earliest = 0
        self.next_id = 0
        self.states: dict[int, dict[int, dict]] = {0: {}}
        self.entries: dict[int, list[tuple[str, int, dict]]] = {}

    def commit(
        self,
        add: list[dict] = (),  # type: ignore[assignment]
        modify: dict[int, dict] | None = None,
        remove: list[int] = (),  # type: ignore[assignment]
    ) -> int:
        rows = dict(self.states[self.version])
        changes: list[tuple[str, int, dict]] = [("delete", row, rows.pop(row)) for row in remove]
        for row, values in (modify or {}).items():
            changes.append(("update_preimage", row, rows[row]))
            rows[row] = {**rows[row], **values}
            changes.append(("update_postimage", row, rows[row]))
        for values in add:
            rows[self.next_id] = values
            changes.append(("insert", self.next_id, values))
            self.next_id += 1
        self.version += 1
        self.states[self.version] = rows
        self.entries[self.version] = changes
        return self.version

    def rows_until(self, version: int, *, preimage: bool = True) -> int:
        return sum(self.row_count(v, preimage=preimage) for v in self.entries if v <= version)

    def row_count(self, version: int, *, preimage: bool) -> int:
        kinds = [kind for kind, _, _ in self.entries[version]]
        return len(kinds) if preimage else len(kinds) - kinds.count("update_preimage")

    def feed(self, fields: dict[str, Any]) -> pa.Table:
        changes: list[tuple[str, int, int, dict]] = []
        if fields["mode"] == "snapshot":
            version = fields.get("version", self.version)
            low, high = fields["ids"]
            changes = [
                ("insert", version, row, values)
                for row, values in self.states[version].items()
                if low <= row < high
            ]
        else:
            stripe, stripes = fields.get("stripe", (0, 1))
            changes = [
                (kind, version, row, values)
                for version in sorted(self.entries)
                if fields["from"] < version <= fields["to"]
                for kind, row, values in self.entries[version]
                if row % stripes == stripe and (kind != "update_preimage" or fields.get("preimage"))
            ]
        names = fields.get("columns") or self.schema.names
        columns = [
            pa.array([change[0] for change in changes], pa.string()),
            pa.array([change[1] for change in changes], pa.int64()),
            pa.array([change[1] * 1000 for change in changes], pa.timestamp("us", tz="UTC")),
            pa.array([change[2] for change in changes], pa.int64()),
        ]
        columns += [
            pa.array([change[3].get(name) for change in changes], self.schema.field(name).type)
            for name in names
        ]
        return pa.table(columns, schema=pa.schema([*FEED, *map(self.schema.field, names)]))


class FakeJournalServer(flight.FlightServerBase):
    """Serves :class:`FakeTable` objects. ``calls`` lists (method, body) of what was asked."""

    def __init__(self) -> None:
        # Calls are accepted from the base class's constructor on.
        self.tables: dict[str, FakeTable] = {}
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.headers: list[dict[str, list[str]]] = []
        self.changed = threading.Condition()
        self.is_stopping = False
        self.chunk_rows = 1000
        self.break_after_chunks: int | None = None
        self.unavailable = 0
        self.is_turned = False
        """Whether every second read has its rows the other way round."""
        super().__init__("grpc://127.0.0.1:0", middleware={"headers": HeaderFactory(self.headers)})

    @property
    def uri(self) -> str:
        return f"grpc://127.0.0.1:{self.port}"

    def commit(self, name: str, **changes: Any) -> int:
        with self.changed:
            version = self.tables[name].commit(**changes)
            self.changed.notify_all()
        return version

    def stop(self) -> None:
        with self.changed:
            self.is_stopping = True
            self.changed.notify_all()
        self.shutdown()

    def __enter__(self) -> FakeJournalServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def asked(self, name: str) -> list[dict[str, Any]]:
        return [body for method, body in self.calls if method == name]

    def _table(self, body: dict[str, Any]) -> FakeTable:
        if self.unavailable:
            self.unavailable -= 1
            raise flight.FlightUnavailableError("the fake is away")
        name = body["table"]
        if name not in self.tables:
            raise KeyError(f"table '{name}' not found")
        table = self.tables[name]
        if body.get("epoch") not in (None, table.epoch):
            raise flight.FlightServerError("history-lost: epoch: another epoch")
        return table

    def do_action(self, context: Any, action: flight.Action) -> Iterator[bytes]:
        body = json.loads(action.body.to_pybytes())
        self.calls.append((action.type, body))
        table = self._table(body)
        answer: dict[str, Any] = {}
        if action.type == "journal.info":
            answer = {
                "table": body["table"],
                "epoch": table.epoch,
                "version": table.version,
                "earliest": table.earliest,
                "rows": len(table.states[table.version]),
                "key": [],
                "kind": table.kind,
                "schema": base64.b64encode(table.schema.serialize().to_pybytes()).decode(),
                "timestamp_us": table.version * 1000,
                "bytes": 0,
            }
        elif action.type == "journal.bound":
            version, rows = body["from"], 0
            for later in sorted(v for v in table.entries if body["from"] < v <= body["cap"]):
                count = table.row_count(later, preimage=body.get("preimage", False))
                too_many = rows + count > body.get("max_rows", 2**62)
                too_large = (rows + count) * 10 > body.get("max_bytes", 2**62)
                if version > body["from"] and (too_many or too_large):
                    break
                version, rows = later, rows + count
            answer = {"version": version, "rows": rows, "bytes": rows * 10}
        elif action.type == "journal.version":
            answer = {"epoch": table.epoch, "version": body["timestamp_us"] // 1000}
        return iter([json.dumps(answer).encode()])

    def get_flight_info(self, context: Any, descriptor: Any) -> flight.FlightInfo:
        body = json.loads(descriptor.command.removeprefix(b"j/"))
        self.calls.append(("plan", body))
        table = self._table(body)
        if body["mode"] == "changes":
            preimage = body.get("preimage", False)
            after, upto = body["from"], body["to"]
            rows = table.rows_until(upto, preimage=preimage)
            rows -= table.rows_until(after, preimage=preimage)
            tickets = [{**body}]
        else:
            ids = sorted(table.states[body["to"]])
            rows, splits = len(ids), body["splits"]
            edges = sorted({ids[rows * part // splits] for part in range(1, splits) if ids})
            ends = [0, *(edge for edge in edges if edge), 2**63 - 1]
            tickets = [{"ids": [low, high]} for low, high in pairwise(ends)]
        endpoints = [
            flight.FlightEndpoint(b"j/" + json.dumps(ticket).encode(), []) for ticket in tickets
        ]
        return flight.FlightInfo(table.schema, descriptor, endpoints, rows, rows * 10)

    def do_get(self, context: Any, ticket: flight.Ticket) -> flight.GeneratorStream:
        body = json.loads(ticket.ticket.removeprefix(b"j/"))
        self.calls.append(("get", body))
        table = self._table(body)
        if body["mode"] == "watch":
            return flight.GeneratorStream(WATCH, self._news(context, table))
        first = body["from"] if body["mode"] == "changes" else body.get("version", table.version)
        if first < table.earliest:
            raise flight.FlightServerError("history-lost: truncated: it was cut")
        rows = table.feed(body)
        if self.is_turned and len(self.asked("get")) % 2 == 0:
            rows = rows.take(list(range(len(rows)))[::-1])
        return flight.GeneratorStream(rows.schema, self._chunks(rows))

    def _chunks(self, rows: pa.Table) -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(rows.to_batches(max_chunksize=self.chunk_rows)):
            if self.break_after_chunks == number:
                self.break_after_chunks = None
                raise flight.FlightUnavailableError("the fake broke the stream")
            yield batch

    def _news(self, context: Any, table: FakeTable) -> Iterator[pa.RecordBatch]:
        told = None
        while not self.is_stopping and not context.is_cancelled():
            with self.changed:
                state = (table.epoch, table.version)
                if state == told:
                    self.changed.wait(0.05)
                    continue
            told = state
            rows = table.rows_until(table.version)
            values = [[table.epoch], [table.version], [rows], [rows * 10], [table.version * 1000]]
            yield pa.record_batch([pa.array(value) for value in values], schema=WATCH)


class HeaderFactory(flight.ServerMiddlewareFactory):
    """Keeps the headers of every call."""

    def __init__(self, seen: list[dict[str, list[str]]]) -> None:
        self._seen = seen

    def start_call(self, info: Any, headers: dict[str, list[str]]) -> None:
        self._seen.append(headers)
