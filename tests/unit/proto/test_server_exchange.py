"""The server's side of an exchange: declared transitions, refusals and the requests real clients
sent."""

from __future__ import annotations

import base64
import json
from itertools import product
from pathlib import Path

import pytest

from barrage.errors import LocalProtocolError, ProtocolError, RemoteProtocolError, StatusCode
from barrage.limits import Limits
from barrage.model.viewport import Viewport
from barrage.proto.events import (
    BodiesReleased,
    HalfClosed,
    RowsArrived,
    SessionRequested,
    SnapshotRequested,
    SubscriptionChanged,
    SubscriptionRequested,
    TransformRequested,
)
from barrage.proto.server_exchange import (
    TRANSITIONS,
    ExchangeInput,
    ExchangeState,
    ServerExchange,
)
from barrage.rowset import RowSet
from barrage.wire.flight_data import encode_flight_data
from barrage.wire.frame import FlightFrame
from barrage.wire.messages import (
    NewSessionRequest,
    OpaqueMessage,
    PublicationRequest,
    RefreshSessionRequest,
    SessionInfoResponse,
    SnapshotOptions,
    SnapshotRequest,
    SubscriptionOptions,
    SubscriptionRequest,
)
from barrage.wire.metadata import encode_wrapper
from barrage.wire.revision import WireRevision

VECTORS = Path(__file__).parents[2] / "vectors" / "barrage" / "conversations"
DESCRIPTOR = bytes.fromhex("0802120464706 86e".replace(" ", ""))
"""Descriptor of type CMD with command "dphn", which pyarrow-based clients send first."""


def frame(message=None, revision=WireRevision.R1_0_0, **fields) -> bytes:
    """FlightData bytes of a message."""
    metadata = None if message is None else encode_wrapper(message, revision)
    return encode_flight_data(FlightFrame(metadata=metadata, **fields))


BARE = frame(descriptor=DESCRIPTOR)
FULL = frame(SubscriptionRequest(ticket=b"s/t"))
VIEW = frame(SubscriptionRequest(ticket=b"s/t", viewport=RowSet.of_range(0, 9), columns=(0, 2)))
SNAPSHOT = frame(SnapshotRequest(ticket=b"s/t"))
RELEASED = frame(released=(64).to_bytes(8, "little") + (2**64 - 1).to_bytes(8, "little"))
TRANSFORM = frame(descriptor=b'\x08\x02\x12\x16{"transform": {"ops":[]}}')
SESSION = frame(NewSessionRequest(protocol_version=1), WireRevision.DRAFT_2020)


def exchange(*frames: bytes, **settings) -> ServerExchange:
    """An exchange that has received ``frames``."""
    made = ServerExchange("7", **settings)
    for each in frames:
        made.receive_frame(each)
    return made


def refused(made: ServerExchange, buffer: bytes, text: str) -> None:
    with pytest.raises(RemoteProtocolError, match=text) as caught:
        made.receive_frame(buffer)
    assert caught.value.status_code is StatusCode.INVALID_ARGUMENT
    assert made.state is ExchangeState.CLOSED


def test_a_subscription_request_is_an_event_with_everything_in_it() -> None:
    options = SubscriptionOptions(use_deephaven_nulls=True, batch_size=4096)
    request = SubscriptionRequest(
        ticket=b"s/small",
        columns=(0, 2),
        viewport=RowSet.of_range(0, 9),
        is_reverse=True,
        options=options,
        subscription_token=b"tok",
    )
    assert exchange().receive_frame(frame(request)) == [
        SubscriptionRequested(
            ticket=b"s/small",
            columns=(0, 2),
            viewport=Viewport(positions=RowSet.of_range(0, 9), is_reverse=True),
            is_reverse=True,
            options=options,
            token=b"tok",
        )
    ]


def test_a_request_may_carry_an_arrow_header_and_body_which_are_ignored() -> None:
    carried = frame(
        SubscriptionRequest(ticket=b"s/t"), descriptor=DESCRIPTOR, header=b"junk", body=b"12345678"
    )
    (event,) = exchange().receive_frame(carried)
    assert isinstance(event, SubscriptionRequested)


