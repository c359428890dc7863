"""The engine thread's side of all exchanges: carries out what streams ask of it.

Everything here runs on the engine thread, between cycles, except :class:`DispatcherPort`, by which
the messages come. What is answered and when is in :mod:`barrage.server.exchange.exchange_messages`;
the methods stand in the order of its sequences.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, cast
from weakref import WeakKeyDictionary

from barrage.engine.changelog.subscription import SubscriptionSpec
from barrage.engine.propagation.intervals import EACH_STEP_NS
from barrage.errors import (
    BarrageError,
    ConnectionLostError,
    LocalProtocolError,
    RemoteProtocolError,
    ResumeRefusedError,
)
from barrage.limits import NANOS_PER_MS
from barrage.proto.resumption import EPOCH_HEADER, RESUMED_HEADER, Outcome
from barrage.server.bodies.body_frames import loosener
from barrage.server.exchange.exchange_messages import (
    ChangeViewport,
    EncodedUpdate,
    ForgetSnapshot,
    GiveUpPlan,
    Hold,
    PlanBuilt,
    PlanResume,
    ReadSnapshot,
    Refused,
    Release,
    RenewHold,
    ResumePlanned,
    SnapshotBegun,
    StreamEnded,
    Subscribe,
    Subscribed,
    SubscribeTogether,
    Unsubscribe,
)
from barrage.server.exchange.resume_planner import (
    OTHER_TABLE,
    ResumePlanner,
    Resumption,
    unforeseen,
)
from barrage.server.exchange.subscription_registry import SubscriptionRegistry
from barrage.server.presentation.presentation import lease_of, shown_schema, shown_table
from barrage.server.runtime.failure import unexpected_failure, without_frames
from barrage.server.runtime.snapshot_work import SnapshotWork
from barrage.supervision import contained
from barrage.wire.updates.update_codec import UpdateEncoder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from concurrent.futures import Future

    import pyarrow as pa

    from barrage.clock import Clock
    from barrage.engine.propagation.producer import Producer
    from barrage.engine.tables.table import Table
    from barrage.limits import Limits
    from barrage.server.bodies.body_frames import Frame
    from barrage.server.bodies.body_service import BodyService
    from barrage.server.exchange.exchange_messages import Answer, EngineNotice, EngineRequest
    from barrage.server.journaling.journal_service import JournalService
    from barrage.server.presentation.deephaven_types import SessionTypes
    from barrage.server.runtime.runtime import EngineRuntime
    from barrage.server.tables.table_lease import TableLease, TableSource
    from barrage.wire.dissociated.ways import BodyWay
    from barrage.wire.updates.update_codec import EncodeOptions

log = logging.getLogger(__name__)

_EncoderKey: TypeAlias = "tuple[EncodeOptions, BodyWay, bool, bool]"

BULK_FACTOR = 3
"""How much larger messages of a DoGet are than those of subscriptions."""

BULK_COPIED_BYTES_MAX = 64 * 1024
"""Bodies of a DoGet up to this are copied into their messages; larger ones by the socket alone."""

ENCODERS_REMEMBERED = 64
"""Encoders kept per table; clients choose the options, so their number is bounded."""


class SubscriptionDispatcher:
    """Takes messages from the loop, one method for each kind: a request's returns the answer."""

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
        self._runtime = runtime
        self._limits = limits
        self._clock = clock
        self._streams = SubscriptionRegistry(runtime)
        self._snapshots: dict[int, SnapshotWork] = {}
        self._encoders: WeakKeyDictionary[Table, dict[_EncoderKey, UpdateEncoder[Frame]]] = (
            WeakKeyDictionary()
        )
        self.planner = ResumePlanner(runtime, journals, limits, on_built=self._plan_built)
        self._planned: dict[int, Table] = {}
        """By the number of a plan, the table it is made for."""
        self.handlers: Mapping[type[Any], Callable[[Any], Any]] = {
            Subscribe: self.subscribe,
            ChangeViewport: self.change_viewport,
            PlanResume: self.plan_resume,
            SubscribeTogether: self.subscribe_together,
            GiveUpPlan: self.give_up_plan,
            Unsubscribe: self.unsubscribe,
            Hold: self.hold,
            Release: self.release,
            RenewHold: self.renew_hold,
            ReadSnapshot: self.read_snapshot,
            ForgetSnapshot: self.forget_snapshot,
        }

    # --- subscribe ---

    def subscribe(
        self,
        asked: Subscribe,
        resumption: Resumption | None = None,
        planned: Table | None = None,
    ) -> Subscribed | Refused:
        """Start a subscription: the schema goes to the stream in this turn, before the first
        update. ``planned`` is the table that the resumption was planned for."""
        stream_id = asked.stream_id
        try:
            headers = contained(self._subscribe, asked, resumption, planned)
        except BarrageError as error:
            return Refused(stream_id=stream_id, error=without_frames(error))
        except Exception:
            failure = unexpected_failure(log, "a subscription could not be begun")
            return Refused(stream_id=stream_id, error=failure)
        return Subscribed(stream_id=stream_id, headers=headers)

    def _subscribe(
        self, asked: Subscribe, resumption: Resumption | None, planned: Table | None
    ) -> tuple[tuple[str, str], ...]:
        table, encoder, spec = self._wanted(asked)
        if planned is not None:
            self._check_same(asked, planned, table)
        schema = EncodedUpdate.of((asked.stream_id,), (encoder.schema_frame(),))
        try:
            outcome = self._add(asked, table, spec, resumption=resumption)
        except BaseException:
            self._runtime.producer_shrank(table)
            raise
        self._streams.add(asked.stream_id, table)
        self._runtime.emit([schema])
        epoch = self.planner.epoch_of(table)
        headers = () if epoch is None else ((EPOCH_HEADER, epoch),)
        return headers if outcome is None else (*headers, (RESUMED_HEADER, outcome.header()))

    def _add(
        self,
        asked: Subscribe,
        table: Table,
        spec: SubscriptionSpec,
        *,
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
                producer.add(asked.stream_id, spec, now_ns, resume=plan)
                return outcome
            except ResumeRefusedError as error:
                outcome = Outcome.resnapshot(str(error))
        producer.add(asked.stream_id, spec, now_ns, token=asked.token)
        return outcome

    def _check_same(self, asked: Subscribe, planned: Table, table: Table) -> None:
        """ConnectionLostError when the table a plan was made for has failed meanwhile and another
        one goes on with its history: who comes again is resumed there."""
        assert asked.resume is not None
        is_replaced = planned is not table and planned.failure is not None
        if is_replaced and self.planner.epoch_of(table) == asked.resume.cursor.epoch:
            raise ConnectionLostError("the table was replaced while it was resumed; try again")

    def _wanted(self, asked: Subscribe) -> tuple[Table, UpdateEncoder[Frame], SubscriptionSpec]:
        """The table of a subscription, its encoder, and what of it is told. Errors of the table's
        name and of the request."""
        table, encoder = self._shown(asked.source, asked.types, asked.options, way=asked.way)
        wanted, options = asked.wanted, asked.options
        spec = SubscriptionSpec(
            columns=wanted.columns,
            viewport=wanted.viewport,
            interval_ns=EACH_STEP_NS
            if asked.wants_each_step
            else self._interval_ns(wanted.options.min_update_interval_ms),
            is_key_space=wanted.viewport is None or not options.revision.has_view_positions,
            encoding=encoder,
            is_reverse_echo=wanted.is_reverse,
            is_last_column_covering=options.columns_as_list,
        )
        return table, encoder, spec

    # --- change of viewport ---

    def change_viewport(self, asked: ChangeViewport) -> None:
        """Apply a change; one that is refused ends the stream."""
        now_ns = self._clock.monotonic_ns()

        def change(producer: Producer) -> None:
            producer.change(
                asked.stream_id, asked.columns, asked.viewport, now_ns=now_ns, token=asked.token
            )

        self._act(asked.stream_id, change)

    def _act(self, stream_id: int, act: Callable[[Producer], None]) -> None:
        """Do something about one subscription, if there is one. Whatever is wrong with it ends its
        stream, which would otherwise wait for ever, and no other."""
        producer = self._streams.producer_of(stream_id)
        if producer is None:
            return
        try:
            contained(act, producer)
        except BarrageError as error:
            self._fail(stream_id, error)
        except Exception:
            self._fail(stream_id, unexpected_failure(log, "a subscription could not be changed"))

    def _fail(self, stream_id: int, error: BarrageError) -> None:
        self._runtime.emit([StreamEnded(stream_id=stream_id, error=error)])
        try:
            self._streams.remove(stream_id)
        except Exception:
            unexpected_failure(log, "a subscription that has failed could not be removed")

    # --- resume ---

    def plan_resume(self, asked: PlanResume) -> ResumePlanned:
        """Begin a plan. What is wrong with the plan is told to each when it is subscribed: then it
        begins with a snapshot."""
        plan_id, subscribe = asked.plan_id, asked.subscribe
        assert subscribe.resume is not None
        try:
            table, _, spec = contained(self._wanted, subscribe)
        except BarrageError as error:
            refused = Refused(stream_id=subscribe.stream_id, error=without_frames(error))
            return ResumePlanned(plan_id=plan_id, is_building=False, refused=refused)
        if asked.is_patient and self.planner.is_ahead(table, subscribe.resume.cursor):
            return ResumePlanned(plan_id=plan_id, is_building=False, awaits_from=table.present_step)
        try:
            found = contained(self.planner.survey, table, subscribe.resume, spec)
        except BarrageError as error:
            found = Resumption.refused(str(error))
        except Exception:
            found = unforeseen()
        self._planned[plan_id] = table
        is_building = self.planner.begin(plan_id, found)
        return ResumePlanned(plan_id=plan_id, is_building=is_building)

    def _plan_built(self, plan_id: int) -> None:
        self._runtime.emit([PlanBuilt(plan_id=plan_id)])

    def subscribe_together(self, asked: SubscribeTogether) -> tuple[Subscribed | Refused, ...]:
        """Subscribe everybody who waited for a plan."""
        resumption = self.planner.finish(asked.plan_id)
        planned = self._planned.pop(asked.plan_id, None)
        return tuple(self.subscribe(each, resumption, planned) for each in asked.subscribes)

    def give_up_plan(self, asked: GiveUpPlan) -> None:
        """Forget a plan, if it is not finished."""
        self.planner.give_up(asked.plan_id)
        self._planned.pop(asked.plan_id, None)

    # --- cancel ---

    def unsubscribe(self, asked: Unsubscribe) -> None:
        """Forget the stream, and its subscription if it has one."""
        self._streams.remove(asked.stream_id)

    # --- flow control ---

    def hold(self, asked: Hold) -> None:
        """Send nothing more to these."""
        now_ns = self._clock.monotonic_ns()
        for stream_id in asked.stream_ids:
            self._act(stream_id, partial(_hold, stream_id, now_ns))

    def release(self, asked: Release) -> None:
        """Send to these again."""
        for stream_id in asked.stream_ids:
            self._act(stream_id, partial(_release, stream_id))

    def renew_hold(self, asked: RenewHold) -> None:
        """A held subscriber has taken something: its stall clock starts anew."""
        stream_ids = (asked.stream_id,)
        self.release(Release(stream_ids=stream_ids))
        self.hold(Hold(stream_ids=stream_ids))

    # --- snapshot ---

    def read_snapshot(self, asked: ReadSnapshot) -> SnapshotBegun:
        """Begin a snapshot: the table as it is now, to be read by :meth:`SnapshotWork.read`, here
        where that is little work."""
        table, encoder = self._shown(asked.source, asked.types, asked.options, way=asked.way)
        work = SnapshotWork(
            columns=asked.columns,
            viewport=asked.viewport,
            is_reverse=asked.is_reverse,
            step=table.present_step,
            is_parted=asked.is_parted,
        ).begun(table, self._limits)
        self._snapshots[asked.snapshot_id] = work
        return SnapshotBegun(
            snapshot_id=asked.snapshot_id,
            encoder=encoder,
            work=work,
            epoch=self.planner.epoch_of(table),
        )

    def forget_snapshot(self, asked: ForgetSnapshot) -> None:
        """Free what the snapshot was read from."""
        work = self._snapshots.pop(asked.snapshot_id, None)
        if work is not None:
            work.end()

    # --- how tables are shown ---

    def _shown(
        self,
        source: TableSource,
        types: SessionTypes | None,
        options: EncodeOptions,
        *,
        way: BodyWay,
    ) -> tuple[Table, UpdateEncoder[Frame]]:
        """A table as it is shown to a caller, and its encoder: one object for equal options, equal
        ways of bodies and equal schemas, so that its identity says whether two subscribers get
        equal frames."""
        lease = lease_of(source)
        view = shown_table(lease, types)
        known = self._encoders.setdefault(view, {})
        key = _encoder_key(lease, types, options, way=way)
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
        if options.is_bulk:
            target = self._limits.message_bytes_target * BULK_FACTOR
            limits = replace(self._limits, message_bytes_target=target)
            return UpdateEncoder(schema, options, limits, detach=loosener(BULK_COPIED_BYTES_MAX))
        if self._bodies is None:
            return UpdateEncoder(schema, options, self._limits)
        encoding = self._bodies.encoding(way)
        return UpdateEncoder(schema, options, encoding.limits, detach=encoding.detach)

    def _interval_ns(self, interval_ms: int) -> int:
        if interval_ms < 0:
            raise RemoteProtocolError(
                f"min_update_interval_ms is {interval_ms}, it must be 0 or more"
            )
        if interval_ms == 0:
            return self._limits.interval_ns_default
        return max(interval_ms * NANOS_PER_MS, self._limits.interval_ns_min)


class DispatcherPort:
    """The way of messages to a dispatcher
    (:class:`barrage.server.exchange.exchange_messages.EnginePort`). Any thread."""

    def __init__(self, runtime: EngineRuntime, dispatcher: SubscriptionDispatcher) -> None:
        self._runtime = runtime
        self._handlers = dispatcher.handlers
        self.close = dispatcher.planner.close

    def ask(self, request: EngineRequest[Answer]) -> Future[Answer]:
        """Have a request answered between two cycles."""
        answered = self._runtime.submit(partial(self._handlers[type(request)], request))
        return cast("Future[Answer]", answered)

    def tell(self, notice: EngineNotice) -> None:
        """Have a notice take effect between two cycles."""
        handle = partial(self._handlers[type(notice)], notice)
        if isinstance(notice, ChangeViewport):
            self._runtime.post_latest(notice.stream_id, handle)
        else:
            self._runtime.post(handle)

    def events_taken(self) -> None:
        """One hand-over of events has been taken."""
        self._runtime.handover_taken()


def _hold(stream_id: int, now_ns: int, producer: Producer) -> None:
    with suppress(LocalProtocolError):  # A disconnect has crossed this.
        producer.hold(stream_id, now_ns)


def _release(stream_id: int, producer: Producer) -> None:
    with suppress(LocalProtocolError):  # A disconnect has crossed this.
        producer.release(stream_id)


def _encoder_key(
    lease: TableLease, types: SessionTypes | None, options: EncodeOptions, *, way: BodyWay
) -> _EncoderKey:
    """What the frames of one view depend on: a session's schema has more metadata, and that of an
    input table more still."""
    is_session = types is not None
    return options, way, is_session, is_session and lease.input_target is not None
