"""What strangers send to a running server: each gets a status of its own, and nobody else notices.

The cases of single messages stand in tests/unit/server/test_refusals.py; here are those that need a
busy stream, a large message or a long look at the process.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import grpc
import psutil
import pytest

import barrage
from barrage.rowset import RowSet
from tests.helpers.server_process import (
    RawExchange,
    ServerProcess,
    raw_channel,
    snapshot_request,
    subscription_request,
)

INVALID = grpc.StatusCode.INVALID_ARGUMENT


@pytest.fixture
def server():
    with barrage.Server() as running:
        yield running


@pytest.fixture
def channel(server):
    with raw_channel(server.address) as opened:
        yield opened


def test_requests_sent_in_one_breath_are_all_answered(server, channel, caplog):
    server.create_table("t", data={"x": [1, 2, 3]})
    view = subscription_request("t", viewport=RowSet.of_span(0, 2))
    for _ in range(20):
        for messages in ([snapshot_request("t")] * 2, [view, subscription_request("t")]):
            with RawExchange(channel) as exchange:
                for message in messages:
                    exchange.send(message)
                assert exchange.status()[0] is INVALID
        with RawExchange(channel) as exchange:
            exchange.send(subscription_request("t"))
            exchange.half_close()
            assert exchange.status()[0] is grpc.StatusCode.OK
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


SCRIPT = """
import sys, threading, barrage
from barrage.errors import TransportError
server = barrage.Server().start()
ticks = server.create_table("ticks", {"x": "int64"})
server.create_table("full", key="k", data={"k": [1, 2, 3], "v": [1.0, 2.0, 3.0]})
sys.stdout.write(server.address + "\\n")
sys.stdout.flush()
pause = threading.Event()
def tick():
    while not pause.wait(0.01):
        try:
            ticks.add({"x": [1]})
        except TransportError:  # The server stops before this thread hears of it.
            return
threading.Thread(target=tick, daemon=True).start()
server.serve_forever()
pause.set()
"""

STATUSES = {
    grpc.StatusCode.OK,
    INVALID,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
}


def hostile_requests() -> Iterator[bytes]:
    """Requests that are cut, changed at random, or ask for absurd amounts."""
    rng = random.Random(7)
    good = subscription_request("full", viewport=RowSet.of_span(0, 3), columns=(0,))
    for length in range(1, len(good), 7):
        yield good[:length]
    for _ in range(150):
        changed = bytearray(good)
        for _ in range(rng.randint(1, 3)):
            changed[rng.randrange(len(changed))] = rng.randrange(256)
        yield bytes(changed)
    yield subscription_request("full", viewport=RowSet.of_range(0, 2**63 - 2))
    yield subscription_request("full", viewport=RowSet(range(0, 2_000_000, 2)))
    yield subscription_request("full", columns=(0, 9, 400_000))
    yield subscription_request("full", batch_size=-(2**31), max_message_size=1)
    yield subscription_request("full", preview_list_length_limit=-(2**63))
    yield snapshot_request("full", viewport=RowSet.of_range(2**62, 2**63 - 2))


def test_hostile_requests_hurt_nobody_else_and_take_no_memory():
    with (
        ServerProcess(SCRIPT) as server,
        raw_channel(server.address) as channel,
        RawExchange(channel) as healthy,
    ):
        memory = psutil.Process(server.process.pid)
        healthy.send(subscription_request("ticks"))
        size = healthy.read_update().table_size
        before = memory.memory_info().rss
        for request in hostile_requests():
            with RawExchange(channel, is_viewport=True) as exchange:
                exchange.send(request)
                exchange.half_close()
                assert exchange.status()[0] in STATUSES, request[:500]
        assert memory.memory_info().rss - before < 100_000_000
        for _ in range(3):
            update = healthy.read_update()
            size += len(update.added_keys_post)
            assert update.table_size == size
        server.terminate()
        assert server.exit_code() == 0
        assert server.process.stderr.read() == ""