def test_one_message_without_metadata_may_precede_the_request() -> None:
    made = exchange(BARE)
    assert made.state is ExchangeState.GREETED
    (event,) = made.receive_frame(FULL)
    assert isinstance(event, SubscriptionRequested)
    assert made.state is ExchangeState.SUBSCRIBED_FULL


@pytest.mark.parametrize("second", [BARE, frame(), encode_flight_data(FlightFrame(metadata=b""))])
def test_a_second_message_without_metadata_is_refused(second: bytes) -> None:
    refused(exchange(BARE), second, r"DoExchangeMarshaller\{7\}: failed to receive Barrage request")


def test_a_wrong_magic_number_counts_as_no_metadata() -> None:
    metadata = encode_wrapper(SubscriptionRequest(ticket=b"s/t"), WireRevision.R1_0_0)
    foreign = encode_flight_data(
        FlightFrame(metadata=metadata.replace(b"dphn", bytes.fromhex("78563412")))
    )
    made = exchange(foreign)
    assert made.state is ExchangeState.GREETED
    refused(made, foreign, "failed to receive Barrage request metadata")


@pytest.mark.parametrize("number", [0, 1, 2, 3, -5])
def test_a_first_message_of_another_type_is_refused(number: int) -> None:
    refused(
        exchange(),
        frame(OpaqueMessage(message_type=number, payload=b"\0\0\0\0")),
        f"unhandled BarrageMessageType: {number}",
    )


def test_a_publication_request_is_refused() -> None:
    refused(exchange(), frame(PublicationRequest(ticket=b"s/t")), "unhandled BarrageMessageType: 8")


def test_the_drafts_session_messages_are_told_whatever_the_stream_is() -> None:
    made = ServerExchange(1, WireRevision.DRAFT_2020)
    assert made.revision is WireRevision.DRAFT_2020
    assert made.receive_frame(SESSION) == [SessionRequested()]
    refresh = frame(RefreshSessionRequest(session=b"s"), WireRevision.DRAFT_2020)
    assert made.receive_frame(refresh) == [SessionRequested(session=b"s")]
    # The answer is the server's to give.
    answer = frame(SessionInfoResponse(session_token=b"s"), WireRevision.DRAFT_2020)
    assert made.receive_frame(answer) == []
    request = SubscriptionRequest(ticket=b"s/t", viewport=RowSet.of_range(1, 2))
    (event,) = made.receive_frame(frame(request, WireRevision.DRAFT_2020))
    assert isinstance(event, SubscriptionRequested)
    assert made.receive_frame(SESSION) == [SessionRequested()]


def test_a_descriptor_begins_an_exchange_of_rows() -> None:
    made = ServerExchange(1)
    asked = TransformRequested(descriptor=b'\x08\x02\x12\x16{"transform": {"ops":[]}}')
    assert made.receive_frame(TRANSFORM) == [asked]
    # Whatever comes is rows from now on, a request of Barrage included.
    [event] = made.receive_frame(FULL)
    assert isinstance(event, RowsArrived)
    assert made.receive_half_close() == [HalfClosed()]
    schema_at_once = frame(descriptor=asked.descriptor, header=b"schema")
    first, second = ServerExchange(1).receive_frame(schema_at_once)
    assert first == asked
    assert isinstance(second, RowsArrived)
    assert second.frame.header == b"schema"
    # It is looked for at the beginning only.
    late = frame(descriptor=b" " * 64 + b'"transform"')
    assert ServerExchange(1).receive_frame(late) == []


def test_type_seven_of_the_draft_reads_the_drafts_option_table() -> None:
    made = ServerExchange(1, WireRevision.DRAFT_2020)
    options = SnapshotOptions(min_update_interval_ms=1000, batch_size=4096)
    request = SnapshotRequest(ticket=b"s/t", options=options)
    (event,) = made.receive_frame(frame(request, WireRevision.DRAFT_2020))
    assert isinstance(event, SnapshotRequested)
    assert event.options.batch_size == 4096
    assert event.options.max_message_size == 0


def test_a_change_looks_at_columns_and_viewport_only() -> None:
    made = exchange(VIEW)
    change = SubscriptionRequest(ticket=None, viewport=RowSet.of_range(5, 9), is_reverse=True)
    assert made.receive_frame(frame(change)) == [
        SubscriptionChanged(
            columns=None, viewport=Viewport(positions=RowSet.of_range(5, 9), is_reverse=True)
        )
    ]


