"""Rows that take few bytes on the wire and many in a table: dictionaries, runs, views, nulls. What
they become is measured before anything is cast."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

import barrage
from barrage.limits import Limits
from barrage.server import ServerConfig
from barrage.server.flight import put_calls
from barrage.server.ingest import staged_rows
from tests.helpers.journal_client import JournalClient

MOST = 200_000
LIMITS = Limits(ingest_bytes_pending_max=MOST, staging_bytes_max=MOST, transform_bytes_max=MOST)
TEXT = "x" * 1000
FITS, TOO_MANY = 150, 250
"""Rows of the text."""

WIDE = [f"n{i}" for i in range(10)]
NULLS_FIT, NULLS_TOO_MANY = 2000, 3000
"""Rows of ten numbers."""


@pytest.fixture(scope="module")
def server() -> Iterator[barrage.Server]:
    config = ServerConfig(limits=LIMITS)
    with barrage.Server("127.0.0.1", config=config, journal="memory") as running:
        running.create_table("texts", pa.schema([("s", pa.string())]))
        running.create_table("numbers", pa.schema([(name, pa.int64()) for name in WIDE]))
        yield running


@pytest.fixture
def client(server: barrage.Server) -> Iterator[JournalClient]:
    with JournalClient(server.uri) as opened:
        yield opened


def encoded(how: str, count: int) -> pa.RecordBatch:
    words = pa.array([TEXT])
    if how == "dictionary":
        column = pa.DictionaryArray.from_arrays(pa.array([0] * count, pa.int16()), words)
    elif how == "runs":
        column = pa.RunEndEncodedArray.from_arrays(pa.array([count], pa.int32()), words)
    else:
        view = struct.pack("<i4sii", len(TEXT), b"xxxx", 0, 0)
        buffers = [None, pa.py_buffer(view * count), pa.py_buffer(TEXT.encode())]
        column = pa.Array.from_buffers(pa.string_view(), count, buffers)
    rows = pa.record_batch([column], names=["s"])
    assert rows.nbytes < MOST / 10
    return rows


def nulls(count: int) -> pa.RecordBatch:
    return pa.record_batch([pa.nulls(count)] * len(WIDE), names=WIDE)


CASES = [
    ("texts", encoded(how, FITS), encoded(how, TOO_MANY)) for how in ("dictionary", "runs", "views")
]
CASES.append(("numbers", nulls(NULLS_FIT), nulls(NULLS_TOO_MANY)))
each_encoding = pytest.mark.parametrize(
    ("table", "fits", "too_many"), CASES, ids=["dictionary", "runs", "views", "nulls"]
)


def put(client: JournalClient, descriptor: flight.FlightDescriptor, rows: pa.RecordBatch) -> int:
    writer, answers = client.client.do_put(descriptor, rows.schema)
    told: dict[str, Any] = {}
    with writer:
        writer.write_batch(rows)
        writer.done_writing()
        while (answer := answers.read()) is not None:
            told = json.loads(answer.to_pybytes())
    return int(told["rows"])


def never_cast(monkeypatch: pytest.MonkeyPatch, module: Any) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("cast")

    monkeypatch.setattr(module, "coerce_rows", fail)


@each_encoding
def test_an_upload_is_refused_before_it_is_cast(
    client, table, fits, too_many, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = flight.FlightDescriptor.for_path(table)
    assert put(client, path, fits) == len(fits)
    never_cast(monkeypatch, put_calls)
    told = r"batch 1 in the types of its table is 2\d{5} bytes, the limit is 200000 bytes"
    with pytest.raises(pa.ArrowException, match=told) as caught:
        put(client, path, too_many)
    assert "RESOURCE_EXHAUSTED" in str(caught.value)


@pytest.mark.parametrize("how", ["runs", "views"])
def test_the_rows_of_a_static_table_are_counted_as_it_holds_them(client, how) -> None:
    command = json.dumps({"table": f"static-{how}", "mode": "create", "kind": "static"})
    with pytest.raises(pa.ArrowException, match="the limit is 200000 bytes"):
        put(client, flight.FlightDescriptor.for_command(command), encoded(how, TOO_MANY))


@each_encoding
def test_a_staged_batch_is_refused_before_it_is_cast(
    server, client, table, fits, too_many, monkeypatch: pytest.MonkeyPatch
) -> None:
    staging = server._running.journals.staging
    writer = str(fits.schema.types[0])
    staged = client.stage(table, writer, 0, pa.Table.from_batches([fits]))
    assert client.commit(table, writer, 0, staged)["rows"] == len(fits)
    assert staging.byte_count == 0
    never_cast(monkeypatch, staged_rows)

    def stage_and_commit() -> None:
        staged = client.stage(table, writer, 1, pa.Table.from_batches([too_many]))
        client.commit(table, writer, 1, staged)

    with pytest.raises(pa.ArrowException, match=r"staged rows .* the limit is 200000 bytes"):
        stage_and_commit()
    client.act("stage.abort", table=table, writer=writer, batch=1)
    assert staging.byte_count == 0


def test_columns_that_are_missing_in_a_staged_batch_count_as_nulls(client) -> None:
    narrow = pa.table({"n0": pa.nulls(NULLS_TOO_MANY)})
    staged = client.stage("numbers", "narrow", 0, narrow)
    with pytest.raises(pa.ArrowException, match=r"staged rows .* the limit is 200000 bytes"):
        client.commit("numbers", "narrow", 0, staged, merge_schema=True)
    client.act("stage.abort", table="numbers", writer="narrow", batch=0)


@pytest.mark.parametrize("operation", [["where", "n >= 0"], ["sort", ["n"]]], ids=lambda o: o[0])
@pytest.mark.parametrize("how", ["runs", "views", "dictionary"])
def test_rows_to_transform_are_counted_as_a_table_holds_them(client, how, operation) -> None:
    def answered(count: int) -> pa.Table:
        numbered = encoded(how, count).append_column("n", pa.array([7] * count, pa.int8()))
        command = json.dumps({"transform": {"ops": [operation]}})
        writer, reader = client.client.do_exchange(flight.FlightDescriptor.for_command(command))
        with writer:
            writer.begin(numbered.schema)
            writer.write_batch(numbered)
            writer.done_writing()
            return reader.read_all()

    assert answered(FITS).num_rows == FITS
    if how == "dictionary":  # It stays one, here and on its way back.
        assert answered(TOO_MANY).num_rows == TOO_MANY
        return
    with pytest.raises(pa.ArrowException, match=r"is 2\d{5} bytes, the limit is 200000 bytes"):
        answered(TOO_MANY)
