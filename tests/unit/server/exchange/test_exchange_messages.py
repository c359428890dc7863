"""What the two sides of an exchange tell each other are values, and the engine's side does its work
by them alone: no event loop, no thread."""

from __future__ import annotations

import dataclasses
import inspect
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from enum import Enum
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import barrage
from barrage.engine import AppendOnlyTable
from barrage.errors import BarrageError, RemoteProtocolError
from barrage.limits import NANOS_PER_MS, Limits
from barrage.model.cursor import Cursor
from barrage.model.viewport import Viewport
from barrage.proto.events import SubscriptionRequested
from barrage.proto.resumption import RESUMED_HEADER, ResumeMode, ResumeRequest
from barrage.rowset import RowSet, RowSetShiftData
from barrage.server.exchange import exchange_messages
from barrage.server.exchange.delivery import EventOutlet
from barrage.server.exchange.exchange_messages import (
    ChangeViewport,
    EncodedUpdate,
    ForgetSnapshot,
    GiveUpPlan,
    Hold,
    PlannedUpdate,
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
from barrage.server.exchange.exchange_stream import ExchangeStream
from barrage.server.exchange.resume_planner import ResumePlanner, ResumeWork
from barrage.server.exchange.stream_table import StreamTable
from barrage.server.exchange.subscription_dispatcher import SubscriptionDispatcher
from barrage.server.exchange.subscription_registry import SubscriptionRegistry
from barrage.server.runtime.runtime import EngineRuntime
from barrage.server.runtime.snapshot_work import SnapshotWork
from barrage.server.settings.config import ServerConfig
from barrage.server.tables.table_lease import TableLease
from barrage.wire.dissociated.ways import BodyWay
from barrage.wire.messages import SubscriptionOptions
from barrage.wire.updates.update_codec import EncodeOptions, UpdateEncoder
from tests.helpers.server_process import wait_until
from tests.helpers.virtual_clock import VirtualClock

HANG_SECONDS = 180
SCHEMA = pa.schema([("x", pa.int64())])

MESSAGES = [
    each
    for each in vars(exchange_messages).values()
    if inspect.isclass(each) and dataclasses.is_dataclass(each)
]


# --- values ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("message", MESSAGES, ids=lambda each: each.__name__)
def test_a_message_is_frozen_and_says_what_it_is_about(message):
    assert message.__dataclass_params__.frozen
    assert "__slots__" in vars(message)
    assert "__dict__" not in dir(message), "a base class without slots gives it a dictionary"
    first = dataclasses.fields(message)[0].name
    assert first in ("stream_id", "stream_ids", "plan_id", "snapshot_id")


def test_a_message_cannot_be_changed():
    message = Hold(stream_ids=(1, 2))
    with pytest.raises(dataclasses.FrozenInstanceError):
        message.stream_ids = (3,)


PLAIN = (int, str, bytes, type(None), Enum)
IMMUTABLE = (RowSet, RowSetShiftData, pa.Array, pa.ChunkedArray, pa.Schema)
"""What has no parts that anybody writes once it is made."""

KEPT_APART = {
    TableLease: "nobody reads its list but the engine thread, which empties it",
    UpdateEncoder: "keeps nothing between two updates",
    BarrageError: "is raised by the side that gets it, and not looked at again by the other",
}

EMPTIED = {(SnapshotWork, "pinned"): "what is read beside the engine thread is freed on it"}


def mutable_parts(value: Any, path: str = "message") -> Iterator[str]:
    """Where anything stands in a message that either side could write to."""
    if isinstance(value, (*PLAIN, *IMMUTABLE, *KEPT_APART)):
        return
    if isinstance(value, tuple):
        for number, each in enumerate(value):
            yield from mutable_parts(each, f"{path}[{number}]")
    elif dataclasses.is_dataclass(value) and type(value).__dataclass_params__.frozen:
        for field in dataclasses.fields(value):
            if (type(value), field.name) not in EMPTIED:
                yield from mutable_parts(getattr(value, field.name), f"{path}.{field.name}")
    else:
        yield f"{path}: {type(value).__name__}"


@pytest.mark.parametrize("part", [[1], {1: 2}, {1}, bytearray(b"x"), SimpleNamespace(), object()])
def test_what_could_be_written_is_found(part):
    [found] = mutable_parts(Hold(stream_ids=(1, (part,))))
    assert found == f"message.stream_ids[1][0]: {type(part).__name__}"


# --- the engine's side, by messages alone ---------------------------------------------------------


class Engine:
    """A dispatcher with its runtime, whose turns are the test's own. It keeps all that is said."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.runtime = EngineRuntime(limits=Limits(), clock=self.clock)
        journals: Any = SimpleNamespace(journal_of=lambda _: None)
        self.dispatcher = SubscriptionDispatcher(
            self.runtime, journals, limits=Limits(), clock=self.clock
        )
        self.runtime.attach(EventOutlet(self.take))
        self.table = AppendOnlyTable(self.runtime.graph, SCHEMA)
        self.said: list[Any] = []
        self.events: list[Any] = []

    def take(self, events: Any) -> None:
        self.events += events
        self.runtime.handover_taken()

    def tell(self, message: Any) -> Any:
        answer = self.dispatcher.handlers[type(message)](message)
        self.said += [message, answer]
        return answer

    def turn(self, *rows: int) -> list[Any]:
        """Add rows, run a cycle and propagate; what is handed over."""
        self.runtime._execute_waiting()
        if rows:
            self.table.stage_add(pa.table({"x": rows}, SCHEMA))
        self.clock.advance(100 * NANOS_PER_MS)
        self.runtime.flush()
        events, self.events = self.events, []
        self.said += events
        return events

    @property
    def producer(self) -> Any:
        return self.runtime.existing_producer(self.table)

    def subscription(self, stream_id: int, **asked: Any) -> Subscribe:
        tables: Any = SimpleNamespace(forget=list.clear)
        viewport, interval_ms = asked.pop("viewport", None), asked.pop("interval_ms", 10)
        return Subscribe(
            stream_id=stream_id,
            source=TableLease(tables, self.table),
            wanted=SubscriptionRequested(
                ticket=b"s/t",
                columns=None,
                viewport=viewport,
                is_reverse=False,
                options=SubscriptionOptions(min_update_interval_ms=interval_ms),
                token=None,
            ),
            options=EncodeOptions(),
            types=None,
            way=BodyWay.INLINE,
            **asked,
        )


@pytest.fixture
def engine() -> Iterator[Engine]:
    before = set(threading.enumerate())
    made = Engine()
    yield made
    begun = {thread.name for thread in set(threading.enumerate()) - before}
    ours = ("barrage-engine", "barrage-makings", "barrage-queries")
    assert not {name for name in begun if name.startswith(ours)}
    found = [part for message in made.said for part in mutable_parts(message, repr(type(message)))]
    assert not found
    made.dispatcher.planner.close()
    made.runtime.stop()


def told(events: list[Any]) -> list[tuple[str, tuple[int, ...]]]:
    """Kinds and streams of events."""
    return [
        (type(each).__name__, getattr(each, "stream_ids", None) or (each.stream_id,))
        for each in events
    ]


def test_subscribe(engine):
    engine.turn(1, 2)
    assert engine.tell(engine.subscription(1)) == Subscribed(stream_id=1, headers=())
    assert engine.tell(engine.subscription(2)) == Subscribed(stream_id=2, headers=())
    schemas, snapshot = engine.turn()[:2], engine.turn()
    assert told(schemas) == [("EncodedUpdate", (1,)), ("EncodedUpdate", (2,))]
    assert snapshot == []
    [update] = engine.turn(3)
    assert isinstance(update, EncodedUpdate)
    assert sorted(update.stream_ids) == [1, 2], "encoded once for both"
    assert update.byte_count == sum(map(len, update.frames))


def test_a_subscription_that_cannot_be_is_refused_and_leaves_nothing(engine):
    refused = engine.tell(engine.subscription(1, interval_ms=-1))
    assert isinstance(refused, Refused)
    assert isinstance(refused.error, RemoteProtocolError)
    assert refused.error.__traceback__ is None, "its frames would keep tables"
    assert engine.producer is None
    assert len(engine.dispatcher._streams) == 0
    assert engine.turn(1) == []


def test_a_large_update_is_planned(engine):
    engine.dispatcher._limits = Limits(message_bytes_target=100)
    engine.tell(engine.subscription(1))
    engine.turn()
    [update] = engine.turn(*range(1000))
    assert isinstance(update, PlannedUpdate)
    assert update.first is not None
    assert update.stream_ids == (1,)


def test_change_of_viewport(engine):
    engine.turn(*range(10))
    engine.tell(engine.subscription(1, viewport=Viewport.of(0, 3)))
    assert told(engine.turn()) == [("EncodedUpdate", (1,))] * 2
    assert engine.turn() == []
    engine.tell(ChangeViewport(stream_id=1, columns=None, viewport=Viewport.of(5, 8)))
    assert told(engine.turn()) == [("EncodedUpdate", (1,))]


def test_a_change_that_is_refused_ends_its_stream_and_no_other(engine):
    for stream_id in (1, 2):
        engine.tell(engine.subscription(stream_id))
    engine.turn(1)
    engine.tell(ChangeViewport(stream_id=1, columns=None, viewport=Viewport.of(5, 8)))
    [ended] = engine.turn()
    assert isinstance(ended, StreamEnded)
    assert (ended.stream_id, type(ended.error)) == (1, RemoteProtocolError)
    assert told(engine.turn(2)) == [("EncodedUpdate", (2,))]


def test_a_cursor_without_a_history_begins_with_a_snapshot(engine):
    engine.turn(1, 2)
    cursor = ResumeRequest(Cursor("0123456789abcdef", 1), ResumeMode.COALESCED)
    asked = tuple(engine.subscription(number, resume=cursor) for number in (1, 2))
    planned = engine.tell(PlanResume(plan_id=7, subscribe=asked[0]))
    assert planned == ResumePlanned(plan_id=7, is_building=False)
    bad = engine.subscription(3, resume=cursor, interval_ms=-1)
    answers = engine.tell(SubscribeTogether(plan_id=7, subscribes=(*asked, bad)))
    headers = ((RESUMED_HEADER, "resnapshot the table has no journal"),)
    assert answers[:2] == tuple(Subscribed(stream_id=n, headers=headers) for n in (1, 2))
    assert isinstance(answers[2], Refused)
    update = engine.turn()[-1]
    assert sorted(update.stream_ids) == [1, 2], "one message for both"
    assert not engine.dispatcher.planner._plans


def test_who_subscribes_by_a_plan_that_was_never_made_gets_a_snapshot(engine):
    asked = engine.subscription(1)
    [answer] = engine.tell(SubscribeTogether(plan_id=7, subscribes=(asked,)))
    assert answer.headers == ((RESUMED_HEADER, "resnapshot the plan could not be made"),)


class Builders:
    """The threads that build: they do when the test says so."""

    def __init__(self) -> None:
        self.futures: list[Future[None]] = []

    def submit(self, *_: object) -> Future[None]:
        self.futures.append(Future())
        return self.futures[-1]

    def shutdown(self, **_: object) -> None:
        for future in self.futures:
            future.cancel()


@pytest.mark.parametrize("end", ["built", "cancelled"])
def test_a_plan_that_is_given_up_while_it_is_built_is_forgotten_afterwards(engine, end):
    planner: ResumePlanner = engine.dispatcher.planner
    planner._threads = builders = Builders()  # type: ignore[assignment]
    work = ResumeWork(engine.table, 1, None, rows=5)
    planner._rows_pending = 5
    assert planner.begin(7, work)
    engine.tell(GiveUpPlan(plan_id=7))
    engine.turn()
    assert work.table is engine.table, "it belongs to the thread that builds"
    if end == "built":
        builders.futures[0].set_result(None)
    else:
        planner.close()
    assert engine.turn() == []
    assert work.table is None
    assert not any((planner._plans, planner._building, planner._given_up))
    assert planner._rows_pending == 0


def test_a_plan_that_is_built_is_told(engine):
    planner: ResumePlanner = engine.dispatcher.planner
    planner._threads = builders = Builders()  # type: ignore[assignment]
    assert planner.begin(7, ResumeWork(engine.table, 1, None))
    assert engine.turn() == []
    builders.futures[0].set_result(None)
    [built] = engine.turn()
    assert built == exchange_messages.PlanBuilt(plan_id=7)
    planner.give_up(7)


def test_a_plan_that_no_thread_can_build_is_a_snapshot(engine):
    planner: ResumePlanner = engine.dispatcher.planner
    planner.close()
    work = ResumeWork(engine.table, 1, None, rows=5)
    planner._rows_pending = 5
    assert not planner.begin(7, work)
    assert planner._rows_pending == 0
    assert "cannot schedule" in planner.finish(7).outcome.reason


def test_cancel(engine):
    for stream_id in (1, 2):
        engine.tell(engine.subscription(stream_id))
    engine.turn()
    engine.tell(Unsubscribe(stream_id=1))
    assert told(engine.turn(1)) == [("EncodedUpdate", (2,))]
    engine.tell(Unsubscribe(stream_id=2))
    assert engine.producer is None
    assert len(engine.dispatcher._streams) == 0
    assert engine.turn(2) == []


def test_a_stream_whose_table_has_failed_is_still_cancelled(engine):
    engine.tell(engine.subscription(1))
    engine.turn()
    engine.runtime.fail_subscribers(engine.table, BarrageError("broken"))
    assert told(engine.turn()) == [("StreamEnded", (1,))]
    engine.tell(Hold(stream_ids=(1,)))
    engine.tell(Unsubscribe(stream_id=1))
    assert len(engine.dispatcher._streams) == 0
    assert engine.turn() == []


def test_hold_and_release(engine):
    engine.tell(engine.subscription(1))
    engine.turn()
    engine.tell(Hold(stream_ids=(1,)))
    assert engine.turn(1) == []
    engine.tell(RenewHold(stream_id=1))
    assert engine.turn(2) == []
    engine.tell(Release(stream_ids=(1,)))
    assert told(engine.turn()) == [("EncodedUpdate", (1,))], "what it missed is one update"


@pytest.mark.parametrize(
    "notice",
    [
        ChangeViewport(stream_id=9, columns=None, viewport=Viewport.of(0, 1)),
        GiveUpPlan(plan_id=9),
        Unsubscribe(stream_id=9),
        Hold(stream_ids=(9,)),
        Release(stream_ids=(9,)),
        RenewHold(stream_id=9),
        ForgetSnapshot(snapshot_id=9),
    ],
    ids=lambda each: type(each).__name__,
)
def test_a_notice_of_what_has_ended_does_nothing(engine, notice):
    engine.tell(engine.subscription(1))
    engine.turn()
    engine.tell(notice)
    assert told(engine.turn(1)) == [("EncodedUpdate", (1,))]


@pytest.mark.parametrize("is_pinned", [False, True])
def test_snapshot(engine, is_pinned):
    if is_pinned:
        engine.dispatcher._limits = Limits(turn_work_max=1)
    engine.turn(1, 2, 3)
    asked = engine.subscription(1)
    begun = engine.tell(
        ReadSnapshot(
            snapshot_id=4,
            source=asked.source,
            columns=None,
            viewport=None,
            is_reverse=False,
            options=asked.options,
            types=None,
            way=BodyWay.INLINE,
        )
    )
    assert isinstance(begun, SnapshotBegun)
    assert bool(begun.work.pinned) is is_pinned
    engine.turn(-1)
    [message] = begun.work.read()
    assert message.added_columns[0].to_pylist() == [1, 2, 3], "as it was"
    engine.tell(ForgetSnapshot(snapshot_id=4))
    assert not begun.work.pinned
    assert not engine.dispatcher._snapshots


# --- two threads ----------------------------------------------------------------------------------


class Writers:
    """Which threads have written an object, or called a table of streams."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.of: dict[tuple[str, int], set[str]] = {}
        self.kept: list[object] = []
        for owner in (ExchangeStream, ResumeWork):
            monkeypatch.setattr(owner, "__setattr__", self._noting(owner.__setattr__))
        for table in (StreamTable, SubscriptionRegistry):
            for name, method in list(vars(table).items()):
                if inspect.isfunction(method) and name != "__init__":
                    monkeypatch.setattr(table, name, self._noting(method))

    def _noting(self, method: Any) -> Any:
        def noted(this: Any, *arguments: Any, **named: Any) -> Any:
            self.kept.append(this)  # So that no other object gets its identity.
            key = type(this).__name__, id(this)
            self.of.setdefault(key, set()).add(threading.current_thread().name)
            return method(this, *arguments, **named)

        return noted

    def threads(self, kind: str) -> set[frozenset[str]]:
        return {frozenset(found) for (name, _), found in self.of.items() if name == kind}


def test_nothing_is_written_by_both_threads(monkeypatch):
    writers = Writers(monkeypatch)
    limits = Limits(exchange_outbox_updates_max=1)
    config = ServerConfig(host="inproc://", journal="memory", limits=limits)
    with barrage.Server(config=config) as server, barrage.connect(server.uri) as session:
        table = server.create_table("t", {"k": "int64"}, key="k")
        with session.table("t").subscribe(interval_ms=1).wait_ready(HANG_SECONDS) as live:
            for number in range(20):
                table.upsert({"k": [number]})
            wait_until(lambda: len(live) == 20)
            cursor, rows = live.checkpoint()
        table.upsert({"k": [100]})
        remote = session.table("t")
        with remote.subscribe(resume_from=cursor, rows=rows).wait_ready(HANG_SECONDS) as live:
            assert live.resumption == "replayed 1 step"
        with remote.subscribe(viewport=(0, 3)).wait_ready(HANG_SECONDS) as live:
            for first in range(5):
                live.set_viewport((first, first + 3))
            live.wait_ready(HANG_SECONDS)
        assert len(remote.snapshot()) == 21
    assert len(writers.threads("ExchangeStream")) == 1
    [[loop]] = writers.threads("StreamTable")
    [[engine]] = writers.threads("SubscriptionRegistry")
    assert writers.threads("ExchangeStream") == {frozenset({loop})}
    assert loop != engine == "barrage-engine"
    assert all(loop not in found for found in writers.threads("ResumeWork"))
