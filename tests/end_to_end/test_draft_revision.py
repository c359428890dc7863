"""The 2020 draft over real sockets, where the random workload does not go."""

from __future__ import annotations

import pytest

import barrage
from barrage import wire
from barrage.rowset import RowSet
from barrage.transport import flight_messages
from barrage.wire.updates.update_assembler import SchemaReceived, UpdateAssembler
from tests.helpers.server_process import (
    FLIGHT,
    TIMEOUT_SECONDS,
    RawExchange,
    metadata_frame,
    raw_channel,
)

DRAFT = wire.WireRevision.DRAFT_2020
HEADERS = (("x-barrage-revision", "2020"),)


@pytest.fixture
def channel():
    with barrage.Server() as server, raw_channel(server.address) as opened:
        server.create_table("t", data={"x": list(range(10)), "y": ["a"] * 10})
        yield opened


@pytest.mark.parametrize("revision", list(wire.WireRevision))
def test_a_do_get_is_answered_in_the_revision_asked_for(channel, revision):
    request = flight_messages.encode_ticket(b"s/t")
    call = channel.unary_stream(FLIGHT + "DoGet")(
        request, metadata=(("x-barrage-revision", revision.value),), timeout=TIMEOUT_SECONDS
    )
    assembler = UpdateAssembler(revision=revision, is_viewport=False)
    schema, update = [assembler.receive_frame(wire.decode_flight_data(frame)) for frame in call]
    assert isinstance(schema, SchemaReceived)
    assert update.is_snapshot
    assert update.added_columns[0].to_pylist() == list(range(10))


def test_a_snapshot_request_of_the_draft(channel):
    request = wire.SnapshotRequest(ticket=b"s/t", columns=(1,), viewport=RowSet.of_span(8, 20))
    with RawExchange(channel, headers=HEADERS, revision=DRAFT) as exchange:
        exchange.send(metadata_frame(wire.encode_wrapper(request, DRAFT)))
        answer = exchange.read_update()
        assert answer.data_keys_post == RowSet.of_span(8, 10)
        assert [column.to_pylist() for column in answer.added_columns] == [[], ["a", "a"]]
