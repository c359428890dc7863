"""DoPut: rows coming in, in batches, each acknowledged when a cycle has committed it.

Two tasks per call. One reads frames, checks them and passes them to the engine without waiting for
earlier ones; it stops reading while too many bytes wait to be committed. The other answers in
order. Each batch is checked as a whole before anything of it is applied; a bad one ends the call
and leaves those before it applied. Large ones are applied in :mod:`~barrage.server.ingest.portions`
unless they are one step: numbered by a producer, or replacing what is there.

A call whose command names a producer may send again what was sent before: batches are numbered, and
one that the table has already is answered without being applied
(:mod:`barrage.server.journaling.producer_positions`). The opening answer says how far it has got.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from barrage.engine.tables.coercion import coerce_rows
from barrage.engine.tables.keyed import check_keys_of
from barrage.errors import (
    AuthenticationError,
    BarrageError,
    LimitExceededError,
    ProducerFencedError,
    RemoteProtocolError,
    RowError,
    SchemaError,
    SequenceError,
    TableExistsError,
    TableNotFoundError,
)
from barrage.model.storage.encoded import with_used_values
from barrage.model.storage.row_weight import row_weight
from barrage.server.access.counted_call import counted
from barrage.server.access.grpc_calls import END_OF_STREAM
from barrage.server.flight.writes_elsewhere import needed_to_put, written_table
from barrage.server.identity.current_call import note_table
from barrage.server.ingest.export_upload import ExportUpload, UploadBudget, export_id_of_descriptor
from barrage.server.ingest.portions import pass_on, portions, weight_in
from barrage.server.ingest.rows import key_columns_of
from barrage.server.ingest.unpacking import Unpacked, unpacked
from barrage.server.ingest.upload import PutCommand, UploadReader
from barrage.server.journaling.producer_positions import ProducerPosition, check_sequence
from barrage.server.policy.rules import Operation
from barrage.server.runtime.aside import aside, in_turn
from barrage.server.settings.json_fields import Fields
from barrage.server.tables.table_service import Change, TableRecipe, source_for_peers
from barrage.server.tables.write_room import WriteChain
from barrage.supervision import Role, start_awaited, start_task
from barrage.transport.flight_messages import Descriptor, encode_put_result
from barrage.wire.flight_data import decode_flight_data

if TYPE_CHECKING:
    from barrage.engine.tables.source import SourceTable
    from barrage.limits import Limits
    from barrage.server.access.session_store import ClientSession
    from barrage.server.flight.stage_calls import StageCalls
    from barrage.server.flight.writes_elsewhere import WritesElsewhere
    from barrage.server.journaling.producer_positions import ProducerEpoch
    from barrage.server.policy.access_gate import AccessGate
    from barrage.server.runtime.measures import TransferMeasures
    from barrage.server.tables.table_service import TableService
    from barrage.server.tables.write_room import TakenRoom
    from barrage.transport.base import CallContext
    from barrage.wire.frame import FlightFrame


RECEIVER = Role("barrage-upload", "the upload: the batches taken are answered, then it ends")

PENDING_BYTES_MAX = 64 * 1024 * 1024
"""Bytes of one call that may wait to be committed; ``ingest_bytes_pending_max`` bounds all
calls."""

UNNAMED = "an upload's first message names its table in a descriptor"

UNANSWERED_BATCHES_MAX = 65_536
"""Batches of one call whose answers wait for a client that does not read them."""


@dataclass(frozen=True, slots=True)
class _Portion:
    """Rows that were passed to the engine."""

    committed: asyncio.Future[int]
    """The step that commits them."""
    sequence: int | None
    """The number of the batch, when its producer numbers them."""
    batch_rows: int
    """Rows of the batch they are of."""
    is_last: bool
    """Whether they end the batch, which is then answered."""


_OPERATIONS = {
    "append": "stage_add",
    "upsert": "stage_upsert",
    "replace": "stage_replace",
    "delete": "stage_remove",
}


class PutCalls:
    """The behavior of DoPut and the bytes all uploads together have waiting."""

    def __init__(
        self,
        tables: TableService,
        limits: Limits,
        *,
        stages: StageCalls,
        gate: AccessGate,
        transfers: TransferMeasures,
        elsewhere: WritesElsewhere | None = None,
    ) -> None:
        """``elsewhere`` has the tables that other servers own."""
        self._tables = tables
        self.gate = gate
        self._limits = limits
        self._stages = stages
        self._transfers = transfers
        self._elsewhere = elsewhere
        self._budget = UploadBudget(limits.upload_bytes_max)
        self._producing: dict[tuple[SourceTable, str], _Upload] = {}
        """The call that writes for a producer of a table."""
        self._stopped_by: BarrageError | None = None
        self.bytes_pending = 0

    async def do_put(
        self, _requests: object, context: CallContext, session: ClientSession | None
    ) -> None:
        """One upload: to a named table, here or at the server that owns it, to the staging area, or
        to an export of the caller's session."""
        context = counted(context, "DoPut", self._transfers)
        message = await context.read()
        if message is END_OF_STREAM:
            return
        frame = decode_flight_data(message, self._limits)
        if await self._passed_on(frame, message, context):
            return
        if self._stages.is_stage(frame):
            await self._stages.put(frame, context)
            return
        export_id = self._export_id(frame)
        if export_id is None:
            await _Upload(self, context, self._tables, limits=self._limits).run(frame)
            return
        if session is None:
            raise AuthenticationError("an export ticket belongs to a session; the call has none")
        export = session.exports.define(export_id)
        upload = ExportUpload(
            export, context, self._tables, limits=self._limits, budget=self._budget
        )
        await upload.run(frame)

    async def _passed_on(self, first: FlightFrame, message: bytes, context: CallContext) -> bool:
        """Whether another server has served the call. Its first message says where it belongs."""
        elsewhere = self._elsewhere
        if elsewhere is None:
            return False
        if first.descriptor is None:
            raise RemoteProtocolError(UNNAMED)
        table = written_table(bytes(first.descriptor), self._limits)
        if table is None or not await elsewhere.takes(table.name):
            return False
        note_table(table.name)
        needed = needed_to_put(table, is_known=elsewhere.knows(table.name))
        self.gate.check(table.name, *needed)
        await elsewhere.put(table, message, context)
        return True

    def _export_id(self, first: FlightFrame) -> int | None:
        if first.descriptor is None:
            return None
        return export_id_of_descriptor(Descriptor.decode(first.descriptor), self._limits)

    def begin_producing(self, upload: _Upload, place: tuple[SourceTable, str]) -> None:
        """``upload`` writes for a producer now; the call that did is told and ended."""
        before = self._producing.get(place)
        if before is not None and before.epoch > upload.epoch:
            upload.fence()
            return
        self._producing[place] = upload
        if before is not None:
            before.fence()
        if self._stopped_by is not None:
            upload.end(self._stopped_by)

    def begin_stop(self, reason: BarrageError) -> None:
        """The server stops: calls that write for a producer end with ``reason`` once the batches
        they have taken are answered. They stay open as long as their client lives, and what was
        not taken is sent again; other uploads have an end and are waited for."""
        self._stopped_by = reason
        for upload in list(self._producing.values()):
            upload.end(reason)
        if self._elsewhere is not None:
            self._elsewhere.begin_stop(reason)

    def end_producing(self, upload: _Upload, place: tuple[SourceTable, str]) -> None:
        """``upload`` has ended."""
        if self._producing.get(place) is upload:
            del self._producing[place]

    def has_room(self) -> bool:
        """Whether uploads may pass more to the engine."""
        return self.bytes_pending < self._limits.ingest_bytes_pending_max


