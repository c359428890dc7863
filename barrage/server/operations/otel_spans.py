"""Calls, cycles and updates as spans of OpenTelemetry.

Which of them there are is decided here, by a share of the calls and cycles, and always for a caller
whose own trace is recorded (``traceparent``). The span of a cycle is linked to those of the calls
whose writes it has committed, that of an update to its cycle and to the calls of its subscribers:
so a trace leads from the writer to whoever reads.

Needs ``opentelemetry-sdk``. Spans go to the program's own tracer provider; where it has none, by
OTLP to where the ``OTEL_EXPORTER_OTLP_...`` variables say.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from barrage.errors import ConfigError
from barrage.server.identity.current_call import current_call

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from barrage.clock import Clock
    from barrage.engine import Table
    from barrage.errors import BarrageError
    from barrage.server.identity.credentials import Metadata
    from barrage.server.identity.current_call import CurrentCall
    from barrage.server.runtime.observation import CycleSeen, UpdateOrigin

NEEDED = 'otel = true needs OpenTelemetry: pip install "barrage[otel]"'

CYCLES_REMEMBERED = 1024
"""Cycles to which updates may still be linked."""

UPDATES_OPEN_MAX = 1024
"""Updates that are not written yet; past it the oldest ends as it is."""

LINKS_MAX = 8
"""Subscribers an update is linked to."""


def new_spans(
    clock: Clock, percent: int, call_of: Callable[[int], CurrentCall | None]
) -> OtelSpans:
    """Spans that go where this process sends its traces. ConfigError when the packages are not
    there."""
    try:
        from opentelemetry import trace
        from opentelemetry.sdk.trace import TracerProvider
    except ImportError:
        raise ConfigError(NEEDED) from None
    provider: Any = trace.get_tracer_provider()
    own = None
    if not isinstance(provider, TracerProvider):
        provider = own = _own_provider()
    tracer = provider.get_tracer("barrage", version("barrage"))
    return OtelSpans(tracer, clock, percent=percent, call_of=call_of, own_provider=own)


def _own_provider() -> Any:
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise ConfigError(NEEDED) from None
    provider = TracerProvider(
        resource=Resource.create({"service.name": "barrage"}), shutdown_on_exit=False
    )
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider


class OtelSpans:
    """The spans of one server (an observer, and what calls are told to)."""

    def __init__(
        self,
        tracer: Any,
        clock: Clock,
        *,
        percent: int,
        call_of: Callable[[int], CurrentCall | None],
        own_provider: Any = None,
    ) -> None:
        """``call_of``: the call that a stream is."""
        self._tracer = tracer
        self._share = percent / 100
        self._call_of = call_of
        self._own_provider = own_provider
        self._epoch_ns = clock.wall_ns() - clock.monotonic_ns()
        """What makes wall times of monotonic ones."""
        self._random = random.Random()
        self._cycles: OrderedDict[int, Any] = OrderedDict()
        self._updates: OrderedDict[int, _OpenUpdate] = OrderedDict()

    def close(self) -> None:
        """End what is open, and send it if that is this server's business. May block."""
        for update in list(self._updates.values()):
            update.span.end()
        self._updates.clear()
        if self._own_provider is not None:
            self._own_provider.shutdown()

    def _is_chosen(self) -> bool:
        return self._random.random() < self._share

    # --- calls, on the event loop ---

    def begin(self, method: str, metadata: Metadata) -> OtelCallSpan | None:
        """The span of a call, a part of its client's trace if it has one."""
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        headers = {
            name: value
            for name, value in metadata
            if name in ("traceparent", "tracestate") and isinstance(value, str)
        }
        parent = TraceContextTextMapPropagator().extract(headers) if headers else None
        remote = trace.get_current_span(parent).get_span_context()
        if not (remote.trace_flags.sampled if remote.is_valid else self._is_chosen()):
            return None
        span = self._tracer.start_span(
            method.strip("/"),
            context=parent,
            kind=trace.SpanKind.SERVER,
            attributes={
                "rpc.system": "grpc",
                "rpc.service": method.strip("/").rpartition("/")[0],
                "rpc.method": method.rpartition("/")[2],
            },
        )
        return OtelCallSpan(span)

    # --- the engine thread ---

    def write_begins(self) -> object | None:
        """The context of the span of the call that writes."""
        call = current_call()
        return None if call is None else call.span

    def cycle_ended(self, cycle: CycleSeen) -> None:
        from opentelemetry.trace import Link

        if not cycle.writes and not self._is_chosen():
            return
        writes: tuple[Any, ...] = cycle.writes
        contexts = {context.span_id: context for context in writes}
        span = self._tracer.start_span(
            "barrage.cycle",
            links=[Link(context) for context in contexts.values()],
            start_time=cycle.begun_ns + self._epoch_ns,
            attributes={"barrage.step": cycle.step, "barrage.tables": len(cycle.tables)},
        )
        span.end(end_time=cycle.ended_ns + self._epoch_ns)
        self._cycles[cycle.wall_ns] = span.get_span_context()
        while len(self._cycles) > CYCLES_REMEMBERED:
            self._cycles.popitem(last=False)

    def propagated(self, table: Table, begun_ns: int, ended_ns: int) -> None:
        """It is a part of the updates that come of it."""

    # --- updates, on the event loop ---

    def delivered(self, origin: UpdateOrigin, stream_ids: Sequence[int]) -> None:
        from opentelemetry.trace import Link

        cycle = self._cycles.get(origin.source_time_ns or -1)
        if cycle is None or not stream_ids or origin.is_snapshot:
            return
        calls = [self._call_of(stream_id) for stream_id in stream_ids[:LINKS_MAX]]
        readers: list[Any] = [
            call.span for call in calls if call is not None and call.span is not None
        ]
        span = self._tracer.start_span(
            "barrage.update",
            links=[Link(context) for context in (cycle, *readers)],
            start_time=origin.encode_begun_ns + self._epoch_ns,
            attributes={
                "barrage.step": origin.step,
                "barrage.streams": len(stream_ids),
                "barrage.tables": [] if calls[0] is None else list(calls[0].tables),
            },
        )
        encoded_ns = origin.encode_ended_ns + self._epoch_ns
        span.add_event("encoded", timestamp=encoded_ns)
        self._updates[id(origin)] = _OpenUpdate(span, origin, len(stream_ids))
        while len(self._updates) > UPDATES_OPEN_MAX:
            self._updates.popitem(last=False)[1].span.end()

    def written(self, origin: UpdateOrigin, stream_ids: Sequence[int]) -> None:
        update = self._updates.get(id(origin))
        if update is None:
            return
        update.streams_left -= len(stream_ids)
        if update.streams_left <= 0:
            del self._updates[id(origin)]
            update.span.end()