@pytest.mark.parametrize(("first", "second"), [(FULL, VIEW), (FULL, FULL), (VIEW, FULL)])
def test_full_and_viewport_do_not_change_into_each_other(first: bytes, second: bytes) -> None:
    refused(exchange(first), second, "cannot change from full subscription to viewport or vice")


@pytest.mark.parametrize(
    ("first", "second", "name"),
    [
        (VIEW, SNAPSHOT, "BarrageSubscriptionRequest"),
        (FULL, frame(PublicationRequest()), "BarrageSubscriptionRequest"),
        (SNAPSHOT, VIEW, "BarrageSnapshotRequest"),
    ],
)
def test_the_type_of_a_stream_is_fixed_by_its_first_request(
    first: bytes, second: bytes, name: str
) -> None:
    refused(exchange(first), second, f"Request type cannot be changed .* expected {name} metadata")


def test_a_second_snapshot_request_is_refused() -> None:
    refused(exchange(SNAPSHOT), SNAPSHOT, "only one snapshot request")


@pytest.mark.parametrize(
    ("ticket", "text"), [(None, "Ticket not specified."), (b"", "Ticket has zero bytes")]
)
def test_a_request_needs_a_ticket(ticket: bytes | None, text: str) -> None:
    refused(exchange(), frame(SubscriptionRequest(ticket=ticket)), text)
    refused(exchange(), frame(SnapshotRequest(ticket=ticket)), text)


def test_the_first_half_close_is_an_event() -> None:
    assert exchange().receive_half_close() == [HalfClosed()]
    assert exchange(BARE).receive_half_close() == [HalfClosed()]
    made = exchange(SNAPSHOT)
    assert made.receive_half_close() == [HalfClosed()]
    assert made.state is ExchangeState.FINISHING
    assert made.receive_half_close() == []
    refused(made, SNAPSHOT, "message after the client's half-close")


def test_nothing_comes_to_a_closed_exchange() -> None:
    made = exchange()
    made.receive_half_close()
    assert made.receive_half_close() == []
    with pytest.raises(LocalProtocolError):
        made.receive_frame(VIEW)


def test_a_message_over_the_limit_is_refused_and_one_at_the_limit_is_not() -> None:
    limits = Limits(message_bytes_max=len(FULL))
    assert exchange(FULL, limits=limits).state is ExchangeState.SUBSCRIBED_FULL
    longer = frame(SubscriptionRequest(ticket=b"s/t"), body=b"")
    refused(exchange(limits=limits), longer, "the limit is")


REACH = {
    ExchangeState.OPENED: [],
    ExchangeState.GREETED: [BARE],
    ExchangeState.SUBSCRIBED_FULL: [FULL],
    ExchangeState.SUBSCRIBED_VIEWPORT: [VIEW],
    ExchangeState.SNAPSHOT_REQUESTED: [SNAPSHOT],
    ExchangeState.TRANSFORMING: [TRANSFORM],
    ExchangeState.FINISHING: [FULL, "half_close"],
    ExchangeState.CLOSED: ["half_close"],
}
STIMULI = {
    ExchangeInput.BARE_FRAME: BARE,
    ExchangeInput.SESSION_FRAME: SESSION,
    ExchangeInput.FULL_SUBSCRIPTION: FULL,
    ExchangeInput.VIEWPORT_SUBSCRIPTION: VIEW,
    ExchangeInput.SNAPSHOT: SNAPSHOT,
    ExchangeInput.TRANSFORM: TRANSFORM,
    ExchangeInput.ROWS: frame(header=b"rows"),
    ExchangeInput.UNHANDLED_TYPE: frame(OpaqueMessage(message_type=8, payload=b"\0\0\0\0")),
    ExchangeInput.RELEASED_BODIES: RELEASED,
    ExchangeInput.HALF_CLOSE: "half_close",
}


def feed(made: ServerExchange, stimulus) -> list:
    if stimulus == "half_close":
        return made.receive_half_close()
    return made.receive_frame(stimulus)


