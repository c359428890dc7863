"""What the updates of tables went through: commit, propagation, encoding, delivery, writing.

A bounded ring remembers it for all tables while tracing is on: always (the setting ``trace``), or
for some seconds after somebody has asked. While it is off nobody is told anything
(:mod:`barrage.server.runtime.observation`).

Each event is a tuple: what it was, where it is matched by, and its times by the monotonic clock.
The engine thread and the event loop append; the event loop reads.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any
from weakref import ref

from msgspec import Meta

from barrage.server.access.method_table import Action
from barrage.server.identity.current_call import note_table
from barrage.server.settings.json_fields import Fields

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from barrage.clock import Clock
    from barrage.engine import Table
    from barrage.server.exchange.exchange_driver import ExchangeHub
    from barrage.server.policy.access_gate import AccessGate
    from barrage.server.runtime.observation import CycleSeen, Observation, UpdateOrigin
    from barrage.server.tables.table_service import TableService

TRACE = "barrage.trace"

TRACED_NS = 60 * 1_000_000_000
"""How far back a trace reaches."""

SECONDS_MAX = 600
UPDATES_MAX = 2000
"""Updates told at once, the newest."""

_DESCRIPTION = (
    'What the updates of a table went through. Body: JSON {"table"; "seconds": for how long '
    "tracing goes on from now, 0 to 600; without it nothing is switched}. Result: JSON "
    '{"is_on", "always", "now_ns", "wall_ns", "updates": a list of objects with step, wall_ns of '
    "the commit, [begin, end] in monotonic ns of cycle, propagate, encode and write, and streams}. "
    "With rules, for those who may do everything."
)

_Seconds = Annotated[int, Meta(ge=0, le=SECONDS_MAX)]


@dataclass(slots=True)
class TracedUpdate:
    """One update of a table on its way, for all streams that got it alike."""

    origin: UpdateOrigin
    tables: tuple[str, ...]
    delivered_ns: int
    stream_count: int
    written_count: int = 0
    written_first_ns: int | None = None
    written_last_ns: int | None = None


@dataclass(slots=True)
class _Ring:
    """What is remembered."""

    events_max: int
    cycles: deque[CycleSeen] = field(init=False)
    propagations: deque[tuple[ref[Table], int, int]] = field(init=False)
    updates: deque[TracedUpdate] = field(init=False)
    under_way: dict[int, TracedUpdate] = field(default_factory=dict)
    """Updates not yet written to all their streams, by the identity of their origin."""

    def __post_init__(self) -> None:
        self.cycles = deque(maxlen=self.events_max)
        self.propagations = deque(maxlen=self.events_max)
        self.updates = deque(maxlen=self.events_max)


class UpdateTraces:
    """The ring of one server (an :class:`~barrage.server.runtime.observation.Observer`)."""

    def __init__(
        self,
        observation: Observation,
        clock: Clock,
        *,
        events_max: int,
        tables_of: Callable[[int], Sequence[str]],
    ) -> None:
        """``tables_of``: the tables that a stream is about."""
        self._observation = observation
        self._clock = clock
        self._tables_of = tables_of
        self._ring = _Ring(max(1, events_max // 3))
        self._until_ns = 0
        self._ending: asyncio.TimerHandle | None = None
        self.is_always = False

    @property
    def is_on(self) -> bool:
        return self.is_always or self._ending is not None

    def always(self) -> None:
        """Remember from now on."""
        self.is_always = True
        self._observation.add(self)

    def begin(self, seconds: int) -> None:
        """Remember for so long at least. On the event loop."""
        if self.is_always or seconds <= 0:
            return
        until_ns = self._clock.monotonic_ns() + seconds * 1_000_000_000
        if until_ns <= self._until_ns:
            return
        self._until_ns = until_ns
        if self._ending is not None:
            self._ending.cancel()
        self._ending = asyncio.get_running_loop().call_later(seconds, self._end)
        self._observation.add(self)

    def _end(self) -> None:
        self._ending = None
        self._observation.remove(self)

    def close(self) -> None:
        """Remember nothing more, and forget."""
        if self._ending is not None:
            self._ending.cancel()
        self._end()
        self._ring = _Ring(1)

    # --- told by the engine thread ---

    def write_begins(self) -> None:
        """Writes are not told apart."""

    def cycle_ended(self, cycle: CycleSeen) -> None:
        # Without its tables, which must not live for as long as it is remembered.
        self._ring.cycles.append(replace(cycle, tables=(), writes=()))

    def propagated(self, table: Table, begun_ns: int, ended_ns: int) -> None:
        self._ring.propagations.append((ref(table), begun_ns, ended_ns))

    # --- told by the event loop ---

    def delivered(self, origin: UpdateOrigin, stream_ids: Sequence[int]) -> None:
        if not stream_ids:
            return
        update = TracedUpdate(
            origin=origin,
            tables=tuple(self._tables_of(stream_ids[0])),
            delivered_ns=self._clock.monotonic_ns(),
            stream_count=len(stream_ids),
        )
        ring = self._ring
        if len(ring.updates) == ring.updates.maxlen:
            ring.under_way.pop(id(ring.updates[0].origin), None)
        ring.updates.append(update)
        ring.under_way[id(origin)] = update

    def written(self, origin: UpdateOrigin, stream_ids: Sequence[int]) -> None:
        update = self._ring.under_way.get(id(origin))
        if update is None or not stream_ids:
            return
        now_ns = self._clock.monotonic_ns()
        update.written_count += len(stream_ids)
        update.written_first_ns = update.written_first_ns or now_ns
        update.written_last_ns = now_ns
        if update.written_count >= update.stream_count:
            self._ring.under_way.pop(id(origin), None)

    # --- reading ---

    def updates_of(self, name: str, table: Table | None) -> list[dict[str, Any]]:
        """The updates of the last minute of a table, oldest first; ``table`` is what the name
        stands for."""
        since_ns = self._clock.monotonic_ns() - TRACED_NS
        ring = self._ring
        cycles = {cycle.wall_ns: cycle for cycle in list(ring.cycles)}
        told = [
            (begun_ns, ended_ns)
            for of, begun_ns, ended_ns in list(ring.propagations)
            if of() is table
        ]
        found = [
            _told(update, cycles.get(update.origin.source_time_ns or -1), told)
            for update in list(ring.updates)
            if name in update.tables and update.delivered_ns >= since_ns
        ]
        return found[-UPDATES_MAX:]


def _told(
    update: TracedUpdate, cycle: CycleSeen | None, propagations: Iterable[tuple[int, int]]
) -> dict[str, Any]:
    origin = update.origin
    before = [each for each in propagations if each[1] <= origin.encode_begun_ns]
    # The last one before it was encoded, unless its cycle came after that: then it is another's.
    propagation = before[-1] if before else None
    if propagation is not None and cycle is not None and propagation[1] < cycle.begun_ns:
        propagation = None
    return {
        "step": origin.step,
        "is_snapshot": origin.is_snapshot,
        "wall_ns": origin.source_time_ns,
        "cycle": None if cycle is None else [cycle.begun_ns, cycle.ended_ns],
        "propagate": None if propagation is None else list(propagation),
        "encode": [origin.encode_begun_ns, origin.encode_ended_ns],
        "write": [update.delivered_ns, update.written_last_ns],
        "written_first_ns": update.written_first_ns,
        "written": update.written_count,
        "streams": update.stream_count,
    }


class TraceCalls:
    """The action, on the event loop."""

    def __init__(
        self,
        traces: UpdateTraces,
        clock: Clock,
        *,
        tables: TableService,
        gate: AccessGate,
    ) -> None:
        self._traces = traces
        self._clock = clock
        self._tables = tables
        self._gate = gate
        self.actions: Mapping[str, Action] = {TRACE: Action(_DESCRIPTION, self._trace)}

    async def _trace(self, body: bytes) -> bytes:
        self._gate.check_keeper("traces, which show what all callers are sent, are")
        fields = Fields.parse(body, "action body")
        name = fields.name("table")
        seconds = fields.get("seconds", _Seconds, 0)
        fields.finish()
        note_table(name)
        traces = self._traces
        was_on = traces.is_on
        traces.begin(seconds)
        find = self._tables.look_up(name)
        publication = await asyncio.wrap_future(find)
        told = {
            "is_on": was_on,
            "always": traces.is_always,
            "now_ns": self._clock.monotonic_ns(),
            "wall_ns": self._clock.wall_ns(),
            "updates": traces.updates_of(name, publication.table),
        }
        return json.dumps(told).encode()


def streams_tables(hub: ExchangeHub) -> Callable[[int], Sequence[str]]:
    """Which tables a stream of a hub is about."""

    def tables_of(stream_id: int) -> Sequence[str]:
        call = hub.call_of(stream_id)
        return () if call is None else call.tables

    return tables_of
