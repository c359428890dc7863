"""Uploads to exports below the socket: what fails them, and that nothing stays behind."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from typing import Any

import pyarrow as pa
import pytest

from barrage.errors import (
    BarrageError,
    ConnectionLostError,
    EngineError,
    LimitExceededError,
    RemoteProtocolError,
    SchemaError,
    TicketError,
)
from barrage.limits import DEFAULT_LIMITS
from barrage.server.access.exports import ExportState
from barrage.server.access.grpc_calls import END_OF_STREAM
from barrage.server.ingest.export_upload import (
    ExportUpload,
    UploadBudget,
    export_id_of_descriptor,
)
from barrage.supervision import in_thread
from barrage.transport.flight_messages import Descriptor, decode_put_result
from barrage.wire import FlightFrame, encode_flight_data
from tests.unit.server.deephaven.arrow_samples import sample_columns
from tests.unit.server.deephaven.conftest import Bench, WrittenContext, run

ROWS = pa.table({"k": [1, 2, 3], "s": ["a", "b", None]})


def frames(rows: pa.Table, batch_rows: int | None = None) -> list[FlightFrame]:
    """The schema and the batches of ``rows``."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows, max_chunksize=batch_rows)
    messages = pa.ipc.MessageReader.open_stream(sink.getvalue())
    return [
        FlightFrame(
            header=message.metadata.to_pybytes(),
            body=None if message.body is None else message.body.to_pybytes(),
        )
        for message in messages
    ]


class Sent(WrittenContext):
    """A client that has sent these frames, and half-closed unless it stalls."""

    def __init__(self, sent: list[FlightFrame], *, stalls: bool = False) -> None:
        super().__init__([encode_flight_data(frame) for frame in sent])
        self._stalls = stalls

    async def read(self) -> Any:
        if self._incoming:
            return self._incoming.pop(0)
        if self._stalls:
            await asyncio.Event().wait()
        return END_OF_STREAM


def upload(bench: Bench, context: Sent, **options: Any) -> ExportUpload:
    budget = options.pop("budget", UploadBudget(bench.limits.upload_bytes_max))
    export = bench.session.exports.define(1)
    return ExportUpload(
        export, context, bench.tables, limits=options.pop("limits", bench.limits), budget=budget
    )


def put(bench: Bench, sent: list[FlightFrame], **options: Any) -> Sent:
    context = Sent(sent[1:])
    run(upload(bench, context, **options).run(sent[0]))
    return context


def exported(bench: Bench) -> pa.Table:
    lease = bench.session.exports.find(1).lease
    assert lease is not None
    return bench.tables.read(lease.table)


def test_rows_and_answers(bench):
    sent = frames(ROWS, batch_rows=1)
    budget = UploadBudget(10_000)
    context = put(bench, sent, budget=budget)
    assert exported(bench) == ROWS
    assert [decode_put_result(message) for message in context.messages] == [b""] * len(sent)
    assert budget.bytes_gathered == 0


@pytest.mark.parametrize("name", sample_columns())
def test_every_type_clients_send(bench, name):
    rows = pa.table({"c": sample_columns()[name]})
    described = pa.schema([rows.schema.field("c").with_metadata({"deephaven:type": "int"})])
    put(bench, frames(rows.cast(described)))
    found = exported(bench)
    assert found.schema == rows.schema
    assert found.schema.field("c").metadata is None
    assert found.to_pylist() == rows.to_pylist()


def test_dictionaries_are_taken(bench):
    rows = pa.table({"c": pa.array(["a", "b", "a"]).dictionary_encode()})
    context = put(bench, frames(rows))
    assert exported(bench).column("c").to_pylist() == ["a", "b", "a"]
    assert len(context.messages) == 2


def test_frames_without_data_are_ignored(bench):
    context = put(bench, [FlightFrame(), *frames(ROWS)])
    assert exported(bench) == ROWS
    assert len(context.messages) == 2


@pytest.mark.parametrize(
    ("sent", "error", "says"),
    [
        ([FlightFrame()], RemoteProtocolError, "before its schema"),
        (frames(ROWS)[1:], RemoteProtocolError, "starts with its schema"),
        ([frames(ROWS)[0]] * 2, RemoteProtocolError, "one schema"),
        ([FlightFrame(header=b"\x01\x02\x03")], RemoteProtocolError, "valid"),
        (frames(pa.table({"s": pa.array([{"a": 1}])})), SchemaError, "struct"),
        (frames(pa.table([[1], [2]], names=["a", "a"])), SchemaError, "twice"),
    ],
)
def test_a_failed_upload_fails_its_export_with_the_same_error(bench, sent, error, says):
    with pytest.raises(error, match=says) as raised:
        put(bench, sent)
    export = bench.session.exports.find(1)
    assert export.state is ExportState.FAILED
    assert export.error is raised.value


