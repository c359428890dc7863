"""Sessions on a clock that stands still: tokens, rotation, expiry, what ends with a session."""

from __future__ import annotations

import base64
import contextlib
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrage.errors import AuthenticationError, LimitExceededError, TransportError
from barrage.limits import Limits
from barrage.server.identity.credentials import AUTH_TOKEN, Authenticator, CredentialKind, Credentials
from barrage.server.access.session_store import LIFETIME_NS, ROTATIONS_PER_LIFETIME, SessionStore
from tests.helpers.virtual_clock import VirtualClock

FIFTH_NS = LIFETIME_NS // ROTATIONS_PER_LIFETIME
ANONYMOUS = Credentials.of_header("Anonymous")


class Scene:
    """A store with a clock."""

    def __init__(self, secret: str | None = None, **limits: int) -> None:
        self.clock = VirtualClock(1_000_000)
        self.store = SessionStore(Limits(**limits), self.clock, Authenticator(secret))

    def find(self, token: str):
        return self.store.find(Credentials.of_header(f"Bearer {token}"))


@pytest.fixture
def scene() -> Scene:
    return Scene()


# --- credentials ---


def basic(password: str) -> str:
    return "Basic " + base64.b64encode(f"me:{password}".encode()).decode()


@pytest.mark.parametrize(
    ("header", "kind", "secret"),
    [
        ("Bearer abc", CredentialKind.TOKEN, "abc"),
        ("bearer  abc ", CredentialKind.TOKEN, "abc"),
        ("Bearer two words", CredentialKind.TOKEN, "two words"),
        ("Anonymous", CredentialKind.ANONYMOUS, ""),
        (basic("pass:word"), CredentialKind.SECRET, "pass:word"),
        ("Basic !!!", CredentialKind.UNREADABLE, ""),
        (
            "io.deephaven.authentication.psk.PskAuthenticationHandler key",
            CredentialKind.SECRET,
            "key",
        ),
        ("any.Other key", CredentialKind.SECRET, "key"),
        ("lonely", CredentialKind.SECRET, ""),
    ],
)
def test_what_a_header_shows(header, kind, secret):
    found = Credentials.of_metadata([("x", "y"), ("authorization", header)])
    assert found == Credentials(kind, secret)


@pytest.mark.parametrize("value", [b"abc", b"Bearer abc", "abc"])
def test_flight_clients_repeat_the_token_in_a_header_of_their_own(value):
    assert Credentials.of_metadata([(AUTH_TOKEN, value)]) == Credentials(
        CredentialKind.TOKEN, "abc"
    )


@given(st.text(max_size=40) | st.text(max_size=20).map("Basic {}".format))
def test_any_header_is_good_or_refused(header):
    credentials = Credentials.of_header(header)
    for secret in (None, "key"):
        with contextlib.suppress(AuthenticationError):
            Authenticator(secret).check(credentials)
            assert secret is None or credentials.secret == "key"


def test_an_empty_header_shows_nothing():
    assert Credentials.of_metadata([("authorization", " ")]) is None
    assert Credentials.of_metadata([]) is None


def test_secrets_are_not_printed():
    assert "abc" not in repr(Credentials.of_header("Bearer abc"))


@pytest.mark.parametrize("header", ["Bearer key", basic("key"), "psk key"])
def test_the_servers_secret_opens_a_session_in_every_form(header):
    scene = Scene("key")
    session = scene.store.open(Credentials.of_header(header))
    assert scene.find(session.token) is session


@pytest.mark.parametrize("header", ["Bearer no", basic("no"), "psk no", "Anonymous", "psk", ""])
def test_a_wrong_secret_opens_none(header):
    scene = Scene("key")
    with pytest.raises(AuthenticationError):
        scene.store.open(Credentials.of_metadata([("authorization", header)]))
    assert len(scene.store) == 0


@pytest.mark.parametrize("header", ["Anonymous", basic("any"), "psk any"])
def test_a_server_without_a_secret_takes_everybody(scene, header):
    assert scene.store.open(Credentials.of_header(header)).types == "deephaven"


def test_but_no_token_that_it_has_not_given_out(scene):
    unknown = Credentials.of_header(f"Bearer {uuid.uuid4()}")
    assert scene.store.find(unknown) is None
    with pytest.raises(
        AuthenticationError, match="Authentication details invalid; this server needs no token"
    ):
        scene.store.open(unknown)


def test_no_credentials_open_no_session(scene):
    with pytest.raises(AuthenticationError, match="no credentials"):
        scene.store.open(None)


# --- tokens ---


def test_a_token_is_a_uuid_and_finds_its_session(scene):
    first, second = scene.store.open(ANONYMOUS), scene.store.open(ANONYMOUS)
    assert uuid.UUID(first.token)
    assert first.bearer == f"Bearer {first.token}"
    assert scene.find(first.token) is first
    assert scene.find(second.token) is second
    assert first.session_id != second.session_id