class _Upload:
    """One call."""

    def __init__(
        self, calls: PutCalls, context: CallContext, tables: TableService, *, limits: Limits
    ) -> None:
        self._calls = calls
        self._context = context
        self._tables = tables
        self._limits = limits
        self._batches = UploadReader(limits)
        self._command: PutCommand | None = None
        self._target: SourceTable | None = None
        self._gathered: list[pa.RecordBatch] = []
        self._bytes_pending = 0
        self._uncommitted: deque[asyncio.Future[int]] = deque()
        self._answers: asyncio.Queue[_Portion | Exception | None] = asyncio.Queue(
            UNANSWERED_BATCHES_MAX
        )
        self._batch_count = 0
        self._sequence_next: int | None = None
        self._epoch: ProducerEpoch | None = None
        self._last: tuple[int, pa.RecordBatch] | None = None
        """Number and rows of the last batch, when its producer numbers them."""
        self._ended_by: BarrageError | None = None
        self._receiving: asyncio.Task[None] | None = None
        self._chain = WriteChain()
        self._telling: asyncio.Task[None] | None = None

    async def run(self, first: FlightFrame) -> None:
        """Serve the call from its first message on; an error is raised after every batch before it
        has been answered."""
        receiving = start_task(RECEIVER, self._receive(first), on_death=self._died)
        self._receiving = receiving
        try:
            await self._answer()
        finally:
            receiving.cancel()
            await asyncio.gather(receiving, return_exceptions=True)
            if self._epoch is not None:
                self._calls.end_producing(self, self._place())
            # The last one first: a batch must not be taken after one before it was called off.
            for future in reversed(self._uncommitted):
                future.cancel()

    @property
    def epoch(self) -> ProducerEpoch:
        """Under which the engine takes the batches."""
        assert self._epoch is not None
        return self._epoch

    def fence(self) -> None:
        """Another call writes for the producer now. This one ends once the batches before are
        answered; the engine takes none of it any more."""
        assert self._command is not None
        self.end(ProducerFencedError(self._command.producer or ""))

    def end(self, reason: BarrageError) -> None:
        """Take no more of a producer's batches; ``reason`` is told once those before are
        answered."""
        if self._ended_by is not None:
            return
        self._ended_by = reason
        if self._receiving is not None:
            self._receiving.cancel()

    # --- receiving ---

    def _died(self, error: BarrageError) -> None:
        # The batches before are answered first, and then there is room for this.
        self._telling = start_awaited(self._answers.put(error))

    async def _receive(self, first: FlightFrame) -> None:
        try:
            await self._receive_all(first)
        except asyncio.CancelledError:
            if self._ended_by is None:
                raise
            await self._answers.put(self._ended_by)

    async def _receive_all(self, first: FlightFrame) -> None:
        try:
            await self._take(first)
            while (message := await self._context.read()) is not END_OF_STREAM:
                await self._take(decode_flight_data(message, self._limits))
            await self._finish()
        except Exception as error:
            await self._answers.put(error)
        else:
            await self._answers.put(None)

    async def _take(self, frame: FlightFrame) -> None:
        if self._command is None and frame.descriptor is not None:
            self._command = PutCommand.parse(Descriptor.decode(frame.descriptor), self._limits)
        had_schema = self._batches.schema is not None
        found = await unpacked(self._batches, frame, self._wanted())
        if found is not None:
            await self._take_batch(found, frame.metadata)
        elif self._batches.schema is not None and not had_schema:
            await self._open(self._batches.schema)

    async def _open(self, schema: pa.Schema) -> None:
        """Find or make the table; the empty answer says that batches may come."""
        command = self._command
        if command is None:
            raise RemoteProtocolError(UNNAMED)
        note_table(command.table)
        if command.kind != "static":
            self._target = await self._find_or_create(command, schema)
        elif command.mode != "create":
            raise SchemaError("a static table is filled when it is created: use mode 'create'")
        elif command.producer is not None:
            raise SequenceError("a static table is made once and has no producers")
        else:
            self._calls.gate.check(command.table, Operation.CREATE)
        told: dict[str, int | None] = {"rows": 0}
        if command.producer is not None and self._target is not None:
            self._sequence_next = command.sequence
            begun = self._tables.begin_producer(self._target, command.producer, command.epoch)
            told["sequence"], epoch = await asyncio.wrap_future(begun)
            self._epoch, told["epoch"] = epoch, epoch.number
            self._calls.begin_producing(self, self._place())
        await self._context.write(encode_put_result(json.dumps(told).encode()))

    async def _find_or_create(self, command: PutCommand, schema: pa.Schema) -> SourceTable:
        if command.mode != "create":
            self._calls.gate.check(command.table, Operation.WRITE, Operation.CREATE)
            try:
                found = await asyncio.wrap_future(self._tables.look_up(command.table))
            except TableNotFoundError:
                if command.mode in ("replace", "delete"):
                    raise
            else:
                self._calls.gate.check(command.table, Operation.WRITE)
                _check_key(command, found.table.key_columns)
                return source_for_peers(found)
        if command.mode == "upsert" and not command.key:
            raise SchemaError(f"table {command.table!r} does not exist; creating it takes 'key'")
        self._calls.gate.check(command.table, Operation.CREATE)
        recipe = self._recipe(command, schema)
        try:
            created = await asyncio.wrap_future(self._tables.create(recipe, None))
        except TableExistsError:
            if command.mode == "create":
                raise
            return await self._find_or_create(command, schema)
        return source_for_peers(created)

    def _recipe(self, command: PutCommand, schema: pa.Schema) -> TableRecipe:
        return TableRecipe.checked(
            command.table,
            schema,
            key=command.key,
            kind=command.kind,
            capacity=command.capacity,
            journal=command.journal,
        )

    def _place(self) -> tuple[SourceTable, str]:
        assert self._target is not None
        assert self._command is not None
        return self._target, self._command.producer or ""

    def _position(self, metadata: bytes | None) -> ProducerPosition | None:
        """The batch's place in what its producer sends: the number it carries, or the next one."""
        assert self._command is not None
        producer = self._command.producer
        if producer is None:
            return None
        sequence = self._sequence_next
        if metadata:
            told = Fields.parse(metadata, "the metadata of a batch").value("sequence", sequence)
            sequence = None if told is None else check_sequence(told)
        if sequence is None:
            raise SequenceError(
                f"batch {self._batch_count} of producer {producer!r} has no number: "
                "give 'sequence' in the command or in the metadata of the batch"
            )
        self._sequence_next = sequence + 1
        return ProducerPosition(producer, sequence, self._epoch)

    async def _check_growing(self, position: ProducerPosition, found: Unpacked) -> None:
        """SequenceError for a number that this call has used for other rows, or passed: a producer
        sends again in a call of its own, so that is a mistake, and rows would be lost by it."""
        last, self._last = self._last, (position.sequence, found.batch)
        if last is None or position.sequence > last[0]:
            return
        equal = partial(found.batch.equals, last[1])
        if position.sequence < last[0] or not await aside(found.weight, equal):
            raise SequenceError(
                f"write {position.sequence} of producer {position.id!r} comes after {last[0]} "
                "with other rows: the numbers of a call must grow"
            )

    async def _take_batch(self, found: Unpacked, metadata: bytes | None) -> None:
        batch = found.batch
        self._batch_count += 1
        most = self._limits.ingest_bytes_pending_max
        found.check_expanded(f"batch {self._batch_count} in the types of its table", most)
        if self._target is None:
            self._gather(found)
            return
        position = self._position(metadata)
        self._check_whole(batch)
        if position is not None:
            await self._check_growing(position, found)
        while self._uncommitted and not self._has_room(found.table_bytes):
            await asyncio.wait([self._uncommitted[0]])
        try:
            fitting = partial(self._fitting, found, self._target)
            fitted, size = await aside(found.cast_weight, fitting)
        except (SchemaError, RowError) as error:
            raise self._located(error) from error
        self._count_pending(size)
        try:
            while fitted:
                share = size // len(fitted)
                rows = fitted.popleft()
                weight = weight_in(self._target, rows) * len(rows)
                taken = await self._tables.write_room.take(weight)
                portion = _Portion(
                    self._passed(rows, taken, position, size=share),
                    None if position is None else position.sequence,
                    batch_rows=batch.num_rows,
                    is_last=not fitted,
                )
                size -= share
                await self._answers.put(portion)
        finally:
            # What was not passed on is not answered for.
            self._count_pending(-size)

    def _passed(
        self, rows: pa.Table, taken: TakenRoom, position: ProducerPosition | None, *, size: int
    ) -> asyncio.Future[int]:
        """Pass rows to the engine; ``size`` bytes are counted for them."""
        assert self._target is not None
        change = Change(self._target, self._operation, (rows,))
        future = pass_on(self._tables, change, taken, chain=self._chain, position=position)
        self._uncommitted.append(future)
        future.add_done_callback(partial(self._settled, size))
        return future

    def _count_pending(self, size: int) -> None:
        self._bytes_pending += size
        self._calls.bytes_pending += size

    def _check_whole(self, batch: pa.RecordBatch) -> None:
        """LimitExceededError for one that is one step, and holds all others up too long."""
        assert self._target is not None
        weight = row_weight(batch, has_key=bool(self._target.key_columns))
        rows_max = self._limits.whole_batch_rows_max // weight
        if self._is_whole and batch.num_rows > rows_max:
            raise LimitExceededError(
                f"batch {self._batch_count}, which is one step (send several)",
                actual=batch.num_rows,
                maximum=rows_max,
                unit="rows",
            )

    @property
    def _is_numbered(self) -> bool:
        return self._command is not None and self._command.producer is not None

    @property
    def _is_whole(self) -> bool:
        """Whether the batch is one step."""
        return self._is_numbered or self._operation == "stage_replace"

    def _has_room(self, size: int) -> bool:
        return self._bytes_pending + size <= PENDING_BYTES_MAX and self._calls.has_room()

    def _settled(self, size: int, answer: asyncio.Future[int]) -> None:
        """The engine has answered some rows."""
        if not answer.cancelled():
            # Seen, even when nobody waits for it: the first refusal of a call ends it.
            answer.exception()
        self._count_pending(-size)
        with contextlib.suppress(ValueError):
            self._uncommitted.remove(answer)

    def _fitting(self, found: Unpacked, target: SourceTable) -> tuple[deque[pa.Table], int]:
        """The batch in the table's types, in the portions the engine takes; and its bytes there."""
        rows = self._coerced(pa.Table.from_batches([found.batch]), target)
        size = max(found.table_bytes, rows.nbytes)
        if self._is_whole:
            return deque([with_used_values(rows)]), size
        fitted = deque(portions(rows, weight_in(target, rows)))
        if len(fitted) > 1 and target.key_columns:
            check_keys_of(rows, target.key_columns, is_each_once=self._operation != "stage_remove")
        return fitted, size

    def _wanted(self) -> pa.Schema | None:
        """What batches are made to fit; None for the rows of a static table."""
        if self._target is None:
            return None
        assert self._command is not None
        return _key_schema(self._target) if self._command.mode == "delete" else self._target.schema

    def _coerced(self, rows: pa.Table, target: SourceTable) -> pa.Table:
        assert self._command is not None
        if self._command.mode != "delete":
            return coerce_rows(target.schema, rows)
        keys = _key_schema(target)
        return coerce_rows(keys, key_columns_of(rows, keys)) if len(keys) else rows

    @property
    def _operation(self) -> str:
        """The first batch of ``replace`` replaces, the following ones add to it; but each replaces
        when it is numbered, as it must mean the same wherever a call that was cut goes on."""
        assert self._command is not None
        assert self._target is not None
        mode = self._command.mode
        adds_more = mode == "replace" and self._batch_count > 1 and not self._is_numbered
        if mode in (None, "create") or adds_more:
            return "stage_upsert" if self._target.key_columns else "stage_add"
        return _OPERATIONS[mode]

    def _gather(self, found: Unpacked) -> None:
        """Keep the rows of a static table, which is made when all of them are here."""
        if self._batches.schema is None or self._command is None:
            raise RemoteProtocolError("an upload starts with its schema")
        self._bytes_pending += found.table_bytes
        if self._bytes_pending > self._limits.ingest_bytes_pending_max:
            raise RemoteProtocolError(
                f"a static upload may have {self._limits.ingest_bytes_pending_max} bytes; "
                "create an append_only table and append"
            )
        self._gathered.append(found.batch)

    async def _finish(self) -> None:
        command, schema = self._command, self._batches.schema
        if command is None or schema is None or command.kind != "static":
            return
        rows, recipe = pa.Table.from_batches(self._gathered, schema), self._recipe(command, schema)
        made = await in_turn(partial(self._tables.create, recipe, rows))
        await asyncio.wrap_future(made)
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        done.set_result(-1)
        await self._answers.put(_Portion(done, None, batch_rows=len(rows), is_last=True))

    # --- answering ---

    async def _answer(self) -> None:
        rows_committed = 0
        batch_number = 0
        while (answer := await self._answers.get()) is not None:
            if isinstance(answer, Exception):
                raise answer
            try:
                # Shielded: cancelling the call would call off this batch alone, and those after
                # it would make its resend look like a duplicate.
                step = await asyncio.shield(answer.committed)
            except (SchemaError, RowError) as error:
                raise self._located(error, batch_number + 1) from error
            if not answer.is_last:
                continue
            batch_number += 1
            rows_committed += answer.batch_rows
            told = {"rows": rows_committed, "step": step}
            if answer.sequence is not None:
                told["sequence"] = answer.sequence
            await self._context.write(encode_put_result(json.dumps(told).encode()))

    def _located(self, error: BarrageError, batch_number: int | None = None) -> BarrageError:
        """The error with the number of its batch; rows are counted inside the batch."""
        number = self._batch_count if batch_number is None else batch_number
        return RefusedBatchError(f"batch {number}: {error}")


class RefusedBatchError(RowError):
    """A batch did not fit its table; the text names batch, column and row."""


def _key_schema(target: SourceTable) -> pa.Schema:
    return pa.schema([target.schema.field(name) for name in target.key_columns])


def _check_key(command: PutCommand, key_columns: tuple[str, ...]) -> None:
    if command.key and tuple(command.key) != tuple(key_columns):
        has = f"the key {', '.join(key_columns)}" if key_columns else "no key"
        raise SchemaError(f"table {command.table!r} has {has}, not {', '.join(command.key)}")
