"""Every proof, none, wrong, expired, revoked, for somebody else, allowed and not allowed, at every
door: the status that docs/security.md says, and nothing left behind."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import grpc
import pyarrow as pa
import pyarrow.flight as flight
import pytest

import barrage
from barrage import Policy, Rule
from barrage.limits import Limits
from barrage.proto.connector.source_session import SourceEvent, WorkerFailed
from barrage.server import ServerConfig
from barrage.server.identity.caller import Caller, Proof
from barrage.server.identity.users_file import changing_users
from barrage.server.identity.ways import Login, User
from barrage.server.policy.rules import Operation
from barrage.transport.deephaven_messages import SESSION_SERVICE
from barrage.transport.flight_messages import FLIGHT, Descriptor
from tests.end_to_end.test_ways_in import WAYS, status_of_page
from tests.helpers.certificates import DAY, authority
from tests.helpers.connector_source import SocketSource
from tests.helpers.logging_in import basic
from tests.helpers.server_process import wait_until
from tests.helpers.shown_calls import (
    RESULT,
    Peer,
    Request,
    acted,
    deephaven,
    got,
    info,
    put,
    snapshot,
    subscription,
    ticket,
)
from tests.helpers.token_issuer import AUDIENCE, ISSUER, Issuer
from tests.helpers.users import ALICE_PASSWORD, users_file

PAGE = Path(__file__).parents[2] / "docs" / "security.md"
CASES = ("none", "wrong", "expired", "revoked", "other audience", "allowed", "not allowed")
OWN, HIDDEN = "own", "hidden"
KEY, HUSH = "the-key", "from the vault"
NOT_SHOWN = "Anonymous"
"""What calls of sessions say where nothing need be said, or the connection says it."""
HANG_SECONDS = 120
RULES = Policy.of(Rule(tables=(OWN,), allow=frozenset(Operation)))

DOORS: dict[str, Callable[[str], Request]] = {
    "a table by name": lambda name: info("GetFlightInfo", Descriptor(path=(name,))),
    "a table by name, its rows": lambda name: got(b"s/" + name.encode()),
    "a table by name, a snapshot": snapshot,
    "a table by name, a subscription": subscription,
    "a query": lambda name: got(b"q/" + json.dumps({"table": name}).encode()),
    "exports": lambda name: deephaven(
        *(SESSION_SERVICE, "ExportFromTicket", "ExportRequest"),
        source_id=ticket(b"s/" + name.encode()),
        result_id=ticket(RESULT),
    ),
    "uploads": lambda name: put(name, keys=(), mode="append"),
    "dropped": lambda name: acted("barrage.drop_table", table=name),
    "staged batches, as of Spark's sink": lambda name: acted(
        "stage.abort", table=name, writer="w", batch=0
    ),
    "journals: changes, time travel, replay, Spark's source": lambda name: acted(
        "journal.info", table=name
    ),
    "lists of tables": lambda _: Request(FLIGHT + "ListFlights", kind="server_stream"),
}
"""A call of each, by its row of the page."""


def rows_of_page() -> dict[str, dict[str, str]]:
    section = PAGE.read_text().partition("## Proofs and answers")[2].partition("\n## ")[0]
    lines = [line.strip("|\n") for line in section.splitlines() if line.startswith("| ")]
    cells = [[cell.strip(" `") for cell in line.split("|")] for line in lines]
    assert tuple(cells[0][1:]) == CASES
    return {row[0]: dict(zip(CASES, row[1:], strict=True)) for row in cells[1:]}


ROWS = rows_of_page()


class Scene:
    """A server, what is shown to it in each case, and the address it is called at."""

    def __init__(self, server: barrage.Server, shown: dict[str, str | None]) -> None:
        self.server = server
        self.shown = shown
        """A header by case; no case where it makes no sense."""
        self.channels: dict[str, grpc.ChannelCredentials] = {}
        """How to connect in some cases, over TLS."""
        server.create_table(OWN, pa.schema({"x": pa.int64()}))
        server.create_table(HIDDEN, {"canary": "string"}, data={"canary": ["Canary"]})

    @contextmanager
    def peer(self, case: str) -> Iterator[Peer]:
        options = [("grpc.use_local_subchannel_pool", 1)]
        if case in self.channels:
            channel = grpc.secure_channel(self.server.address, self.channels[case], options)
        else:
            channel = grpc.insecure_channel(self.server.address, options)
        with channel:
            yield Peer(channel, self.shown.get(case))

    def what_is_there(self) -> tuple[int, int, list[str]]:
        app = self.server._app
        tables = sorted(
            name for name in self.server._parts.catalog.listing() if not name.startswith("_")
        )
        return len(app._authenticator.calls), len(app.sessions), tables


def with_not_allowed(**shown: str | None) -> dict[str, str | None]:
    """What is allowed for one table is not for another."""
    named = {name.replace("_", " "): header for name, header in shown.items()}
    return {**named, "not allowed": named["allowed"]}


def token_of(server: barrage.Server, user: str) -> str:
    with flight.connect(server.uri) as client:
        _, header = client.authenticate_basic_token(user, ALICE_PASSWORD)
    return header.decode()


@contextmanager
def serving(directory: Path, **settings) -> Iterator[barrage.Server]:
    hook = settings.pop("authenticate", None)
    # Each door is tried with what is wrong: nobody waits for that here.
    limits = Limits(key_set_pause_ns=0, login_failures_max=10_000)
    settings |= {"journal": "memory", "connector": "127.0.0.1:0", "limits": limits}
    config = ServerConfig(**settings)
    with barrage.Server(config=config, policy=RULES, authenticate=hook) as server:
        yield server


@contextmanager
def nothing(directory: Path) -> Iterator[Scene]:
    with serving(directory) as server:
        yield Scene(server, with_not_allowed(none=NOT_SHOWN, allowed=NOT_SHOWN))


@contextmanager
def key(directory: Path) -> Iterator[Scene]:
    with serving(directory, token=KEY) as server:
        shown = with_not_allowed(none=None, wrong="Bearer nope", allowed=f"Bearer {KEY}")
        yield Scene(server, shown)


@contextmanager
def password(directory: Path) -> Iterator[Scene]:
    users = users_file(directory / "users")
    with serving(directory, users=str(users)) as server:
        shown = with_not_allowed(
            none=None,
            wrong=basic("nope", "alice"),
            revoked=basic(ALICE_PASSWORD, "bob"),
            allowed=basic(ALICE_PASSWORD, "alice"),
        )
        made = Scene(server, shown)
        with made.peer("revoked") as bob:
            assert bob.ask(DOORS["lists of tables"](OWN)).status is grpc.StatusCode.OK
            with changing_users(users) as there:
                del there["bob"]
            wait_until(lambda: refuses(bob), HANG_SECONDS)
        yield made


def refuses(peer: Peer) -> bool:
    status = peer.ask(DOORS["lists of tables"](OWN)).status
    return status is grpc.StatusCode.UNAUTHENTICATED


@contextmanager
def token(directory: Path) -> Iterator[Scene]:
    users = users_file(directory / "users")
    with (
        serving(directory, users=str(users)) as server,
        serving(directory, users=str(users)) as other,
    ):
        tokens = server._app._authenticator.tokens
        past = Caller(name="alice", proof=Proof.PASSWORD, expires_ns=1)
        shown = with_not_allowed(
            none=None,
            wrong="Bearer bt_" + "A" * 43,
            expired=f"Bearer {tokens.issue(past)}",
            revoked=token_of(server, "bob"),
            other_audience=token_of(other, "alice"),
            allowed=token_of(server, "alice"),
        )
        made = Scene(server, shown)
        with made.peer("revoked") as bob:
            assert bob.ask(DOORS["lists of tables"](OWN)).status is grpc.StatusCode.OK
            with changing_users(users) as there:
                del there["bob"]
            wait_until(lambda: refuses(bob), HANG_SECONDS)
        yield made


@contextmanager
def json_web_token(directory: Path) -> Iterator[Scene]:
    issuer = Issuer()
    settings = {"jwt_keys": issuer.uri, "jwt_issuer": ISSUER, "jwt_audience": AUDIENCE}
    try:
        with serving(directory, jwt_leeway_s=0, **settings) as server:
            before = issuer.token()
            issuer.rotate("second")
            shown = with_not_allowed(
                none=None,
                wrong="Bearer " + issuer.token()[:-8] + "AAAAAAAA",
                expired=f"Bearer {issuer.token(lives_s=-60)}",
                revoked=f"Bearer {before}",
                other_audience=f"Bearer {issuer.token(aud='another')}",
                allowed=f"Bearer {issuer.token()}",
            )
            yield Scene(server, shown)
    finally:
        issuer.close()


@contextmanager
def certificate(directory: Path) -> Iterator[Scene]:
    ca, other = authority(), authority("another")
    revoked = ca.for_client("bob")
    (directory / "revoked.pem").write_bytes(ca.revokes(revoked))
    cert, private = ca.for_localhost().write(directory, "server")
    files = {"tls_cert": cert, "tls_key": private, "tls_client_ca": ca.write(directory)}
    alice = ca.for_client("alice")
    pairs = {
        "wrong": other.for_client("alice"),
        "expired": ca.for_client("alice", starts=-2 * DAY, ends=-DAY),
        "revoked": revoked,
        # Of a server.
        "other audience": ca.for_localhost("alice"),
        "allowed": alice,
        "not allowed": alice,
    }
    with serving(directory, tls_crl=str(directory / "revoked.pem"), **files) as server:
        made = Scene(server, dict.fromkeys(pairs, NOT_SHOWN))
        for case, pair in pairs.items():
            made.channels[case] = grpc.ssl_channel_credentials(
                ca.certificate, pair.key, pair.certificate
            )
        made.channels["none"] = grpc.ssl_channel_credentials(ca.certificate)
        yield made


@contextmanager
def unix_user(directory: Path) -> Iterator[Scene]:
    with serving(directory, host=f"unix://{directory}/socket", unix_peers=True) as server:
        yield Scene(server, with_not_allowed(allowed=NOT_SHOWN))


@contextmanager
def function(directory: Path) -> Iterator[Scene]:
    def who(login: Login) -> User | None:
        ends = {"ended": 1, HUSH: None}
        return User(name="robot", expires_ns=ends[login.secret]) if login.secret in ends else None

    with serving(directory, authenticate=who) as server:
        shown = with_not_allowed(
            none=None, wrong="Bearer nope", expired="Bearer ended", allowed=f"Bearer {HUSH}"
        )
        yield Scene(server, shown)


PROOFS = {
    "nothing": nothing,
    "pre-shared key": key,
    "password": password,
    "token of ours": token,
    "JWT": json_web_token,
    "client certificate": certificate,
    "user of a unix socket": unix_user,
    "a function of yours": function,
}


def test_every_proof_and_every_door_is_on_the_page():
    assert set(ROWS) == set(PROOFS)
    assert {door.partition(", its")[0].partition(", a ")[0] for door in DOORS} <= set(WAYS)


@pytest.fixture(scope="module")
def scenes(tmp_path_factory) -> Iterator[Callable[[str], Scene]]:
    """The one of each proof, made when it is asked for."""
    made: dict[str, Scene] = {}
    with ExitStack() as stack:

        def scene_of(name: str) -> Scene:
            if name not in made:
                directory = tmp_path_factory.mktemp("proof")
                made[name] = stack.enter_context(PROOFS[name](directory))
            return made[name]

        yield scene_of


FILLED = [(name, case) for name, row in ROWS.items() for case, cell in row.items() if cell]
CONNECTED = ("client certificate", "user of a unix socket")
"""Proofs of connections, not of what is shown on them."""


@pytest.mark.parametrize("name", PROOFS)
def test_a_cell_is_empty_where_there_is_nothing_to_show(scenes, name):
    scene = scenes(name)
    assert {case for of, case in FILLED if of == name} == set(scene.shown) | set(scene.channels)


@pytest.mark.parametrize(("name", "case"), FILLED)
def test_a_call_is_told_what_the_page_says(scenes, name, case):
    scene, wanted = scenes(name), ROWS[name][case]
    before = scene.what_is_there()
    with ExitStack() as stack:
        peer = stack.enter_context(scene.peer(case))
        for door, request_of in DOORS.items():
            is_allowed = case in ("allowed", "none") and wanted == "OK"
            request = request_of(OWN if case != "not allowed" else HIDDEN)
            outcome = peer.ask(request)
            assert outcome.status is status_wanted(wanted, door), (door, outcome)
            if not is_allowed:
                # Neither what is there, nor what was shown.
                assert b"canary" not in outcome.told.lower()
                assert (scene.shown.get(case) or KEY).encode() not in outcome.told
            if door == "dropped" and is_allowed:
                scene.server.create_table(OWN, pa.schema({"x": pa.int64()}))
    app = scene.server._app
    for session in list(app.sessions):
        assert wanted not in ("UNAUTHENTICATED", "handshake"), "nobody has a session"
        scene.server._loop.call_soon_threadsafe(app.sessions.close, session)
    wait_until(lambda: scene.what_is_there() == before, HANG_SECONDS)


def status_wanted(wanted: str, door: str) -> grpc.StatusCode:
    if wanted == "handshake":
        return grpc.StatusCode.UNAVAILABLE
    if not wanted.startswith("as its row"):
        return grpc.StatusCode[wanted]
    if door == "lists of tables":
        return grpc.StatusCode.OK
    return status_of_page(door.partition(", its")[0].partition(", a ")[0])


class _Watching(SocketSource):
    seen: list[SourceEvent]

    def receive(self) -> list[SourceEvent]:
        events = super().receive()
        self.seen.extend(events)
        return events


@pytest.mark.parametrize(("name", "case"), [each for each in FILLED if each[0] not in CONNECTED])
def test_a_source_is_told_what_the_page_says(scenes, name, case):
    scene, wanted = scenes(name), ROWS[name][case]
    cookie = cookie_of(scene.shown[case])
    watching = type("Watching", (_Watching,), {"seen": []})
    # Of who is let in, the rules are asked; "own" alone is for everybody, and has other columns.
    program = OWN if wanted == "OK" else HIDDEN
    error = {"OK": "takes no streams", "UNAUTHENTICATED": "bad cookie"}.get(
        wanted, "unknown program"
    )
    with pytest.raises((EOFError, ConnectionError)):
        watching(scene.server.connector_port, program, cookie=cookie).close()
    told = "".join(each.message for each in watching.seen if isinstance(each, WorkerFailed))
    assert error in told
    assert not cookie or cookie not in told


def cookie_of(header: str | None) -> str:
    if header in (None, NOT_SHOWN):
        return ""
    scheme, _, payload = header.partition(" ")
    if scheme != "Basic":
        return payload
    return base64.b64decode(payload).decode()
