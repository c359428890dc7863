"""Sessions of Deephaven clients over real sockets: logging in, tokens in headers and trailers,
exports, shared tables, and what happens to open calls when a session or the server ends."""

from __future__ import annotations

import base64
import contextlib
import datetime as dt
import threading
import uuid
from collections.abc import Iterator
from typing import Any

import grpc
import pyarrow as pa
import pyarrow.flight as flight
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

import barrage
from barrage import wire
from barrage.limits import Limits
from barrage.rowset import RowSet
from barrage.server.settings.config import ServerConfig
from barrage.server.tables.tickets import export_ticket
from barrage.transport import flight_messages
from barrage.transport.deephaven_messages import (
    APPLICATION_SERVICE,
    CONFIG_SERVICE,
    MESSAGES,
    SESSION_SERVICE,
    TABLE_SERVICE,
)
from barrage.transport.flight_messages import Descriptor
from tests.helpers.server_process import (
    FLIGHT,
    REVISION,
    TIMEOUT_SECONDS,
    RawExchange,
    metadata_frame,
    raw_channel,
    subscription_request,
    wait_until,
)
from tests.helpers.virtual_clock import VirtualClock

Status = grpc.StatusCode
ROWS = pa.table({"k": ["a", "b"], "d": pa.array([1, 2], pa.date32())})
DAYS = [dt.date(1970, 1, 2), dt.date(1970, 1, 3)]
CONFIGURATION = f"/{CONFIG_SERVICE}/GetConfigurationConstants"


class Peer:
    """A client that sends one authorization header and keeps the latest token, as all do."""

    def __init__(
        self, channel: grpc.Channel, header: str | None = "Anonymous", **more: str
    ) -> None:
        self.channel = channel
        self.header = header
        self.more = tuple((name.replace("_", "-"), value) for name, value in more.items())
        self.initial: dict[str, Any] = {}
        self.trailing: dict[str, Any] = {}

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        own = () if self.header is None else (("authorization", self.header),)
        return (*own, *self.more)

    def ask(self, path: str, request: bytes = b"") -> bytes:
        """A unary call; headers and trailers of the answer are kept."""
        call = self.channel.unary_unary(path).future(
            request, metadata=self.headers, timeout=TIMEOUT_SECONDS
        )
        try:
            return call.result()
        finally:
            self.initial = dict(call.initial_metadata() or ())
            self.trailing = dict(call.trailing_metadata() or ())
            token = self.initial.get("authorization") or self.trailing.get("authorization")
            self.header = token or self.header

    def status(self, path: str, request: bytes = b"") -> grpc.StatusCode:
        """How a unary call ends."""
        try:
            self.ask(path, request)
        except grpc.RpcError as error:
            return error.code()
        return Status.OK

    def login(self) -> Peer:
        self.ask(CONFIGURATION)
        assert self.header is not None
        assert uuid.UUID(self.header.removeprefix("Bearer "))
        return self

    def session(self, method: str, name: str = "HandshakeRequest", **tickets: bytes) -> None:
        """A method of SessionService with these tickets."""
        fields = {field: MESSAGES.new("Ticket", ticket=raw) for field, raw in tickets.items()}
        self.ask(f"/{SESSION_SERVICE}/{method}", MESSAGES.encode(name, **fields))

    def export(self, source: bytes, export_id: int) -> bytes:
        result = export_ticket(export_id)
        self.session("ExportFromTicket", "ExportRequest", source_id=source, result_id=result)
        return result

    def release(self, ticket: bytes) -> None:
        self.session("Release", "ReleaseRequest", id=ticket)

    def exchange(self, **options: Any) -> RawExchange:
        return RawExchange(self.channel, headers=self.headers, **options)

    def stream(self, path: str, request: bytes = b"") -> Any:
        """A call whose headers can be read before its first message; unary ones are streams of one
        message on the wire."""
        call = self.channel.unary_stream(path)
        return call(request, metadata=self.headers, timeout=TIMEOUT_SECONDS)

    def close(self) -> None:
        self.session("CloseSession")