def seen(state: ExchangeState, stimulus: ExchangeInput, has_body_channel: bool) -> ExchangeInput:
    """What a message is taken for: rows are told from other messages by where the stream stands,
    and so is what asks for a transform."""
    if stimulus is ExchangeInput.RELEASED_BODIES:
        if has_body_channel:
            return stimulus
        stimulus = ExchangeInput.BARE_FRAME
    if state is ExchangeState.TRANSFORMING and stimulus is not ExchangeInput.HALF_CLOSE:
        return ExchangeInput.ROWS
    is_first = state is ExchangeState.OPENED
    if stimulus is ExchangeInput.ROWS or (stimulus is ExchangeInput.TRANSFORM and not is_first):
        return ExchangeInput.BARE_FRAME
    return stimulus


@pytest.mark.parametrize("has_body_channel", [False, True])
@pytest.mark.parametrize(
    ("state", "stimulus"), list(product(ExchangeState, ExchangeInput)), ids=str
)
def test_every_pair_is_a_declared_transition_or_an_error_that_closes(
    state: ExchangeState, stimulus: ExchangeInput, has_body_channel: bool
) -> None:
    made = ServerExchange(1, WireRevision.DRAFT_2020)
    if has_body_channel:
        made.claim_body_channel()
    for each in REACH[state]:
        feed(made, each)
    assert made.state is state
    declared = TRANSITIONS.get((state, seen(state, stimulus, has_body_channel)))
    if declared is None:
        with pytest.raises(ProtocolError):
            feed(made, STIMULI[stimulus])
        assert made.state is ExchangeState.CLOSED
    else:
        feed(made, STIMULI[stimulus])
        assert made.state is declared


# --- bodies outside the stream --------------------------------------------------------------------


class TestReleases:
    def claimed(self, *before: bytes) -> ServerExchange:
        made = ServerExchange(1)
        made.claim_body_channel()
        for each in before:
            feed(made, each)
        return made

    @pytest.mark.parametrize("before", [(), (BARE,), (FULL,), (VIEW,), (SNAPSHOT,)])
    def test_they_may_come_at_any_time_and_change_nothing(self, before: tuple[bytes, ...]) -> None:
        made = self.claimed(*before)
        state = made.state
        assert made.receive_frame(RELEASED) == [BodiesReleased(ids=(64, 2**64 - 1))]
        assert made.state is state

    def test_the_request_may_follow_them(self) -> None:
        made = self.claimed(RELEASED, BARE, RELEASED)
        (event,) = made.receive_frame(FULL)
        assert isinstance(event, SubscriptionRequested)

    def test_without_a_channel_they_are_bare_messages(self) -> None:
        made = ServerExchange(1)
        assert made.receive_frame(RELEASED) == []
        assert made.state is ExchangeState.GREETED
        with pytest.raises(RemoteProtocolError, match="failed to receive Barrage request"):
            made.receive_frame(RELEASED)

    def test_after_the_half_close_nothing_comes(self) -> None:
        made = self.claimed(FULL, "half_close")
        with pytest.raises(RemoteProtocolError, match="after the client's half-close"):
            made.receive_frame(RELEASED)
        assert made.state is ExchangeState.CLOSED

    @pytest.mark.parametrize("released", [b"", b"1234567", b"123456789"])
    def test_junk_in_the_field_closes_the_exchange(self, released: bytes) -> None:
        made = self.claimed(FULL)
        with pytest.raises(RemoteProtocolError, match="list of addresses"):
            made.receive_frame(frame(released=released))
        assert made.state is ExchangeState.CLOSED

    def test_their_number_is_limited(self) -> None:
        made = ServerExchange(1, limits=Limits(body_ranges_max=2))
        made.claim_body_channel()
        assert len(made.receive_frame(RELEASED)[0].ids) == 2
        with pytest.raises(RemoteProtocolError, match="limit is 2"):
            made.receive_frame(frame(released=bytes(24)))

    def test_a_request_that_also_releases_is_a_request(self) -> None:
        message = SubscriptionRequest(ticket=b"s/t")
        (event,) = self.claimed().receive_frame(frame(message, released=bytes(8)))
        assert isinstance(event, SubscriptionRequested)


