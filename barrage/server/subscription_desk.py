"""The engine thread's side of all exchanges: subscribe, change, hold, release, snapshot.

Everything here runs on the engine thread, between cycles.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeAlias
from weakref import WeakKeyDictionary

from barrage.engine.subscription import SubscriptionSpec
from barrage.errors import (
    BarrageError,
    LocalProtocolError,
    RemoteProtocolError,
    ResumeRefusedError,
)
from barrage.limits import NANOS_PER_MS
from barrage.proto.resumption import EPOCH_HEADER, RESUMED_HEADER, Outcome
from barrage.server.delivery import EncodedUpdate, StreamEnded
from barrage.server.failure import unexpected_failure
from barrage.server.presentation import lease_of, shown_schema, shown_table
from barrage.server.resume_desk import OTHER_TABLE, ResumeDesk, Resumption
from barrage.supervision import contained
from barrage.wire.update_codec import UpdateEncoder

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    import pyarrow as pa

    from barrage.clock import Clock
    from barrage.engine.producer import Producer
    from barrage.engine.table import Table
    from barrage.limits import Limits
    from barrage.proto.events import SubscriptionRequested
    from barrage.server.body_frames import Frame
    from barrage.server.body_service import BodyService
    from barrage.server.deephaven.types import SessionTypes
    from barrage.server.exchange_stream import ExchangeStream, Headers
    from barrage.server.journal_service import JournalService
    from barrage.server.resume_desk import ResumeWork
    from barrage.server.runtime import EngineRuntime
    from barrage.server.snapshot_work import SnapshotWork
    from barrage.server.table_lease import TableLease, TableSource
    from barrage.wire.dissociated.ways import BodyWay
    from barrage.wire.update_codec import EncodeOptions

log = logging.getLogger(__name__)

_EncoderKey: TypeAlias = "tuple[EncodeOptions, BodyWay, bool, bool]"

ENCODERS_REMEMBERED = 64
"""Encoders kept per table; clients choose the options, so their number is bounded."""


@dataclass(frozen=True, slots=True)
class Applicant:
    """A stream that asked to be subscribed from a cursor."""

    stream: ExchangeStream
    source: TableSource
    event: SubscriptionRequested
    options: EncodeOptions
    answer: asyncio.Future[Headers]


class SubscriptionDesk:
    """Carries out what streams ask of the engine. Every method runs on the engine thread."""

    def __init__(
        self,
        runtime: EngineRuntime,
        journals: JournalService,
        *,
        limits: Limits,
        clock: Clock,
        bodies: BodyService | None = None,
    ) -> None:
        self._bodies = bodies
        self.resume = ResumeDesk(runtime, journals, limits)
        self._runtime = runtime
        self._limits = limits
        self._clock = clock
        self._encoders: WeakKeyDictionary[Table, dict[_EncoderKey, UpdateEncoder[Frame]]] = (
            WeakKeyDictionary()
        )

    def subscribe(
        self,
        stream: ExchangeStream,
        source: TableSource,
        event: SubscriptionRequested,
        options: EncodeOptions,
        resumption: Resumption | None = None,
    ) -> Headers:
        """Start a subscription: the schema goes to the stream in this turn, before the first
        update. Returns the headers of the answer."""
        table, encoder = self._shown(source, stream.types, options, stream.way)
        spec = self._spec(stream, event, options, encoder)
        schema = EncodedUpdate((stream.stream_id,), (encoder.schema_frame(),))
        try:
            outcome = self._add(stream, table, spec, resumption)
        except BarrageError:
            self._runtime.producer_shrank(table)
            raise
        stream.table = table
        self._runtime.emit([schema])
        epoch = self.resume.epoch_of(table)
        headers = () if epoch is None else ((EPOCH_HEADER, epoch),)
        return headers if outcome is None else (*headers, (RESUMED_HEADER, outcome.header()))

    def _add(
        self,
        stream: ExchangeStream,
        table: Table,
        spec: SubscriptionSpec,
        resumption: Resumption | None,
    ) -> Outcome | None:
        """Give the producer its new subscription; what became of the wish to resume."""
        producer, now_ns = self._runtime.producer(table), self._clock.monotonic_ns()
        plan = None if resumption is None else resumption.plan
        outcome = None if resumption is None else resumption.outcome
        if plan is not None:
            try:
                if plan.table is not table:
                    raise ResumeRefusedError(OTHER_TABLE)
                producer.add(stream.stream_id, spec, now_ns, resume=plan)
                return outcome
            except ResumeRefusedError as error:
                outcome = Outcome.resnapshot(str(error))
        producer.add(stream.stream_id, spec, now_ns)
        return outcome

    def survey(self, applicant: Applicant) -> ResumeWork | Resumption:
        """Whether an applicant's cursor can be resumed. Errors are those of a subscription."""
        stream, event, options = applicant.stream, applicant.event, applicant.options
        assert stream.resume is not None
        table, encoder = self._shown(applicant.source, stream.types, options, stream.way)
        spec = self._spec(stream, event, options, encoder)
        return self.resume.survey(table, stream.resume, spec)

    def subscribe_all(
        self, found: ResumeWork | Resumption, applicants: Sequence[Applicant]
    ) -> list[Headers | BarrageError]:
        """Subscribe everybody who waited for a plan, in one turn; the answer to each."""
        resumption = found if isinstance(found, Resumption) else self.resume.finish(found)
        answers: list[Headers | BarrageError] = []
        for each in applicants:
            try:
                answers.append(
                    self.subscribe(each.stream, each.source, each.event, each.options, resumption)
                )
            except BarrageError as error:
                answers.append(error)
        return answers

    def _spec(
        self,
        stream: ExchangeStream,
        event: SubscriptionRequested,
        options: EncodeOptions,
        encoder: UpdateEncoder[Frame],
    ) -> SubscriptionSpec:
        return SubscriptionSpec(
            columns=event.columns,
            viewport=event.viewport,
            interval_ns=self._interval_ns(event.options.min_update_interval_ms),
            is_key_space=event.viewport is None or not stream.revision.has_view_positions,
            encoding=encoder,
            is_reverse_echo=event.is_reverse,
            is_last_column_covering=options.columns_as_list,
        )

    def change(self, stream: ExchangeStream) -> None:
        """Apply the latest change the stream's client wants; one that is refused ends the
        stream."""
        event = stream.take_wanted()
        if event is None:
            return
        now_ns = self._clock.monotonic_ns()
        self._act(
            stream,
            lambda producer: producer.change(
                stream.stream_id, event.columns, event.viewport, now_ns
            ),
        )

    def _act(self, stream: ExchangeStream, act: Callable[[Producer], None]) -> None:
        """Do something about one subscription, if there is one. Whatever is wrong with it ends its
        stream, which would otherwise wait for ever, and no other."""
        producer = self._producer_of(stream)
        if producer is None:
            return
        try:
            contained(act, producer)
        except BarrageError as error:
            self._fail(stream, error)
        except Exception:
            self._fail(stream, unexpected_failure(log, "a subscription could not be changed"))

    def _fail(self, stream: ExchangeStream, error: BarrageError) -> None:
        self._runtime.emit([StreamEnded(stream.stream_id, error)])
        try:
            self.unsubscribe(stream)
        except Exception:
            unexpected_failure(log, "a subscription that has failed could not be removed")

    def unsubscribe(self, stream: ExchangeStream) -> None:
        """Forget the stream's subscription, if it has one."""
        producer, table = self._producer_of(stream), stream.table
        stream.table = None
        if producer is not None and table is not None:
            producer.remove(stream.stream_id)
            self._runtime.producer_shrank(table)

    def hold(self, streams: Sequence[ExchangeStream]) -> None:
        """Send nothing more to these."""
        now_ns = self._clock.monotonic_ns()
        for stream in streams:
            self._act(stream, partial(_hold, stream.stream_id, now_ns))

    def release(self, streams: Sequence[ExchangeStream]) -> None:
        """Send to these again."""
        for stream in streams:
            self._act(stream, partial(_release, stream.stream_id))

    def renew(self, stream: ExchangeStream) -> None:
        """A held subscriber has taken something: its stall clock starts anew."""
        self.release([stream])
        self.hold([stream])

    def snapshot(
        self,
        source: TableSource,
        types: SessionTypes | None,
        options: EncodeOptions,
        way: BodyWay,
        work: SnapshotWork,
    ) -> UpdateEncoder[Frame]:
        """Begin a snapshot: the table as it is now, to be read by :meth:`SnapshotWork.read`, here
        where that is little work. Returns the encoder for its messages."""
        table, encoder = self._shown(source, types, options, way)
        work.begin(table, self._runtime.graph.step, self._limits)
        return encoder

    def _shown(
        self,
        source: TableSource,
        types: SessionTypes | None,
        options: EncodeOptions,
        way: BodyWay,
    ) -> tuple[Table, UpdateEncoder[Frame]]:
        """A table as it is shown to a caller, and its encoder: one object for equal options, equal
        ways of bodies and equal schemas, so that its identity says whether two subscribers get
        equal frames."""
        lease = lease_of(source)
        view = shown_table(lease, types)
        known = self._encoders.setdefault(view, {})
        key = _encoder_key(lease, types, options, way)
        encoder = known.get(key)
        if encoder is None:
            if len(known) >= ENCODERS_REMEMBERED:
                known.clear()
            schema = shown_schema(lease, view, types)
            encoder = known[key] = self._new_encoder(schema, options, way)
        return view, encoder

    def _new_encoder(
        self, schema: pa.Schema, options: EncodeOptions, way: BodyWay
    ) -> UpdateEncoder[Frame]:
        if self._bodies is None:
            return UpdateEncoder(schema, options, self._limits)
        encoding = self._bodies.encoding(way)
        return UpdateEncoder(schema, options, encoding.limits, detach=encoding.detach)

    def _producer_of(self, stream: ExchangeStream) -> Producer | None:
        return None if stream.table is None else self._runtime.existing_producer(stream.table)

    def _interval_ns(self, interval_ms: int) -> int:
        if interval_ms < 0:
            raise RemoteProtocolError(
                f"min_update_interval_ms is {interval_ms}, it must be 0 or more"
            )
        if interval_ms == 0:
            return self._limits.interval_ns_default
        return max(interval_ms * NANOS_PER_MS, self._limits.interval_ns_min)


def _hold(stream_id: int, now_ns: int, producer: Producer) -> None:
    with suppress(LocalProtocolError):  # A disconnect has crossed this.
        producer.hold(stream_id, now_ns)


def _release(stream_id: int, producer: Producer) -> None:
    with suppress(LocalProtocolError):  # A disconnect has crossed this.
        producer.release(stream_id)


def _encoder_key(
    lease: TableLease, types: SessionTypes | None, options: EncodeOptions, way: BodyWay
) -> _EncoderKey:
    """What the frames of one view depend on: a session's schema has more metadata, and that of an
    input table more still."""
    is_session = types is not None
    return options, way, is_session, is_session and lease.input_target is not None