def test_a_batch_that_does_not_fit_the_schema(bench):
    other = frames(pa.table({"k": ["x" * 100]}))
    with pytest.raises(BarrageError):
        put(bench, [frames(ROWS)[0], other[1]])
    assert bench.session.exports.find(1).state is ExportState.FAILED


def test_what_nobody_expected_is_told_by_an_id(bench, monkeypatch):
    def broken(_: object) -> None:
        raise ZeroDivisionError("a secret")

    monkeypatch.setattr(bench.tables, "create_static", broken)
    with pytest.raises(EngineError, match="logged with id") as raised:
        put(bench, frames(ROWS))
    assert bench.session.exports.find(1).error is raised.value


def test_all_uploads_under_way_share_one_budget(bench):
    sent = frames(ROWS)
    size = pa.RecordBatch.from_pylist(ROWS.to_pylist()).get_total_buffer_size()
    budget = UploadBudget(size + 4096)
    put(bench, sent, budget=budget)
    bench.session.exports.release(1)
    budget.take(4097)
    with pytest.raises(LimitExceededError, match="uploads"):
        put(bench, sent, budget=budget)
    assert budget.bytes_gathered == 4097
    budget.give_back(4097)
    assert budget.bytes_gathered == 0


def test_the_bytes_of_a_call_that_ends_count_until_its_rows_are_stored(bench, monkeypatch):
    sent, given_back = frames(ROWS), asyncio.Event()

    class Budget(UploadBudget):
        def give_back(self, byte_count: int) -> None:
            super().give_back(byte_count)
            if byte_count:
                given_back.set()

    budget = Budget(1 << 20)
    begun, let_through = threading.Event(), threading.Event()
    create_static = bench.tables.create_static

    def held(found: pa.Table) -> Any:
        begun.set()
        assert let_through.wait(60)
        return create_static(found)

    monkeypatch.setattr(bench.tables, "create_static", held)

    async def go() -> None:
        call = asyncio.create_task(upload(bench, Sent(sent[1:]), budget=budget).run(sent[0]))
        assert await in_thread(begun.wait, 60)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert budget.bytes_gathered > 0
        let_through.set()
        await given_back.wait()
        assert budget.bytes_gathered == 0

    run(go())
    assert isinstance(bench.session.exports.find(1).error, ConnectionLostError)


def test_the_budget_at_its_limit_and_one_past_it():
    budget = UploadBudget(10)
    budget.take(10)
    with pytest.raises(LimitExceededError, match="11 bytes, the limit is 10"):
        budget.take(1)
    assert budget.bytes_gathered == 10


def test_rows_without_bytes_use_the_budget_as_well(bench):
    nothing = frames(pa.table({"n": pa.nulls(1000)}))
    put(bench, nothing, budget=UploadBudget(8000))
    bench.session.exports.release(1)
    with pytest.raises(LimitExceededError, match="8000 bytes, the limit is 7999"):
        put(bench, nothing, budget=UploadBudget(7999))


def test_a_batch_of_too_many_rows(bench):
    limits = dataclasses.replace(DEFAULT_LIMITS, ingest_batch_rows_max=2)
    with pytest.raises(LimitExceededError, match="3 rows"):
        put(bench, frames(ROWS), limits=limits)
    bench.session.exports.release(1)
    put(bench, frames(ROWS, batch_rows=2), limits=limits)
    assert exported(bench) == ROWS


def test_a_client_that_goes_away_fails_the_export(bench):
    async def go() -> None:
        sent = frames(ROWS)
        context = Sent(sent[1:], stalls=True)
        call = asyncio.create_task(upload(bench, context).run(sent[0]))
        await context.wait_for(2)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        with pytest.raises(ConnectionLostError, match="cancelled"):
            await bench.session.exports.find(1).table_lease()

    run(go())


def test_an_export_released_while_the_upload_runs_stays_released(bench):
    async def go() -> None:
        sent = frames(ROWS)
        context = Sent(sent[1:], stalls=True)
        call = asyncio.create_task(upload(bench, context).run(sent[0]))
        await context.wait_for(2)
        bench.session.exports.release(1)
        context._stalls = False
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        with pytest.raises(TicketError, match="released"):
            bench.session.exports.find(1)

    run(go())


@pytest.mark.parametrize(
    ("descriptor", "expected"),
    [
        (Descriptor(path=("export", "7")), 7),
        (Descriptor(command=b"e\x07\x00\x00\x00"), 7),
        (Descriptor(path=("export",)), None),
        (Descriptor(path=("scope", "export")), None),
        (Descriptor(path=("t",)), None),
        (Descriptor(path=()), None),
        (Descriptor(command=b"s/t"), None),
        (Descriptor(command=b'{"table": "t"}'), None),
        (Descriptor(command=b""), None),
    ],
)
def test_which_descriptors_name_an_export(descriptor, expected):
    assert export_id_of_descriptor(descriptor, DEFAULT_LIMITS) == expected
