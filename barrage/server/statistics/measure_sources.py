"""Where the measures of a server come from, but for those of its streams. On the event loop; what
may have to look at many files is read beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from barrage.errors import JournalFullError
from barrage.server.statistics.server_measures import Measure, two_digits
from barrage.supervision import in_thread

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from barrage.server.access.session_store import SessionStore
    from barrage.server.bodies.body_service import BodyService
    from barrage.server.identity.audit import AuditLog
    from barrage.server.identity.authenticator import Authenticator
    from barrage.server.journaling.journal_service import JournalService
    from barrage.server.runtime.catalog import Catalog
    from barrage.server.runtime.measures import Measures
    from barrage.server.runtime.runtime import EngineRuntime
    from barrage.server.runtime.watchdog import ThreadWatch, Watchdog

    MeasureSource = Callable[[], Awaitable[Iterable[Measure]]]


def engine_source(runtime: EngineRuntime) -> MeasureSource:
    """Of the engine thread, and of what it hands over to be sent."""

    async def read() -> list[Measure]:
        engine, sending = runtime.measures.engine, runtime.measures.sending
        held = runtime.stats.held
        return [
            Measure("updates_sent", sending.updates_sent),
            *_transfers(runtime.measures),
            Measure("rows_changed", engine.rows_changed),
            Measure.of_histogram("cycle_seconds", engine.cycles.taken()),
            Measure.of_histogram("propagation_seconds", engine.propagations.taken()),
            Measure.of_histogram("encoding_seconds", sending.encodings.taken()),
            Measure.of_histogram("commit_seconds", engine.commits.taken()),
            Measure.of_histogram("lag_seconds", sending.lag.taken()),
            Measure("commands_waiting", runtime.commands_waiting),
            Measure("held_bytes", held.nbytes),
            Measure("resynchronised", held.resynchronised),
            Measure("slow_disconnects", held.disconnected),
        ]

    return read


def _transfers(measures: Measures) -> Iterable[Measure]:
    """Bytes of Flight's data calls: streams count theirs by themselves."""
    sent, received = measures.transfers.sent.copy(), measures.transfers.received.copy()
    sent["DoExchange"] += measures.sending.bytes_sent
    received["DoExchange"] += measures.sending.bytes_received
    for method, count in sorted(sent.items()):
        yield Measure("sent_bytes", count, method)
    for method, count in sorted(received.items()):
        yield Measure("received_bytes", count, method)


def calls_source(
    measures: Measures,
    authenticator: Authenticator,
    sessions: SessionStore,
    *,
    connections: Callable[[], int],
    audit: AuditLog | None,
) -> MeasureSource:
    """Of who calls, and what became of that."""

    async def read() -> list[Measure]:
        calls = measures.calls
        found = [
            Measure("connections", connections()),
            Measure("sessions", sum(1 for _ in sessions)),
            Measure("calls_open", len(authenticator.calls)),
            *(Measure("calls", count, status) for status, count in sorted(calls.ended.items())),
            *(Measure("refusals", count, why) for why, count in sorted(calls.refused.items())),
        ]
        if audit is not None:
            found.append(Measure("audit_dropped", audit.dropped_in_all))
        return found

    return read


def journal_source(journals: JournalService, catalog: Catalog) -> MeasureSource:
    """Of the journals and their disk; nothing where there are none."""

    def journal_bytes() -> int:
        return sum(journal.byte_count for journal in journals.journals.values())

    async def read() -> list[Measure]:
        store, count = journals.store, len(journals.journals)
        if store is None and not count:
            return []
        found = [
            Measure("journals", count),
            Measure("journal_bytes", await in_thread(journal_bytes)),
            Measure("tables_damaged", len(catalog.blocked)),
        ]
        if store is None:
            return found
        troubles = (store.upkeep_trouble(each)[0] for each in list(store.journals.values()))
        refusal = journals.refusal
        is_full = isinstance(refusal, JournalFullError)
        return [
            *found,
            Measure("journal_waiting_bytes", store.waiting_bytes),
            Measure("journal_upkeep_failures", max(troubles, default=0)),
            Measure.of_histogram("journal_write_seconds", store.write_times.taken()),
            Measure("journal_failed", float(refusal is not None and not is_full)),
            Measure("disk_full", float(is_full)),
            Measure("disk_free_bytes", two_digits(store.measured_bytes)),
        ]

    return read


def threads_source(watchdog: Watchdog) -> MeasureSource:
    """Of what held up the engine thread and the event loop."""

    def of_thread(watch: ThreadWatch) -> Iterable[Measure]:
        yield Measure("stretches_above_bound", watch.above_count, watch.name)
        longest = watch.longest
        took_ns = 0 if longest is None else longest.took_ns
        yield Measure("longest_stretch_seconds", took_ns / 1e9, watch.name)

    async def read() -> list[Measure]:
        return [each for watch in watchdog.watches.values() for each in of_thread(watch)]

    return read


def bodies_source(bodies: BodyService) -> MeasureSource:
    """Of bodies outside of streams."""

    async def read() -> list[Measure]:
        return [
            Measure(name, value, facts.way.value)
            for facts in bodies.facts()
            for name, value in (
                ("bodies_outside", facts.counts.bodies_out),
                ("bodies_outside_bytes", facts.counts.bytes_out),
                ("body_fallbacks", facts.counts.fallbacks),
                ("bodies_pending_bytes", facts.pending_bytes),
            )
        ]

    return read
