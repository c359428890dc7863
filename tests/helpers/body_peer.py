"""A raw client whose bodies come by shared memory: it sees where each body of a stream was, and
gives back what a test tells it to."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from barrage import wire
from barrage.rowset import RowSet
from barrage.transport import flight_messages
from barrage.transport.shared_memory import ArenaMapping, host_identity
from barrage.wire.dissociated.negotiation import ACTION, HEADER, Answer, Claim, ClaimOutcome, Offer
from barrage.wire.dissociated.references import BodyReference
from barrage.wire.dissociated.ways import BodyWay
from barrage.wire.updates.update_assembler import SchemaReceived
from tests.helpers.server_process import FLIGHT, TIMEOUT_SECONDS, RawExchange

if TYPE_CHECKING:
    import grpc

    from barrage.model.update import FullUpdate, ViewUpdate


def ask_for_channel(channel: grpc.Channel, offer: Offer | None = None) -> Answer:
    """The server's answer to an offer: shared memory of this host and user unless given."""
    if offer is None:
        offer = Offer(shm=host_identity(), order=(BodyWay.SHM,))
    request = flight_messages.encode_action(ACTION, offer.to_json())
    call = channel.unary_stream(FLIGHT + "DoAction")(request, timeout=TIMEOUT_SECONDS)
    (answer,) = call
    return Answer.from_json(flight_messages.decode_result(answer))


def claim_header(answer: Answer, proof: bytes | None) -> tuple[tuple[str, str], ...]:
    """The header of a stream that claims the channel."""
    return ((HEADER, Claim(channel_id=answer.channel_id, proof=proof).header()),)


def released(*ids: int) -> bytes:
    """The message that gives bodies back."""
    return wire.encode_flight_data(wire.FlightFrame(released=struct.pack(f"<{len(ids)}Q", *ids)))


class BodyExchange(RawExchange):
    """A stream that claimed a channel of shared memory. ``references`` are the bodies that came
    outside, ``inline_bytes`` the sizes of those that came in their messages."""

    def __init__(
        self,
        channel: grpc.Channel,
        *,
        mapping: ArenaMapping | None = None,
        headers: tuple[tuple[str, str], ...] | None = None,
        gives_back: bool = True,
        is_viewport: bool = False,
        revision: wire.WireRevision = wire.WireRevision.R1_0_0,
    ) -> None:
        """Without ``mapping`` or ``headers``, a channel of its own."""
        if headers is None:
            answer = ask_for_channel(channel)
            assert answer.arena is not None, answer.reason
            mapping = mapping or ArenaMapping.open(answer.arena)
            headers = claim_header(answer, mapping.proof())
        self.mapping = mapping
        self.gives_back = gives_back
        self.references: list[BodyReference] = []
        self.inline_bytes: list[int] = []
        if revision is not wire.WireRevision.R1_0_0:
            headers = (*headers, ("x-barrage-revision", revision.value))
        super().__init__(channel, headers=headers, is_viewport=is_viewport, revision=revision)

    def outcome(self) -> ClaimOutcome | None:
        """What the server says about the claim; None when it says nothing."""
        found = {key: value for key, value in self.call.initial_metadata()}
        return ClaimOutcome.parse(found[HEADER]) if HEADER in found else None

    def read_frame(self) -> wire.FlightFrame:
        """The next frame, with its body wherever it was."""
        frame = wire.decode_flight_data(self.read())
        if not frame.is_detached:
            if frame.body is not None:
                self.inline_bytes.append(len(frame.body))
            return frame
        assert frame.body_reference is not None
        assert self.mapping is not None
        reference = BodyReference.decode(frame.body_reference)
        self.references.append(reference)
        body: pa.Buffer = self.mapping.copy(reference)
        if self.gives_back:
            self.send(released(reference.address))
        return replace(frame, body=body, body_reference=None)

    def read_update(self) -> FullUpdate | ViewUpdate:
        while True:
            received = self.assembler.receive_frame(self.read_frame())
            if received is not None and not isinstance(received, SchemaReceived):
                return received


def read_rows(stream: RawExchange) -> pa.Array:
    """The first column of the next update that adds rows: a blink table's go away in another."""
    while True:
        column = stream.read_update().added_columns[0]
        if len(column):
            return column


def all_rows(count: int) -> RowSet:
    """Positions 0 to ``count`` - 1."""
    return RowSet.of_span(0, count)