def test_other_credentials_with_a_tokens_text_find_nothing(scene):
    session = scene.store.open(ANONYMOUS)
    assert scene.store.find(Credentials.of_header(f"psk {session.token}")) is None


def test_a_token_is_replaced_when_it_is_a_fifth_of_the_lifetime_old(scene):
    session = scene.store.open(ANONYMOUS)
    old = session.token
    scene.clock.advance(FIFTH_NS - 1)
    assert scene.find(old) is session
    assert session.token == old
    scene.clock.advance(1)
    assert scene.find(old) is session
    assert session.token != old
    assert scene.find(session.token) is session


def test_an_old_token_is_good_until_its_own_time_is_up(scene):
    session = scene.store.open(ANONYMOUS)
    old = session.token
    scene.clock.advance(FIFTH_NS)
    scene.find(old)
    scene.clock.advance(LIFETIME_NS - FIFTH_NS - 1)
    assert scene.find(old) is session
    scene.clock.advance(1)
    assert scene.find(old) is None
    assert scene.find(session.token) is session


def test_a_session_that_is_used_never_ends(scene):
    session = scene.store.open(ANONYMOUS)
    for _ in range(20):
        scene.clock.advance(LIFETIME_NS // 2)
        assert scene.find(session.token) is session
    assert len(scene.store._tokens) <= ROTATIONS_PER_LIFETIME + 1


def test_a_session_ends_when_its_newest_token_does(scene):
    session = scene.store.open(ANONYMOUS)
    scene.clock.advance(LIFETIME_NS - 1)
    scene.store.sweep()
    assert not session.is_closed
    scene.clock.advance(1)
    scene.store.sweep()
    assert session.is_closed
    assert len(scene.store) == 0
    assert scene.store._tokens == {}


def test_a_token_past_its_time_is_refused_before_any_sweep(scene):
    session = scene.store.open(ANONYMOUS)
    scene.clock.advance(LIFETIME_NS)
    assert scene.find(session.token) is None
    assert session.is_closed


def test_when_a_token_ends_by_the_wall_clock(scene):
    session = scene.store.open(ANONYMOUS)
    scene.clock.advance(FIFTH_NS // 2)
    ends_ns = scene.store.expires_wall_ms(session) * 1_000_000
    assert abs(ends_ns - scene.clock.wall_ns() - (LIFETIME_NS - FIFTH_NS // 2)) < 1_000_000


# --- the end ---


def test_closing_tells_who_listens_once_and_frees_the_exports(scene):
    session = scene.store.open(ANONYMOUS)
    told: list[Exception] = []
    session.on_close(told.append)
    unregister = session.on_close(lambda _: pytest.fail("was unregistered"))
    unregister()
    session.exports.define(1)
    scene.store.close(session)
    scene.store.close(session)
    assert [type(error) for error in told] == [AuthenticationError]
    assert len(session.exports) == 0
    assert scene.find(session.token) is None
    session.on_close(told.append)
    assert len(told) == 2


def test_a_listener_that_fails_does_not_keep_the_others_from_hearing(scene, caplog):
    session = scene.store.open(ANONYMOUS)
    told: list[Exception] = []

    def explode(_: Exception) -> None:
        raise ZeroDivisionError("boom")

    session.on_close(explode)
    session.on_close(told.append)
    scene.store.close(session)
    assert len(told) == 1
    assert "boom" in caplog.text


def test_a_server_that_goes_away_says_so(scene):
    told: list[Exception] = []
    for _ in range(3):
        scene.store.open(ANONYMOUS).on_close(told.append)
    scene.store.close_all(TransportError("going"))
    assert [str(error) for error in told] == ["going"] * 3
    assert len(scene.store) == 0


def test_sessions_at_the_limit_and_one_past_it():
    scene = Scene(sessions_max=2)
    first = scene.store.open(ANONYMOUS)
    assert scene.find(first.token) is first
    scene.clock.advance(FIFTH_NS)
    second = scene.store.open(ANONYMOUS)
    assert scene.find(second.token) is second
    with pytest.raises(LimitExceededError, match="sessions"):
        scene.store.open(ANONYMOUS)
    scene.clock.advance(LIFETIME_NS - FIFTH_NS)
    third = scene.store.open(ANONYMOUS)
    assert list(scene.store) == [second, third]


def test_sessions_nobody_came_back_to_make_room_for_new_ones():
    scene = Scene(sessions_max=4)
    used, holding, watched, unused = (scene.store.open(ANONYMOUS) for _ in range(4))
    assert scene.find(used.token) is used
    holding.exports.define(1)
    watched.on_close(lambda _: None)
    newest = scene.store.open(ANONYMOUS)
    assert unused.is_closed
    assert scene.find(unused.token) is None
    assert list(scene.store) == [used, holding, watched, newest]
    assert scene.store.open(ANONYMOUS)
    assert newest.is_closed


def test_the_types_a_session_asks_for():
    scene = Scene()
    assert scene.store.open(ANONYMOUS).types == "deephaven"
    assert scene.store.open(ANONYMOUS, "ticking").types == "ticking"
