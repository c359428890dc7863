"""Staging over Flight: DoPut brings parts of a batch, two actions commit or forget it.

A DoPut whose command is ``{"stage": {"table", "writer", "batch", "partition", "attempt"}}`` sends
one part. The empty answer at the start says that rows may come; the answer at the end says that the
part is staged, and only then it is.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from barrage.errors import LimitExceededError, RemoteProtocolError
from barrage.json_text import JsonTextError, read_json
from barrage.server.access.grpc_calls import END_OF_STREAM
from barrage.server.access.method_table import Action
from barrage.server.ingest.stage_commit import CommitRequest, StageCommitter
from barrage.server.ingest.staged_rows import Mode
from barrage.server.ingest.staging import BatchName, StagedPart, StagingArea
from barrage.server.ingest.unpacking import unpacked
from barrage.server.ingest.upload import UploadReader
from barrage.server.policy.rules import Operation
from barrage.server.settings.declared import Number, expected
from barrage.server.settings.json_fields import Fields, Pair
from barrage.server.tables.tickets import check_table_name
from barrage.transport.flight_messages import Descriptor, encode_put_result
from barrage.wire.flight_data import decode_flight_data

if TYPE_CHECKING:
    from collections.abc import Mapping

    from barrage.limits import Limits
    from barrage.server.policy.access_gate import AccessGate
    from barrage.transport.base import CallContext
    from barrage.wire.frame import FlightFrame


STAGE_COMMIT = "stage.commit"
STAGE_ABORT = "stage.abort"


_Staged = Annotated[
    list[Pair], Meta(description="a list of [partition, attempt], each partition once")
]


class StageCalls:
    """The behaviors. Runs on the event loop."""

    def __init__(
        self,
        staging: StagingArea,
        committer: StageCommitter,
        limits: Limits,
        *,
        gate: AccessGate,
    ) -> None:
        self._gate = gate
        self._staging = staging
        self._committer = committer
        self._limits = limits

    def actions(self) -> Mapping[str, Action]:
        return {
            STAGE_COMMIT: Action(
                "Make staged rows visible, once: in one cycle, or many rows for a table with a key "
                'in several, the last of which commits the batch. Body: JSON {"table", "writer", '
                '"batch", "staged": [[partition, attempt], ...], "mode": '
                '"append|upsert|replace|changes", "key": [...], "create", "schema": base64 of an '
                'encapsulated Arrow IPC schema message, "merge_schema", "fail_on_data_loss"}. '
                'Result: JSON {"version", "duplicate", "rows"}.',
                self._commit,
            ),
            STAGE_ABORT: Action(
                'Forget what is staged for a batch. Body: JSON {"table", "writer", "batch"}. '
                'Result: JSON {"rows"}.',
                self._abort,
            ),
        }

    def is_stage(self, first: FlightFrame) -> bool:
        """Whether the first message of a DoPut begins a part."""
        if first.descriptor is None:
            return False
        command = Descriptor.decode(first.descriptor).command
        if command is None or b'"stage"' not in command[: self._limits.journal_request_bytes_max]:
            return False
        try:
            told = read_json(command)
        except JsonTextError:
            return False
        return isinstance(told, dict) and "stage" in told

    async def put(self, first: FlightFrame, context: CallContext) -> None:
        """Take one part, whole or not at all."""
        assert first.descriptor is not None
        part = self._opened(Descriptor.decode(first.descriptor).command or b"")
        batches = UploadReader(self._limits)
        is_complete = False
        try:
            await self._take(part, batches, first)
            await context.write(encode_put_result(b'{"rows": 0}'))
            while (message := await context.read()) is not END_OF_STREAM:
                await self._take(part, batches, decode_flight_data(message, self._limits))
            if batches.schema is None:
                raise RemoteProtocolError("a part starts with its schema")
            self._staging.complete(part, batches.schema)
            is_complete = True
        finally:
            if not is_complete:
                self._staging.discard(part)
        await self._answer(part, context)

    async def _answer(self, part: StagedPart, context: CallContext) -> None:
        """Tell that the part is staged. The end of a stream that was cut looks like that of one
        that ended well until something is sent."""
        told = {"rows": part.row_count, "bytes": part.byte_count}
        try:
            await context.write(encode_put_result(json.dumps(told).encode()))
        except BaseException:
            self._staging.withdraw(part)
            raise

    def _opened(self, command: bytes) -> StagedPart:
        most = self._limits.journal_request_bytes_max
        outer = Fields.parse(command, "put command", bytes_max=most)
        fields = outer.part("stage", "'stage'")
        outer.finish()
        name = _batch_name(fields)
        partition, attempt = fields.get("partition", Number), fields.get("attempt", Number)
        fields.finish()
        self._gate.check(name.table, Operation.WRITE, Operation.CREATE)
        return self._staging.open(name, partition, attempt)

    async def _take(self, part: StagedPart, batches: UploadReader, frame: FlightFrame) -> None:
        found = await unpacked(batches, frame)
        if found is not None:
            body_bytes = 0 if frame.body is None else len(frame.body)
            self._staging.add(part, found.batch, max(found.table_bytes, body_bytes))

    async def _commit(self, body: bytes) -> bytes:
        request = commit_request(body, self._limits)
        self._gate.check(request.name.table, Operation.WRITE)
        if request.is_created:
            self._gate.check(request.name.table, Operation.CREATE)
        done = await self._committer.commit(request)
        told = {"version": done.version, "duplicate": done.is_duplicate, "rows": done.row_count}
        return json.dumps(told).encode()

    async def _abort(self, body: bytes) -> bytes:
        fields = self._fields(body)
        name = _batch_name(fields)
        fields.finish()
        self._gate.check(name.table, Operation.WRITE, Operation.CREATE)
        return json.dumps({"rows": self._staging.forget_batch(name)}).encode()

    def _fields(self, body: bytes) -> Fields:
        return Fields.parse(body, "action body", bytes_max=self._limits.journal_request_bytes_max)


def commit_request(body: bytes, limits: Limits) -> CommitRequest:
    """A commit as a peer asks for it. RemoteProtocolError, SchemaError, SequenceError,
    LimitExceededError."""
    # A list of parts may be long; a schema of many columns as well.
    most = limits.journal_request_bytes_max + 64 * limits.staging_parts_max
    fields = Fields.parse(body, "action body", bytes_max=most)
    request = CommitRequest(
        name=_batch_name(fields),
        staged=_staged(fields, limits),
        mode=fields.get("mode", Mode, "append"),
        key=fields.texts("key", count_max=limits.columns_max) or (),
        is_created=fields.get("create", bool, False),
        schema=fields.schema("schema"),
        merge_schema=fields.get("merge_schema", bool, False),
        fail_on_data_loss=fields.get("fail_on_data_loss", bool, True),
    )
    fields.finish()
    return request


def _batch_name(fields: Fields) -> BatchName:
    return BatchName(
        table=check_table_name(fields.value("table")),
        writer=fields.name("writer"),
        batch=fields.get("batch", Number),
    )


def _staged(fields: Fields, limits: Limits) -> tuple[tuple[int, int], ...]:
    """The parts of a commit, each partition once."""
    value = fields.get("staged", _Staged)
    if len(value) > limits.staging_parts_max:
        raise LimitExceededError(
            "list of staged parts",
            actual=len(value),
            maximum=limits.staging_parts_max,
            unit="parts",
        )
    if len(dict(value)) != len(value):
        raise fields.fail("staged", expected(_Staged))
    return tuple(value)
