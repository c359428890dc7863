"""Spans of OpenTelemetry, from the call that writes to the subscriber, in memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import barrage
from barrage.clock import SystemClock
from barrage.server import ServerConfig
from barrage.server.operations.otel_spans import OtelSpans
from barrage.server.runtime.observation import UpdateOrigin
from tests.helpers.server_process import wait_until

EXPORTER = InMemorySpanExporter()


@pytest.fixture(scope="module", autouse=True)
def provider() -> Iterator[None]:
    made = TracerProvider(shutdown_on_exit=False)
    made.add_span_processor(SimpleSpanProcessor(EXPORTER))
    trace.set_tracer_provider(made)
    yield
    made.shutdown()


@pytest.fixture(autouse=True)
def nothing_before() -> None:
    EXPORTER.clear()


def spans(name: str):
    return [span for span in EXPORTER.get_finished_spans() if span.name == name]


def linked(span) -> set[int]:
    return {link.context.span_id for link in span.links}


def test_a_write_leads_to_its_subscriber():
    with barrage.Server(config=ServerConfig(otel=True, otel_sample_percent=100)) as server:
        with barrage.connect(server.uri) as session:
            session.create_table("t", {"a": "int64"}, key="a")
            with session.table("t").subscribe(interval_ms=10) as ticking:
                ticking.wait_ready(60)
                session.put("t", {"a": [1, 2]})
                wait_until(lambda: ticking.to_arrow().num_rows == 2)
                wait_until(lambda: spans("barrage.update"))
        (update,) = spans("barrage.update")
        assert update.attributes["barrage.streams"] == 1
        assert list(update.attributes["barrage.tables"]) == ["t"]
        wait_until(lambda: spans("arrow.flight.protocol.FlightService/DoExchange"))
        puts = spans("arrow.flight.protocol.FlightService/DoPut")
        writers = {span.context.span_id for span in puts}
        cycles = {span.context.span_id: span for span in spans("barrage.cycle")}
        (cycle,) = (cycles[each] for each in linked(update) if each in cycles)
        assert linked(cycle) & writers, "the cycle is linked to the call that wrote"
        (call,) = spans("arrow.flight.protocol.FlightService/DoExchange")
        assert call.context.span_id in linked(update), "and the update to its subscriber's"
        assert update.start_time >= cycle.start_time
        assert call.attributes["barrage.stream"] == 1
        assert call.attributes["rpc.grpc.status_code"] in (0, 1)
    assert server._parts.runtime.observation.observer is None


def test_a_call_that_fails_says_how():
    with (
        barrage.Server(config=ServerConfig(otel=True)) as server,
        barrage.connect(server.uri) as session,
        pytest.raises(barrage.errors.TableNotFoundError),
    ):
        session.table("nothing").snapshot()
    wait_until(lambda: any(not span.status.is_ok for span in EXPORTER.get_finished_spans()))
    (failed,) = (s for s in EXPORTER.get_finished_spans() if not s.status.is_ok)
    assert failed.attributes["error.type"] == "TableNotFoundError"
    assert failed.attributes["rpc.grpc.status_code"] == 5


def made(percent: int, clock: SystemClock | None = None) -> OtelSpans:
    tracer = trace.get_tracer("test")
    return OtelSpans(tracer, clock or SystemClock(), percent=percent, call_of=lambda _: None)


def test_none_are_chosen_but_those_whose_client_is_traced():
    none = made(0)
    assert none.begin("/s/m", ()) is None
    header = ("traceparent", f"00-{'ab' * 16}-{'cd' * 8}-01")
    span = none.begin("/s/m", (header, ("binary-bin", b"\0")))
    assert span is not None
    span.end(None)
    (told,) = spans("s/m")
    assert told.context.trace_id == int("ab" * 16, 16)
    assert told.parent is not None
    unsampled = ("traceparent", f"00-{'ab' * 16}-{'cd' * 8}-00")
    assert made(100).begin("/s/m", (unsampled,)) is None
    for wrong in ("", "00-1", "x" * 5000):
        assert none.begin("/s/m", (("traceparent", wrong),)) is None


def test_updates_that_are_never_written_are_bounded():
    every = made(100)
    every._cycles[1] = trace.get_tracer("test").start_span("x").get_span_context()
    for step in range(1030):
        origin = UpdateOrigin(
            step=step, source_time_ns=1, is_snapshot=False, encode_begun_ns=1, encode_ended_ns=2
        )
        every.delivered(origin, [1, 2])
        every.written(origin, [1])
    assert len(every._updates) == 1024
    assert len(spans("barrage.update")) == 6
    every.written(origin, [2])
    assert len(spans("barrage.update")) == 7
    every.close()
    assert len(spans("barrage.update")) == 1030