# --- recorded conversations -----------------------------------------------------------------------

CONVERSATIONS = [
    pytest.param(conversation, id=f"{path.stem}:{conversation['name']}")
    for path in sorted(VECTORS.glob("*.json"))
    for conversation in json.loads(path.read_text())["conversations"]
    if conversation["rpc"] == "DoExchange"
]

REFUSED_REQUESTS = {
    "empty-ticket": "Ticket has zero bytes",
    "missing-ticket": "Ticket not specified.",
    "first-message-type-0-none": "unhandled BarrageMessageType: 0",
    "first-message-type-1-reserved-1": "unhandled BarrageMessageType: 1",
    "first-message-type-4-serialization-options": "unhandled BarrageMessageType: 4",
    "first-message-type-8-publication": "unhandled BarrageMessageType: 8",
    "wrong-magic-twice": "failed to receive Barrage request metadata",
    "two-empty-messages": "failed to receive Barrage request metadata",
    "no-payload": "Subscription request not supplied",
    "type-change": "Request type cannot be changed after initialization, expected "
    "BarrageSubscriptionRequest metadata",
    "zero-length-viewport": "",
    "malformed-viewport": "",
    "snapshot-zero-length-viewport": "",
    "full-to-viewport": "cannot change from full subscription to viewport or vice versa",
    "full-to-other-columns": "cannot change from full subscription to viewport or vice versa",
    "viewport-to-full": "cannot change from full subscription to viewport or vice versa",
    "first-message-type-6-update-metadata": "",
}
"""Conversations in which the exchange itself refuses something, with the text it uses."""


def raw_frame(message: dict) -> bytes:
    """The recorded FlightData, byte for byte."""
    names = {1: "flight_descriptor", 2: "data_header", 3: "app_metadata", 1000: "data_body"}
    parts = []
    for number in message["field_order"]:
        content = base64.b64decode(message.get(names[number], ""))
        tag = {1: b"\x0a", 2: b"\x12", 3: b"\x1a", 1000: b"\xc2\x3e"}[number]
        length = b""
        rest = len(content)
        while rest >= 0x80:
            length += bytes([rest & 0x7F | 0x80])
            rest >>= 7
        parts += [tag, length + bytes([rest]), content]
    return b"".join(parts)


def expected_event(decoded: dict):
    """The fields a request event must have, from the recording's own decoding."""
    request = decoded.get("subscription_request") or decoded["snapshot_request"]
    viewport = None if request["viewport"] is None else RowSet.parse(request["viewport"])
    columns = None if request["columns"] is None else tuple(request["columns"])
    return viewport, request["reverse_viewport"], columns, bytes.fromhex(request["ticket"])


def check_event(event, decoded: dict) -> None:
    viewport, is_reverse, columns, ticket = expected_event(decoded)
    assert event.columns == columns
    assert (None if event.viewport is None else event.viewport.positions) == viewport
    if event.viewport is not None:
        assert event.viewport.is_reverse == is_reverse
    if not isinstance(event, SubscriptionChanged):
        assert event.ticket == ticket
        assert event.is_reverse == is_reverse
        options = decoded[
            "subscription_request" if decoded["msg_type"] == 5 else "snapshot_request"
        ]["options"]
        for name, value in (options or {}).items():
            assert getattr(event.options, name) == value


@pytest.mark.parametrize("conversation", CONVERSATIONS)
def test_what_real_clients_sent_gives_the_recorded_requests(conversation: dict) -> None:
    made = ServerExchange(1)
    refusal = None
    requests = 0
    for message in conversation["messages"]:
        if message["dir"] != "c2s" or refusal is not None:
            continue
        try:
            if message.get("half_close"):
                events = made.receive_half_close()
            elif message.get("cancel"):
                break
            else:
                events = made.receive_frame(raw_frame(message))
        except RemoteProtocolError as error:
            refusal = str(error)
            continue
        for event in events:
            if not isinstance(event, HalfClosed):
                check_event(event, message["decoded"])
                requests += 1
    if conversation["name"] in REFUSED_REQUESTS:
        assert REFUSED_REQUESTS[conversation["name"]] in refusal
        return
    assert refusal is None
    assert requests or conversation["name"] == "wrong-magic"
