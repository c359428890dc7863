"""Journals and staging as a stranger uses them: a plain pyarrow Flight client and JSON."""

from __future__ import annotations

import json
import random
from typing import Any

import pyarrow as pa
from pyarrow import flight


class JournalClient:
    """A connection to one server."""

    def __init__(self, uri: str, **options: Any) -> None:
        self.client = flight.connect(uri, **options)

    def __enter__(self) -> JournalClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()

    def act(self, name: str, **body: Any) -> dict[str, Any]:
        """An action's answer."""
        (result,) = self.client.do_action((name, json.dumps(body).encode()))
        told: dict[str, Any] = json.loads(result.body.to_pybytes())
        return told

    def info(self, table: str) -> dict[str, Any]:
        return self.act("journal.info", table=table)

    def plan(self, table: str, **fields: Any) -> flight.FlightInfo:
        return self.client.get_flight_info(descriptor(table, **fields))

    def reader(self, **ticket: Any) -> flight.FlightStreamReader:
        return self.client.do_get(flight.Ticket(b"j/" + json.dumps(ticket).encode()))

    def changes(self, table: str, after: int, upto: int | None = None, **options: Any) -> pa.Table:
        """The feed of (after, upto] through a plan, all its tickets."""
        bounds = {"from": after} if upto is None else {"from": after, "to": upto}
        info = self.plan(table, mode="changes", **bounds, **options)
        return self.fetched(info)

    def snapshot(self, table: str, **options: Any) -> pa.Table:
        """The rows through a plan, all its tickets."""
        return self.fetched(self.plan(table, mode="snapshot", **options))

    def fetched(self, info: flight.FlightInfo) -> pa.Table:
        parts = [self.client.do_get(end.ticket).read_all() for end in info.endpoints]
        return pa.concat_tables(parts, promote_options="permissive")

    def stage(
        self,
        table: str,
        writer: str,
        batch: int,
        *parts: pa.Table,
        attempts: list[int] | None = None,
    ) -> list[list[int]]:
        """Stage one part per table; their partition and attempt, as a commit names them."""
        staged = []
        for partition, rows in enumerate(parts):
            attempt = random.getrandbits(53) if attempts is None else attempts[partition]
            self.put(table, writer, batch, partition, attempt, rows)
            staged.append([partition, attempt])
        return staged

    def put(
        self, table: str, writer: str, batch: int, partition: int, attempt: int, rows: pa.Table
    ) -> dict[str, Any]:
        """Stage one part; what the server told at its end."""
        put, answers = self.open_put(table, writer, batch, partition, attempt, rows.schema)
        with put:
            put.write_table(rows)
            put.done_writing()
            told = []
            while (answer := answers.read()) is not None:
                told.append(json.loads(answer.to_pybytes()))
        last: dict[str, Any] = told[-1]
        return last

    def open_put(
        self, table: str, writer: str, batch: int, partition: int, attempt: int, schema: pa.Schema
    ) -> tuple[flight.FlightStreamWriter, flight.FlightMetadataReader]:
        command = {
            "stage": {
                "table": table,
                "writer": writer,
                "batch": batch,
                "partition": partition,
                "attempt": attempt,
            }
        }
        wanted = flight.FlightDescriptor.for_command(json.dumps(command))
        put: tuple[flight.FlightStreamWriter, flight.FlightMetadataReader]
        put = self.client.do_put(wanted, schema)
        return put

    def commit(
        self, table: str, writer: str, batch: int, staged: list[list[int]], **options: Any
    ) -> dict[str, Any]:
        return self.act(
            "stage.commit", table=table, writer=writer, batch=batch, staged=staged, **options
        )


def descriptor(table: str, **fields: Any) -> flight.FlightDescriptor:
    """The descriptor of a plan."""
    text = json.dumps({"table": table, **fields})
    return flight.FlightDescriptor.for_command(b"j/" + text.encode())


def replayed(feed: pa.Table, columns: list[str]) -> dict[int, tuple[Any, ...]]:
    """A feed applied row by row to nothing, by row id; AssertionError where it inserts a living
    row, or changes a dead one."""
    rows: dict[int, tuple[Any, ...]] = {}
    order = sorted(
        feed.to_pylist(),
        key=lambda row: (row["_commit_version"], row["_change_type"] != "delete"),
    )
    seen = set()
    for row in order:
        kind, number = row["_change_type"], row["_row_id"]
        change = (number, row["_commit_version"], kind)
        assert change not in seen
        seen.add(change)
        cells = tuple(row[name] for name in columns)
        if kind == "insert":
            assert number not in rows
            rows[number] = cells
        elif kind == "update_postimage":
            assert number in rows
            rows[number] = cells
        elif kind == "delete":
            assert rows.pop(number) == cells
        else:
            assert kind == "update_preimage"
    return rows