class _OpenUpdate:
    """An update that not all of its streams have written."""

    def __init__(self, span: Any, origin: UpdateOrigin, streams_left: int) -> None:
        self.span = span
        self.origin = origin
        """Kept so that no other one has its identity meanwhile."""
        self.streams_left = streams_left


class OtelCallSpan:
    """The span of one call."""

    def __init__(self, span: Any) -> None:
        self._span = span
        self._call: CurrentCall | None = None

    def admitted(self, call: CurrentCall) -> None:
        """From now on writes of the call are known by its span."""
        call.span = self._span.get_span_context()
        self._span.set_attribute("barrage.proof", call.caller.proof.value)
        self._call = call

    def end(self, error: BarrageError | None) -> None:
        from opentelemetry.trace import Status, StatusCode

        call = self._call
        if call is not None:
            self._span.set_attribute("barrage.tables", list(call.tables))
            if call.action:
                self._span.set_attribute("barrage.action", call.action)
            if call.stream_id is not None:
                self._span.set_attribute("barrage.stream", call.stream_id)
        code = 0 if error is None else error.status_code.value
        self._span.set_attribute("rpc.grpc.status_code", code)
        if error is not None:
            self._span.set_attribute("error.type", type(error).__name__)
            self._span.set_status(Status(StatusCode.ERROR))
        self._span.end()
