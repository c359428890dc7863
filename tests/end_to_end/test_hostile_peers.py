"""What strangers send to a running server: each gets a status of its own, and nobody else notices.

The cases of single messages stand in tests/unit/server/test_refusals.py; here are those that need a
busy stream, a large message or a long look at the process.
"""

from __future__ import annotations

import grpc
import pytest

import barrage
from barrage.rowset import RowSet
from tests.helpers.server_process import (
    RawExchange,
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
