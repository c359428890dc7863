"""``/metrics``, ``/healthz`` and ``/readyz`` over HTTP, and what hostile clients get there."""

from __future__ import annotations

import asyncio
import http.client
import socket
from collections.abc import Iterator
from contextlib import closing
from http import HTTPStatus
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families as plain_metrics

import barrage
from barrage.errors import ConfigError
from barrage.histogram import Histogram
from barrage.limits import Limits
from barrage.server import ServerConfig
from barrage.server.operations.exposition import exposition
from barrage.server.operations.metrics_listener import (
    BadRequestError,
    HttpAnswer,
    HttpRequest,
    MetricsListener,
    parse_request,
)
from barrage.server.statistics.server_measures import MEASURES, Measure
from tests.helpers.server_process import wait_until

ODD = 'odd "name" \\ and \u2603'
OPEN = "application/openmetrics-text; version=1.0.0"
LIMITS = Limits(metrics_connections_max=4, metrics_request_bytes_max=300)
HASTY = Limits(metrics_request_ns_max=2 * 10**8)


def got(port: int, path: str, **headers: str) -> tuple[int, dict[str, str], str]:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read().decode()


def sent(port: int, data: bytes) -> bytes:
    """What comes back for raw bytes, to the end of the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as made:
        try:
            made.sendall(data)
            made.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        return everything(made)


def everything(made: socket.socket) -> bytes:
    parts = []
    try:
        while part := made.recv(65536):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


@pytest.fixture(scope="module")
def scraped() -> Iterator[tuple[barrage.Server, int]]:
    with barrage.Server(config=ServerConfig(metrics_port=0, limits=LIMITS)) as server:
        table = server.create_table(ODD, {"a": "int64"}, key="a")
        with (
            barrage.connect(server.uri) as session,
            session.table(ODD).subscribe(interval_ms=10) as ticking,
        ):
            ticking.wait_ready(60)
            table.upsert({"a": [1]})
            assert server.metrics_port
            yield server, server.metrics_port


def test_a_scrape_is_what_the_tables_say_and_its_parsers_read_it(scraped):
    server, port = scraped
    statistics = server._running.operations.statistics

    def families(accept: str):
        status, headers, text = got(port, "/metrics", Accept=accept)
        assert status == 200
        is_open = headers["Content-Type"].startswith("application/openmetrics-text")
        assert is_open == (accept == OPEN)
        return {each.name: each for each in (open_metrics if is_open else plain_metrics)(text)}

    def has_label(accept: str) -> bool:
        found = families(accept).get("barrage_subscriptions")
        return found is not None and found.samples[0].labels == {"table": ODD}

    def cycles(accept: str) -> float:
        samples = {each.name: each for each in families(accept)["barrage_cycle_seconds"].samples}
        return samples["barrage_cycle_seconds_count"].value

    for accept in ("text/plain", OPEN):
        wait_until(lambda accept=accept: has_label(accept) and cycles(accept) >= 1)
        found = families(accept)
        measured = {each.name for each in statistics.measures}
        assert {f"barrage_{name}" for name in measured} <= found.keys()
        assert "process_resident_memory_bytes" in found


def test_every_label_and_kind_can_be_told():
    histogram = Histogram()
    histogram.observe(10**6)
    nasty = 'quote " back \\ new\nline \u2603 ' + "x" * 5000
    measures = [
        Measure.of_histogram(name, histogram.taken())
        if info.kind.value == "histogram"
        else Measure(name, 3, nasty if info.label else "")
        for name, info in MEASURES.items()
    ]
    for accept, parse in (("", plain_metrics), (OPEN, open_metrics)):
        body, _ = exposition(measures, accept)
        found = {each.name: each for each in parse(body.decode())}
        assert {f"barrage_{name}" for name in MEASURES} <= found.keys()
        told = [
            *(s.labels for s in found["barrage_subscriptions"].samples),
            *(s.labels for s in found["barrage_refusals"].samples if s.name.endswith("_total")),
        ]
        assert told == [{"table": nasty}, {"reason": nasty}]


def test_it_lives_and_is_ready(scraped):
    _, port = scraped
    assert got(port, "/healthz")[::2] == (200, "ok\n")
    assert got(port, "/readyz?verbose")[::2] == (200, "ok\n")
    status, _, text = got(port, "/nothing")
    assert (status, text) == (404, "there are /metrics, /healthz and /readyz\n")


def test_a_head_has_no_body(scraped):
    _, port = scraped
    answer = sent(port, b"HEAD /readyz HTTP/1.1\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert answer.endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (b"GET /metrics\r\n\r\n", 400),
        (b"GET  /metrics HTTP/1.1\r\n\r\n", 400),
        (b"GET metrics HTTP/1.1\r\n\r\n", 400),
        (b"\xff\xfe\r\n\r\n", 400),
        (b"\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\n: value\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello", 400),
        (b"GET /metrics HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"POST /metrics HTTP/1.1\r\n\r\n", 405),
        (b"GET /metrics HTTP/1.1\r\nX: " + b"y" * 300 + b"\r\n\r\n", 431),
        (b"G" * 400, 431),
    ],
)
def test_what_is_no_request_is_answered_and_harms_nobody(scraped, data, status):
    _, port = scraped
    answer = sent(port, data)
    assert answer.startswith(b"HTTP/1.1 %d " % status), answer
    assert got(port, "/healthz")[0] == 200


@pytest.mark.parametrize(("spare", "status"), [(0, 200), (1, 431)])
def test_a_request_of_the_largest_size(scraped, spare, status):
    _, port = scraped
    head = b"GET /healthz HTTP/1.1\r\nX: "
    padding = LIMITS.metrics_request_bytes_max - len(head) + spare
    answer = sent(port, head + b"y" * padding + b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 %d " % status)


def test_so_many_connections_and_no_more(scraped):
    server, port = scraped
    listener = server._running.operations._listener
    wait_until(lambda: listener.connection_count == 0)
    silent = [socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(4)]
    try:
        wait_until(lambda: listener.connection_count == 4)
        assert sent(port, b"GET /healthz HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 503 ")
    finally:
        for each in silent:
            each.close()
    wait_until(lambda: listener.connection_count == 0)
    assert got(port, "/healthz")[0] == 200


async def large(_request: HttpRequest) -> HttpAnswer:
    """More than the system takes for a peer that does not read."""
    return HttpAnswer(HTTPStatus.OK, bytes(64 * 1024 * 1024))


@pytest.mark.parametrize(
    ("said", "heard"), [(b"GET /metr", b"HTTP/1.1 408 "), (b"GET /metrics HTTP/1.1\r\n\r\n", b"")]
)
def test_who_says_nothing_or_does_not_read_is_cut(said, heard):
    async def scene() -> bytes:
        listener = MetricsListener(large, HASTY)
        await listener.start("127.0.0.1", 0)
        made = socket.create_connection(("127.0.0.1", listener.port))
        made.sendall(said)
        await asyncio.to_thread(
            wait_until, lambda: listener.refused_count and not listener.connection_count
        )
        answer = made.recv(len(heard)) if heard else b""
        made.close()
        await listener.close()
        return answer

    assert asyncio.run(asyncio.wait_for(scene(), 60)) == heard


def test_a_thousand_scrapes_at_once(scraped):
    _, port = scraped

    async def scrape() -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
        try:
            answer = await reader.read()
        except ConnectionResetError:
            answer = b""
        writer.close()
        return answer[:12]

    async def all_of_them() -> list[bytes]:
        return await asyncio.gather(*(scrape() for _ in range(1000)))

    answers = set(asyncio.run(asyncio.wait_for(all_of_them(), 120)))
    assert answers <= {b"HTTP/1.1 200", b"HTTP/1.1 503", b""}
    assert got(port, "/metrics")[0] == 200


@pytest.mark.parametrize("head", [b"", b"GET", b"GET / HTTP/2", b"GET / HTTP/1.1\r\na b: c"])
def test_requests_that_cannot_be_parsed(head):
    if head.endswith(b"a b: c"):
        assert parse_request(head).path == "/"
        return
    with pytest.raises(BadRequestError):
        parse_request(head)


# --- readiness ------------------------------------------------------------------------------------


def test_a_full_disk_makes_it_unready_and_room_ready_again(disk, tmp_path: Path):
    config = ServerConfig(
        data=str(tmp_path / "data"), metrics_port=0, journal_reserve_bytes=64 * 1024
    )
    with barrage.Server(config=config) as server:
        port = server.metrics_port
        assert port is not None
        assert got(port, "/readyz")[0] == 200
        disk.is_full = True
        (tmp_path / "data" / "reserve").unlink()
        server._parts.journals.store._no_room()
        status, _, text = got(port, "/readyz")
        assert status == 503
        assert "no room" in text
        assert got(port, "/healthz")[0] == 200, "a restart would not help"
        disk.is_full = False
        wait_until(lambda: got(port, "/readyz")[0] == 200)


def test_a_broken_disk_makes_it_neither_ready_nor_alive(disk, tmp_path: Path):
    with barrage.Server(config=ServerConfig(data=str(tmp_path / "data"), metrics_port=0)) as server:
        table = server.create_table("t", {"a": "int64"})
        disk.breaks = True
        failed = table.add({"a": [1]}, wait=False)
        assert failed.exception(60) is not None
        port = server.metrics_port
        assert port is not None
        wait_until(lambda: got(port, "/healthz")[0] == 503)
        assert "restart" in got(port, "/readyz")[2]
        found = {each.name: each for each in plain_metrics(got(port, "/metrics")[2])}
        assert found["barrage_ready"].samples[0].value == 0
        disk.breaks = False


def test_a_server_that_drains_says_so():
    async def scene() -> None:
        async with barrage.server.AsyncServer(config=ServerConfig(metrics_port=0)) as server:
            operations = server._running.operations
            operations.begin_stop(1)
            status, _, text = await asyncio.to_thread(got, operations.metrics_port, "/readyz")
            assert (status, text) == (503, "the server is shutting down\n")
            assert (await asyncio.to_thread(got, operations.metrics_port, "/healthz"))[0] == 200

    asyncio.run(scene())


def test_a_port_that_is_taken_is_told():
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(ConfigError, match="cannot listen for metrics"),
        barrage.Server(config=ServerConfig(metrics_port=taken.getsockname()[1])),
    ):
        pass
