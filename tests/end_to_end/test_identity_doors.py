"""Every door with every proof: the status that is documented, and nothing left behind.

A method or an action that is not in the list fails a test: whoever adds one says here how it is
called.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import jwt
import pyarrow.flight as flight
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

import barrage
from barrage.errors import AuthenticationError
from barrage.limits import Limits
from barrage.server import ServerConfig
from barrage.server.access.call_guard import SessionUse
from barrage.server.identity.users_file import changing_users
from barrage.transport.flight_messages import encode_action
from barrage.wire.dissociated.ways import BodyWay
from tests.helpers.logging_in import basic
from tests.helpers.server_process import wait_until
from tests.helpers.token_issuer import AUDIENCE, ISSUER, Issuer
from tests.helpers.users import ALICE_PASSWORD, cheap_hashes, users_file

OK = grpc.StatusCode.OK
UNAUTHENTICATED = grpc.StatusCode.UNAUTHENTICATED
SCHEMA = {"x": "int64"}
HANG_SECONDS = 120

NO_CREDENTIALS = {
    "/arrow.flight.protocol.FlightService/Handshake",
    "/io.deephaven.proto.backplane.grpc.ConfigService/GetAuthenticationConstants",
}
"""Methods that look at credentials themselves, or tell how to log in. Health and reflection are
services of their own, without a guard."""

_DEEPHAVEN = "io.deephaven.proto.backplane"
METHODS = {
    "arrow.flight.protocol.FlightService": (
        "Handshake DoGet DoExchange DoPut ListFlights GetFlightInfo PollFlightInfo GetSchema "
        "DoAction ListActions"
    ),
    "io.deephaven.flightjs.protocol.BrowserFlightService": (
        "OpenDoPut NextDoPut OpenDoExchange NextDoExchange"
    ),
    f"{_DEEPHAVEN}.grpc.ConfigService": "GetAuthenticationConstants GetConfigurationConstants",
    f"{_DEEPHAVEN}.grpc.SessionService": (
        "NewSession RefreshSessionToken CloseSession Release ExportFromTicket PublishFromTicket "
        "TerminationNotification ExportNotifications"
    ),
    f"{_DEEPHAVEN}.grpc.ApplicationService": "ListFields",
    f"{_DEEPHAVEN}.grpc.TableService": (
        "FetchTable ApplyPreviewColumns EmptyTable TimeTable CreateInputTable View Select Update "
        "LazyUpdate UpdateView DropColumns SelectDistinct Head Tail HeadBy TailBy Ungroup Flatten "
        "UnstructuredFilter Filter Sort Slice Snapshot MergeTables NaturalJoinTables WhereIn "
        "Aggregate AggregateAll ComboAggregate MetaTable ComputeColumnStatistics UpdateBy "
        "CrossJoinTables ExactJoinTables LeftJoinTables AsOfJoinTables AjTables RajTables "
        "MultiJoinTables RangeJoinTables SnapshotWhen RunChartDownsample "
        "GetExportedTableCreationResponse SeekRow Batch ExportedTableUpdates"
    ),
    f"{_DEEPHAVEN}.grpc.InputTableService": "AddTableToInputTable DeleteTableFromInputTable",
    f"{_DEEPHAVEN}.script.grpc.ConsoleService": (
        "GetConsoleTypes StartConsole GetHeapInfo ExecuteCommand BindTableToVariable "
        "SubscribeToLogs"
    ),
    f"{_DEEPHAVEN}.grpc.StorageService": "ListItems FetchFile",
    f"{_DEEPHAVEN}.grpc.ObjectService": "FetchObject MessageStream",
}
"""Every method there is, by its service."""

ACTIONS = {
    "barrage.tables": (b"", OK),
    "barrage.describe": (b'{"table": "t"}', OK),
    "barrage.boards": (b"", OK),
    "barrage.board": (b'{"name": "none"}', grpc.StatusCode.NOT_FOUND),
    "barrage.save_board": (b"{}", grpc.StatusCode.INVALID_ARGUMENT),
    "barrage.drop_board": (b'{"name": "none"}', grpc.StatusCode.NOT_FOUND),
    "barrage.versions": (b"{}", grpc.StatusCode.INVALID_ARGUMENT),
    "barrage.set_cells": (b"{}", grpc.StatusCode.INVALID_ARGUMENT),
    "barrage.add_row": (b"{}", grpc.StatusCode.INVALID_ARGUMENT),
    "barrage.remove_row": (b"{}", grpc.StatusCode.INVALID_ARGUMENT),
    "barrage.relay": (b"", OK),
    "barrage.drop_table": (b'{"table": "none"}', grpc.StatusCode.NOT_FOUND),
    "barrage.create_table": (b"{}", grpc.StatusCode.INVALID_ARGUMENT),
    "barrage.bodies": (b"{}", OK),
    "journal.info": (b'{"table": "none"}', grpc.StatusCode.NOT_FOUND),
    "journal.bound": (b"{}", grpc.StatusCode.INVALID_ARGUMENT),
    "journal.version": (b"{}", grpc.StatusCode.INVALID_ARGUMENT),
    "journal.cursor": (b"{}", grpc.StatusCode.INVALID_ARGUMENT),
    "journal.release": (b'{"table": "none", "consumer": "c"}', OK),
    "stage.commit": (b"{}", grpc.StatusCode.INVALID_ARGUMENT),
    "stage.abort": (b"{}", grpc.StatusCode.INVALID_ARGUMENT),
    "barrage.set_log_level": (b"{}", grpc.StatusCode.INVALID_ARGUMENT),
    "barrage.trace": (b"{}", grpc.StatusCode.INVALID_ARGUMENT),
    "CancelFlightInfo": (b"", grpc.StatusCode.INVALID_ARGUMENT),
    "RenewFlightEndpoint": (b"", grpc.StatusCode.INVALID_ARGUMENT),
    "SetSessionOptions": (b"", OK),
    "GetSessionOptions": (b"", grpc.StatusCode.NOT_FOUND),
    "CloseSession": (b"", grpc.StatusCode.NOT_FOUND),
}
"""Every action there is: a body, and what it comes to for somebody who may call."""


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    made = Issuer()
    yield made
    made.close()


class Scene:
    """A server with every way but that of nobody."""

    def __init__(self, directory: Path, issuer: Issuer) -> None:
        self.users = users_file(directory / "users.jsonl")
        self.audit = directory / "audit.log"
        self.issuer = issuer
        config = ServerConfig(
            token="the-key",
            users=str(self.users),
            audit=str(self.audit),
            jwt_keys=issuer.uri,
            jwt_issuer=ISSUER,
            jwt_audience=AUDIENCE,
            jwt_leeway_s=0,
            bodies="shm",
            limits=Limits(key_set_pause_ns=0, login_failures_max=10_000),
        )
        self.server = barrage.Server(config=config).start()
        self.table = self.server.create_table("t", SCHEMA, data={"x": [1]})

    @property
    def methods(self) -> dict[str, tuple[str, SessionUse]]:
        """Full name, how it is called, and what it does with sessions, of every method."""
        return {
            f"/{service}/{name}": (entry.kind, entry.session)
            for service, methods in self.server._app._services.items()
            for name, entry in methods.items()
        }

    def token_of(self, user: str) -> str:
        with flight.connect(self.server.uri) as client:
            _, header = client.authenticate_basic_token(user, ALICE_PASSWORD)
        return header.decode()


@pytest.fixture(scope="module")
def scene(tmp_path_factory, issuer) -> Iterator[Scene]:
    with cheap_hashes():
        made = Scene(tmp_path_factory.mktemp("identity"), issuer)
        yield made
        made.server.stop()


def called(
    channel: grpc.Channel,
    method: str,
    kind: str,
    header: str | None,
    *,
    seconds: float = HANG_SECONDS,
) -> Any:
    """The status a method ends with when it is called with an empty message."""
    metadata = () if header is None else (("authorization", header),)
    options = {"metadata": metadata, "timeout": seconds}
    try:
        if kind == "unary":
            channel.unary_unary(method)(b"", **options)
        elif kind == "server_stream":
            for _ in channel.unary_stream(method)(b"", **options):
                break
        else:
            for _ in channel.stream_stream(method)(iter([]), **options):
                break
    except grpc.RpcError as error:
        return error.code()
    return OK


def wrong_credentials(scene: Scene) -> dict[str, str | None]:
    issuer, other = scene.issuer, ec.generate_private_key(ec.SECP256R1())
    [number] = issuer.keys
    claims = jwt.decode(issuer.token(), options={"verify_signature": False})
    hs = base64.urlsafe_b64encode(json.dumps({"alg": "HS256", "kid": number}).encode()).decode()
    return {
        "none": None,
        "anonymous": "Anonymous",
        "unreadable": "Basic !!!",
        "wrong key": "Bearer nope",
        "wrong password": basic("nope", "alice"),
        "unknown user": basic(ALICE_PASSWORD, "nobody"),
        "disabled user": basic(ALICE_PASSWORD, "carol"),
        "a token of ours that is none": "Bearer bt_" + "A" * 43,
        "jwt expired": f"Bearer {issuer.token(lives_s=-60)}",
        "jwt for another audience": f"Bearer {issuer.token(aud='other')}",
        "jwt of another issuer": f"Bearer {issuer.token(iss='https://other.example')}",
        "jwt without an end": f"Bearer {issuer.token(exp=None)}",
        "jwt without a user": f"Bearer {issuer.token(sub=None)}",
        "jwt of a key nobody knows": "Bearer "
        + jwt.encode(claims, other, algorithm="ES256", headers={"kid": "other"}),
        "jwt signed by another key": "Bearer "
        + jwt.encode(claims, other, algorithm="ES256", headers={"kid": number}),
        "jwt without a signature": "Bearer "
        + jwt.encode(claims, None, algorithm="none", headers={"kid": number}),
        "jwt signed with a secret": "Bearer "
        + jwt.encode(claims, "x" * 64, algorithm="HS256", headers={"kid": number}),
        "jwt that says it is": f"Bearer {hs.rstrip('=')}.e30.AAAA",
    }


def good_credentials(scene: Scene) -> dict[str, str]:
    return {
        "key": "Bearer the-key",
        "key as a password": basic("the-key", "anybody"),
        "key of a handler": "io.deephaven.authentication.psk.PskAuthenticationHandler the-key",
        "password": basic(ALICE_PASSWORD, "alice"),
        "token": scene.token_of("alice"),
        "jwt": f"Bearer {scene.issuer.token()}",
    }


def test_every_method_stands_behind_the_guard_and_is_known_here(scene):
    known = {f"/{service}/{name}" for service, names in METHODS.items() for name in names.split()}
    assert set(scene.methods) == known
    without = {name for name, (_, use) in scene.methods.items() if use is SessionUse.NONE}
    assert without == NO_CREDENTIALS


def test_nobody_gets_through_any_door(scene):
    refused = wrong_credentials(scene)
    with grpc.insecure_channel(scene.server.address) as channel:
        for method, (kind, _) in scene.methods.items():
            if method in NO_CREDENTIALS:
                continue
            # Every door with some of them, every one of them at some doors.
            for name in list(refused) if "Flight" in method else ["none", "wrong password"]:
                status = called(channel, method, kind, refused[name])
                assert status is UNAUTHENTICATED, (method, name, status)
    assert len(scene.server._app.sessions) == 0


@pytest.mark.parametrize(
    "name", ["key", "key as a password", "key of a handler", "password", "token", "jwt"]
)
def test_somebody_gets_through(scene, name):
    header = good_credentials(scene)[name]
    with grpc.insecure_channel(scene.server.address) as channel:
        for method, (kind, _) in scene.methods.items():
            if method in NO_CREDENTIALS:
                continue
            # Some of them answer when something happens; they are let wait for it.
            status = called(channel, method, kind, header, seconds=0.25)
            assert status is not UNAUTHENTICATED, method
    for session in scene.server._app.sessions:
        scene.server._loop.call_soon_threadsafe(scene.server._app.sessions.close, session)


def acted(scene: Scene, action: str, body: bytes, header: str | None) -> Any:
    """The status of an action."""
    metadata = () if header is None else (("authorization", header),)
    message = encode_action(action, body)
    with grpc.insecure_channel(scene.server.address) as channel:
        calls = channel.unary_stream("/arrow.flight.protocol.FlightService/DoAction")
        try:
            list(calls(message, metadata=metadata, timeout=HANG_SECONDS))
        except grpc.RpcError as error:
            return error.code()
    return OK


def test_every_action_is_known_here(scene):
    options = flight.FlightCallOptions(headers=[(b"authorization", b"Bearer the-key")])
    with flight.connect(scene.server.uri) as client:
        told = {each.type for each in client.list_actions(options=options)}
    assert told == set(ACTIONS)


@pytest.mark.parametrize("action", ACTIONS)
def test_actions_ask_who_calls(scene, action):
    body, status = ACTIONS[action]
    refused = wrong_credentials(scene)
    for name, header in refused.items():
        assert acted(scene, action, body, header) is UNAUTHENTICATED, name
    for name, header in good_credentials(scene).items():
        assert acted(scene, action, body, header) is status, name


def test_a_handshake_never_answers_with_a_secret(scene):
    with flight.connect(scene.server.uri) as client:
        _, header = client.authenticate_basic_token("anybody", "the-key")
        assert header.startswith(b"Bearer bt_")
        options = flight.FlightCallOptions(headers=[(b"authorization", header)])
        assert len(list(client.list_flights(options=options))) >= 1
        with pytest.raises(flight.FlightUnauthenticatedError):
            client.authenticate_basic_token("alice", "nope")
        with pytest.raises(flight.FlightUnauthenticatedError):
            list(client.list_flights())


# --- our own clients ---


@pytest.mark.parametrize(
    "auth",
    [
        barrage.Basic("alice", ALICE_PASSWORD),
        ("alice", ALICE_PASSWORD),
        barrage.Bearer("the-key"),
        barrage.PreSharedKey("the-key"),
        "the-key",
    ],
    ids=repr,
)
def test_our_clients_log_in(scene, auth):
    with barrage.connect(scene.server.uri, auth=auth) as session:
        assert session.table("t").snapshot()["x"].to_pylist() == [1]
        with session.table("t").subscribe().wait_ready(HANG_SECONDS) as live:
            assert len(live) == 1


def test_what_is_shown_of_credentials_is_no_secret():
    shown = [barrage.Basic("me", "hush"), barrage.Bearer("hush"), barrage.PreSharedKey("hush")]
    assert "hush" not in repr(shown)


def test_a_client_with_the_wrong_password_is_told_so(scene):
    with (
        pytest.raises(AuthenticationError, match="Authentication details invalid"),
        barrage.connect(scene.server.uri, auth=barrage.Basic("alice", "nope")) as session,
    ):
        session.tables()


def test_a_token_that_runs_out_is_followed_by_another_and_the_table_goes_on(scene):
    given = []

    def token() -> str:
        given.append(scene.issuer.token(lives_s=6))
        return given[-1]

    with barrage.connect(scene.server.uri, auth=barrage.Bearer(token)) as session:
        live = session.table("t").subscribe(resume="coalesced").wait_ready(HANG_SECONDS)
        wait_until(lambda: live.stats.reconnects >= 1, HANG_SECONDS)
        before = len(live.wait_ready(HANG_SECONDS))
        scene.table.add({"x": [2]})
        wait_until(lambda: len(live) > before, HANG_SECONDS)
        live.close()
    assert len(given) >= 2


def test_a_function_that_fails_is_told_without_its_words(scene):
    def token() -> str:
        raise ValueError("hush")

    with (
        pytest.raises(AuthenticationError, match="gives tokens failed: ValueError") as told,
        barrage.connect(scene.server.uri, auth=barrage.Bearer(token)) as session,
    ):
        session.tables()
    assert "hush" not in str(told.value)


# --- keys that change ---


def test_keys_of_the_issuer_change(tmp_path):
    issuer = Issuer()
    scene = Scene(tmp_path, issuer)
    try:
        old = issuer.token()
        with barrage.connect(scene.server.uri, auth=barrage.Bearer(old)) as session:
            assert session.tables()
        asked = issuer.asked
        with barrage.connect(scene.server.uri, auth=barrage.Bearer(issuer.token())) as session:
            assert session.tables()
        assert issuer.asked == asked, "the keys are known"
        issuer.rotate("second", "RS256")
        with barrage.connect(scene.server.uri, auth=barrage.Bearer(issuer.token())) as session:
            assert session.tables()
        with (
            pytest.raises(AuthenticationError),
            barrage.connect(scene.server.uri, auth=barrage.Bearer(old)) as session,
        ):
            session.tables()
    finally:
        scene.server.stop()
        issuer.close()


# --- users that change ---


@pytest.fixture
def own(tmp_path, issuer) -> Iterator[Scene]:
    made = Scene(tmp_path, issuer)
    yield made
    made.server.stop()


@pytest.mark.parametrize("change", ["removed", "disabled", "roles"])
def test_who_is_a_user_no_more_is_cut_off_everywhere_and_nobody_else(own, change):
    token = own.token_of("alice")
    with (
        barrage.connect(own.server.uri, auth=barrage.Basic("alice", ALICE_PASSWORD)) as session,
        barrage.connect(own.server.uri, auth=barrage.Basic("bob", ALICE_PASSWORD)) as others,
        grpc.insecure_channel(own.server.address) as channel,
    ):
        live = session.table("t").subscribe().wait_ready(HANG_SECONDS)
        other = others.table("t").subscribe().wait_ready(HANG_SECONDS)
        waiting = channel.unary_unary(
            "/io.deephaven.proto.backplane.grpc.SessionService/TerminationNotification"
        ).future(b"", metadata=(("authorization", token),))
        wait_until(lambda: len(own.server._app.sessions) == 1, HANG_SECONDS)
        with changing_users(own.users) as users:
            if change == "removed":
                del users["alice"]
            elif change == "disabled":
                users["alice"] = replace(users["alice"], is_disabled=True)
            else:
                users["alice"] = replace(users["alice"], roles=())
        wait_until(lambda: live.error is not None, HANG_SECONDS)
        assert isinstance(live.error, AuthenticationError)
        assert "removed or changed" in str(live.error)
        with pytest.raises(grpc.RpcError) as told:
            waiting.result(HANG_SECONDS)
        assert told.value.code() is UNAUTHENTICATED
        assert len(own.server._app.sessions) == 0
        status = called(
            channel, "/arrow.flight.protocol.FlightService/ListActions", *("server_stream", token)
        )
        assert status is UNAUTHENTICATED
        if change == "roles":
            assert session.tables(), "with the new roles"
        else:
            with pytest.raises(AuthenticationError):
                session.tables()
        own.table.add({"x": [3]})
        wait_until(lambda: len(other) == 2, HANG_SECONDS)
        assert other.stats.reconnects == 0
        live.close()
        other.close()


# --- body channels ---


def test_a_body_channel_is_its_callers_alone(own):
    app = own.server._app
    with barrage.connect(
        own.server.uri, auth=barrage.Basic("alice", ALICE_PASSWORD), bodies="shm"
    ) as session:
        session.table("t").subscribe().wait_ready(HANG_SECONDS)
        [channel] = app.bodies._channels._channels.values()
        assert channel.way is BodyWay.SHM
        assert channel.caller.name == "alice"


# --- what is kept of it ---


def calls_of(user: str, seen: Any) -> int:
    return sum(row["calls"] for row in seen.to_arrow().to_pylist() if row["user"] == user)


def test_callers_are_in_the_statistics(own):
    auth = barrage.Basic("alice", ALICE_PASSWORD)
    with (
        barrage.connect(own.server.uri, auth=auth) as session,
        session.table("t").subscribe().wait_ready(HANG_SECONDS),
    ):
        wait_until(lambda: "_callers" in [each.name for each in session.tables()], HANG_SECONDS)
        with session.table("_callers").subscribe().wait_ready(HANG_SECONDS) as seen:
            wait_until(lambda: calls_of("alice", seen) >= 2, HANG_SECONDS)


def test_the_audit_log_says_who_did_what_and_no_secret(own):
    with barrage.connect(own.server.uri, auth=barrage.Basic("alice", ALICE_PASSWORD)) as session:
        session.table("t").subscribe().wait_ready(HANG_SECONDS).close()
        session.table("t").where("x > 0").snapshot()
        session.put("t", {"x": [5]})
        session.put("made", {"y": [5]})
    with (
        pytest.raises(AuthenticationError),
        barrage.connect(own.server.uri, auth=barrage.Basic("eve", "hush hush")) as session,
    ):
        session.tables()
    own.server.stop()
    text = own.audit.read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    logins = [(each["user"], each["outcome"]) for each in lines if each["method"] == "login"]
    assert ("alice", "OK") in logins
    assert ("eve", "UNAUTHENTICATED") in logins
    done = {
        (each["method"].rpartition("/")[2], *each.get("tables", ()))
        for each in lines
        if each.get("user") == "alice" and each["method"] != "login"
    }
    assert ("DoExchange", "t") in done
    assert ("DoPut", "t") in done
    assert ("DoPut", "made") in done
    assert own.audit.stat().st_mode & 0o777 == 0o600
    for secret in (ALICE_PASSWORD, "hush hush", "the-key", "Basic ", "Bearer "):
        assert secret not in text