def code_of(work: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        work()
    return caught.value.code(), caught.value.details()


def subscribe_to(ticket: bytes, *, viewport: RowSet | None = None) -> bytes:
    options = wire.SubscriptionOptions(min_update_interval_ms=10)
    request = wire.SubscriptionRequest(ticket=ticket, viewport=viewport, options=options)
    return metadata_frame(wire.encode_wrapper(request, REVISION))


@pytest.fixture
def server() -> Iterator[barrage.Server]:
    config = ServerConfig(
        session_lifetime_ms=1000, limits=Limits(export_wait_ns_max=300_000_000, sessions_max=20)
    )
    with barrage.Server(config=config) as running:
        running.create_table("ticks", data=ROWS)
        running.create_table("fixed", data=ROWS, kind="static")
        running._app.sessions._clock = VirtualClock(1)  # type: ignore[union-attr]
        yield running


@pytest.fixture
def channel(server: barrage.Server) -> Iterator[grpc.Channel]:
    with raw_channel(server.address) as opened:
        yield opened


@pytest.fixture
def peer(channel: grpc.Channel) -> Peer:
    return Peer(channel).login()


def advance(server: barrage.Server, milliseconds: int) -> None:
    server._app.sessions._clock.advance(milliseconds * 1_000_000)


# --- logging in ---


def test_the_first_call_opens_a_session_and_tells_what_clients_need(channel):
    peer = Peer(channel)
    answer = MESSAGES.decode("ConfigurationConstantsResponse", peer.ask(CONFIGURATION))
    told = {key: value.string_value for key, value in answer.config_values.items()}
    assert told["http.session.durationMs"] == "1000"
    assert {"deephaven.version", "barrage.version", "python.version"} <= told.keys()
    assert uuid.UUID(peer.initial["authorization"].removeprefix("Bearer "))


@pytest.mark.parametrize(
    ("secret", "expected"),
    [
        (None, "io.deephaven.auth.AnonymousAuthenticationHandler"),
        ("key", "io.deephaven.authentication.psk.PskAuthenticationHandler"),
    ],
)
def test_how_to_log_in_is_told_without_credentials(secret, expected):
    with barrage.Server(token=secret) as server, raw_channel(server.address) as channel:
        peer = Peer(channel, None)
        answer = peer.ask(f"/{CONFIG_SERVICE}/GetAuthenticationConstants")
        values = MESSAGES.decode("AuthenticationConstantsResponse", answer).config_values
        assert values["AuthHandlers"].string_value == expected
        assert peer.status(CONFIGURATION) is Status.UNAUTHENTICATED


@pytest.mark.parametrize(
    "header",
    [
        "Bearer key",
        "Basic " + base64.b64encode(b"me:key").decode(),
        "io.deephaven.authentication.psk.PskAuthenticationHandler key",
    ],
)
def test_a_server_with_a_token_takes_it_in_every_form(header):
    with barrage.Server(token="key") as server, raw_channel(server.address) as channel:
        server.create_table("t", data=ROWS)
        peer = Peer(channel, header).login()
        peer.export(b"s/t", 1)
        for wrong in ("Anonymous", header[:-2] + "x", f"Bearer {uuid.uuid4()}", None):
            assert Peer(channel, wrong).status(CONFIGURATION) is Status.UNAUTHENTICATED


def test_unknown_tokens_are_refused_by_every_call(channel):
    stranger = Peer(channel, f"Bearer {uuid.uuid4()}")
    for path in (CONFIGURATION, FLIGHT + "GetSchema", f"/{SESSION_SERVICE}/Release"):
        assert stranger.status(path) is Status.UNAUTHENTICATED
    with stranger.exchange() as exchange:
        code, text = exchange.status()
    assert code is Status.UNAUTHENTICATED
    assert text.startswith("Authentication details invalid")


def test_every_answer_carries_the_token(peer):
    token = peer.header
    peer.export(b"s/ticks", 1)
    assert peer.initial["authorization"] == token
    peer.ask(FLIGHT + "GetSchema", Descriptor(path=("ticks",)).encode())
    assert peer.initial["authorization"] == token
    call = peer.stream(FLIGHT + "DoGet", flight_messages.encode_ticket(b"s/ticks"))
    assert dict(call.initial_metadata())["authorization"] == token
    assert len(list(call)) == 2


def test_a_call_that_fails_carries_the_token_in_its_trailers_alone(peer):
    assert peer.status(f"/{SESSION_SERVICE}/Release") is not Status.OK
    assert "authorization" not in peer.initial
    assert peer.trailing["authorization"] == peer.header
    with peer.exchange() as exchange:
        exchange.send(subscribe_to(b"s/nope"))
        code, text = exchange.status()
        assert code is Status.NOT_FOUND
        assert "table 'nope' not found" in text
        assert "authorization" not in dict(exchange.call.initial_metadata())
        assert dict(exchange.call.trailing_metadata())["authorization"] == peer.header


def test_texts_have_no_colon_once_headers_are_out(server, peer):
    with peer.exchange() as exchange:
        exchange.send(subscribe_to(b"s/ticks"))
        exchange.read_update()
        assert dict(exchange.call.initial_metadata())["authorization"] == peer.header
        exchange.send(b"\xff\xff: nonsense")
        code, text = exchange.status()
    assert code is Status.INVALID_ARGUMENT
    assert text
    assert ":" not in text


# --- tokens ---


def test_tokens_are_replaced_and_the_one_before_still_works(server, peer):
    first = peer.header
    peer.ask(CONFIGURATION)
    assert peer.header == first
    advance(server, 200)
    peer.ask(CONFIGURATION)
    second = peer.header
    assert second != first
    late = Peer(peer.channel, first)
    assert late.status(CONFIGURATION) is Status.OK
    assert late.header == second


def test_a_session_nobody_uses_ends_and_takes_its_streams_along(server, peer):
    with peer.exchange() as exchange, peer.exchange() as silent:
        exchange.send(subscribe_to(b"s/ticks"))
        exchange.read_update()
        advance(server, 1000)
        assert exchange.status()[0] is Status.UNAUTHENTICATED
        assert silent.status()[0] is Status.UNAUTHENTICATED
    assert peer.status(CONFIGURATION) is Status.UNAUTHENTICATED
    wait_until(lambda: server._app.stream_count == 0)
    assert len(server._app.sessions) == 0


def test_sessions_are_bounded(channel):
    for _ in range(20):
        peer = Peer(channel)
        peer.login()
        assert peer.status(CONFIGURATION) is Status.OK
    assert Peer(channel).status(CONFIGURATION) is Status.RESOURCE_EXHAUSTED


def test_closing_a_session_ends_its_calls_each_in_its_way(server, peer):
    other = Peer(peer.channel).login()
    termination = peer.stream(f"/{SESSION_SERVICE}/TerminationNotification")
    assert dict(termination.initial_metadata())["authorization"] == peer.header
    fields = peer.stream(f"/{APPLICATION_SERVICE}/ListFields")
    next(fields)
    sizes = peer.stream(f"/{TABLE_SERVICE}/ExportedTableUpdates")
    assert dict(sizes.initial_metadata())["authorization"] == peer.header
    with peer.exchange() as exchange, other.exchange() as unconcerned:
        unconcerned.send(subscribe_to(b"s/ticks"))
        unconcerned.read_update()
        exchange.send(subscribe_to(peer.export(b"s/ticks", 1)))
        exchange.read_update()
        peer.close()
        assert exchange.status()[0] is Status.UNAUTHENTICATED
        ends = (
            (termination, Status.UNAUTHENTICATED),
            (fields, Status.CANCELLED),
            (sizes, Status.OK),
        )
        for call, code in ends:
            with contextlib.suppress(grpc.RpcError):
                list(call)
            assert call.code() is code
        assert peer.status(CONFIGURATION) is Status.UNAUTHENTICATED
        server.table("ticks").add(ROWS)
        assert unconcerned.read_update().added_keys_post


def test_a_stopping_server_says_so_to_everybody():
    with barrage.Server() as server, raw_channel(server.address) as channel:
        server.create_table("ticks", data=ROWS)
        peer = Peer(channel).login()
        termination = peer.stream(f"/{SESSION_SERVICE}/TerminationNotification")
        termination.initial_metadata()
        fields = peer.stream(f"/{APPLICATION_SERVICE}/ListFields")
        next(fields)
        with peer.exchange() as exchange:
            exchange.send(subscribe_to(b"s/ticks"))
            exchange.read_update()
            stopping = threading.Thread(target=server.stop)
            stopping.start()
            told = MESSAGES.decode("TerminationNotificationResponse", next(termination))
            assert "shutting down" in told.reason
            assert exchange.status()[0] is Status.UNAVAILABLE
            with contextlib.suppress(grpc.RpcError):
                list(fields)
            assert fields.code() is Status.UNAVAILABLE
            stopping.join()


def test_the_old_forms_of_logging_in_repeat_the_token(peer):
    answer = peer.ask(f"/{SESSION_SERVICE}/RefreshSessionToken")
    told = MESSAGES.decode("HandshakeResponse", answer)
    assert told.metadata_header == b"authorization"
    assert f"Bearer {told.session_token.decode()}" == peer.header
    assert told.token_expiration_delay_millis == 1000


def test_methods_and_services_that_do_not_exist(peer):
    assert peer.status(f"/{SESSION_SERVICE}/Invented") is Status.UNIMPLEMENTED
    notifications = peer.stream(f"/{SESSION_SERVICE}/ExportNotifications")
    assert code_of(lambda: next(notifications))[0] is Status.UNIMPLEMENTED


def test_malformed_requests_are_the_callers_mistake(peer):
    assert peer.status(f"/{SESSION_SERVICE}/Release", b"\xff\xff") is Status.INVALID_ARGUMENT
    assert peer.status(CONFIGURATION, b"\xff\xff") is Status.INVALID_ARGUMENT


# --- exports ---


def test_a_release_frees_the_number_and_leaves_what_was_made_from_it(server, peer):
    first = peer.export(b"s/ticks", 1)
    second = peer.export(first, 2)
    with peer.exchange() as exchange:
        exchange.send(subscribe_to(first))
        exchange.read_update()
        peer.release(first)
        peer.release(first)
        server.table("ticks").add(ROWS)
        assert len(exchange.read_update().added_keys_post) == 2
        assert code_of(lambda: peer.export(first, 3))[0] is Status.FAILED_PRECONDITION
        peer.export(second, 4)
    assert code_of(lambda: peer.release(export_ticket(9)))[0] is Status.UNAVAILABLE
    assert code_of(lambda: peer.export(b"s/ticks", 4))[0] is Status.INVALID_ARGUMENT


def test_an_export_may_be_used_before_it_is_made(server, peer):
    with peer.exchange() as exchange:
        exchange.send(subscribe_to(export_ticket(7)))
        peer.export(b"s/ticks", 7)
        assert len(exchange.read_update().added_keys_post) == 2
    with peer.exchange() as exchange:
        exchange.send(subscribe_to(export_ticket(8)))
        assert code_of(lambda: peer.export(b"s/nope", 8))[0] is Status.NOT_FOUND
        assert exchange.status()[0] is Status.NOT_FOUND


def test_an_export_nobody_makes_is_waited_for_not_for_ever(peer):
    stranger = Peer(peer.channel).login()
    peer.export(b"s/ticks", 7)
    for session, ticket in ((peer, export_ticket(8)), (stranger, export_ticket(7))):
        with session.exchange() as exchange:
            exchange.send(subscribe_to(ticket))
            code, text = exchange.status()
        assert code is Status.FAILED_PRECONDITION
        assert "was not defined" in text


def test_tables_are_shared_between_sessions(peer):
    stranger = Peer(peer.channel).login()
    exported = peer.export(b"s/ticks", 1)
    publish = {"source_id": exported, "result_id": b"h\x01\x02"}
    peer.session("PublishFromTicket", "PublishRequest", **publish)
    again = code_of(lambda: peer.session("PublishFromTicket", "PublishRequest", **publish))
    assert again[0] is Status.ALREADY_EXISTS
    with stranger.exchange() as exchange:
        exchange.send(subscribe_to(b"h\x01\x02"))
        assert len(exchange.read_update().added_keys_post) == 2
        peer.release(exported)
        assert code_of(lambda: stranger.export(b"h\x01\x02", 1))[0] is Status.NOT_FOUND


# --- reading ---


def test_half_closing_without_a_request_ends_the_call(peer):
    for opened in (peer.exchange(), RawExchange(peer.channel)):
        with opened as exchange:
            greeting = wire.FlightFrame(descriptor=Descriptor(command=b"dphn").encode())
            exchange.send(wire.encode_flight_data(greeting))
            exchange.half_close()
            assert exchange.status()[0] is Status.OK


def test_only_sessions_see_deephavens_types(peer):
    with RawExchange(peer.channel) as plain, peer.exchange() as shown:
        for exchange in (plain, shown):
            exchange.send(subscribe_to(b"s/ticks"))
        assert [c.type for c in plain.read_update().added_columns] == [pa.utf8(), pa.date32()]
        assert [c.type for c in shown.read_update().added_columns] == [pa.utf8(), pa.date64()]


def test_a_session_may_ask_for_the_types_of_the_ticking_client(channel):
    peer = Peer(channel, x_barrage_types="ticking").login()
    call = peer.stream(FLIGHT + "DoGet", flight_messages.encode_ticket(b"s/ticks"))
    assert len(list(call)) == 2
    wrong = Peer(channel, x_barrage_types="klingon")
    assert wrong.status(CONFIGURATION) is Status.UNIMPLEMENTED


def test_pyarrow_with_a_sessions_headers(server, peer):
    exported = peer.export(b"s/ticks", 5)
    options = flight.FlightCallOptions(
        headers=[(b"authorization", peer.header.encode())], timeout=TIMEOUT_SECONDS
    )
    with flight.connect(f"grpc://{server.address}") as client:
        for path in (("export", "5"), ("ticks",), ("app", "scope", "field", "ticks")):
            descriptor = flight.FlightDescriptor.for_path(*path)
            info = client.get_flight_info(descriptor, options)
            assert info.total_records == -1
            assert info.total_bytes == -1
            [endpoint] = info.endpoints
            assert endpoint.locations == []
            table = client.do_get(endpoint.ticket, options).read_all()
            assert table.to_pydict() == {"k": ["a", "b"], "d": DAYS}
            assert table.schema.field("d").metadata[b"deephaven:type"] == b"java.time.LocalDate"
            assert client.get_schema(descriptor, options).schema.equals(table.schema)
            assert info.schema.equals(table.schema, check_metadata=True)
        fixed = client.get_flight_info(flight.FlightDescriptor.for_path("scope", "fixed"), options)
        assert fixed.total_records == 2
        listed = {i.descriptor.path[0]: i for i in client.list_flights(options=options)}
        assert sorted(listed) == [b"fixed", b"ticks"]
        assert listed[b"ticks"].total_records == -1
        without = client.get_flight_info(flight.FlightDescriptor.for_path("ticks"))
        assert without.total_records == 2
        assert without.schema == ROWS.schema
        assert exported == export_ticket(5)


# --- the Flight handshake ---


class KeepToken(flight.ClientAuthHandler):
    """Sends a payload, keeps the token it is answered and sends that with every call."""

    def __init__(self, payload: bytes) -> None:
        super().__init__()
        self.payload = payload
        self.token = b""

    def authenticate(self, outgoing: Any, incoming: Any) -> None:
        outgoing.write(self.payload)
        self.token = incoming.read()

    def get_token(self) -> bytes:
        return self.token


def wrapped(kind: str, secret: bytes) -> bytes:
    return MESSAGES.encode("WrappedAuthenticationRequest", type=kind, payload=secret)


@pytest.mark.parametrize(
    ("payload", "is_good"),
    [
        (flight.BasicAuth("me", "key").serialize(), True),
        (wrapped("psk", b"key"), True),
        (wrapped("Bearer", b"key"), True),
        (flight.BasicAuth("me", "no").serialize(), False),
        (wrapped("psk", b"no"), False),
        (wrapped("Anonymous", b""), False),
        (b"", False),
    ],
)
def test_a_handshake_by_message(payload, is_good):
    with barrage.Server(token="key") as server, flight.connect(server.uri) as client:
        handler = KeepToken(payload)
        if not is_good:
            with pytest.raises(flight.FlightUnauthenticatedError):
                client.authenticate(handler)
            return
        client.authenticate(handler)
        assert handler.token != b"key"
        assert list(client.list_flights()) == []


def test_a_handshake_where_no_secret_is_needed_opens_a_session(server):
    with flight.connect(server.uri) as client:
        header = client.authenticate_basic_token("me", "anything")
        assert uuid.UUID(header[1].decode().removeprefix("Bearer "))
        options = flight.FlightCallOptions(headers=[header])
        assert len(list(client.list_flights(options=options))) == 2
        handler = KeepToken(wrapped("Anonymous", b""))
        client.authenticate(handler)
        assert uuid.UUID(handler.token.decode())
        assert len(list(client.list_flights())) == 2


# --- what is offered ---


def test_health_and_reflection_know_the_services(server, channel):
    known = ProtoReflectionDescriptorDatabase(channel).get_services()
    assert {SESSION_SERVICE, TABLE_SERVICE, APPLICATION_SERVICE, CONFIG_SERVICE} <= set(known)
    stub = health_pb2_grpc.HealthStub(channel)
    for service in (SESSION_SERVICE, TABLE_SERVICE):
        request = health_pb2.HealthCheckRequest(service=service)
        assert stub.Check(request).status == health_pb2.HealthCheckResponse.SERVING


def test_the_services_can_be_switched_off():
    config = ServerConfig(deephaven=False)
    with barrage.Server(config=config) as server, raw_channel(server.address) as channel:
        assert Peer(channel).status(CONFIGURATION) is Status.UNIMPLEMENTED
        with RawExchange(channel) as exchange:
            exchange.send(subscription_request("nope"))
            assert exchange.status()[0] is Status.NOT_FOUND


def test_nothing_is_left_of_a_session(server, peer):
    source = server.table("ticks")._table
    stream = peer.exchange()
    with stream as exchange:
        exchange.send(subscribe_to(peer.export(b"s/ticks", 1)))
        exchange.read_update()
        peer.session(
            "PublishFromTicket", "PublishRequest", source_id=export_ticket(1), result_id=b"hx"
        )
        assert len(source.live_children()) == 1
        peer.close()
        exchange.status()
    wait_until(lambda: source.live_children() == [])
    app, runtime = server._app, server._parts.runtime
    assert runtime._producers == {}
    assert len(app.sessions) == app.stream_count == app._resolver.shared_count == 0
