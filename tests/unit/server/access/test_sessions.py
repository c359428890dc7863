"""Sessions on a clock that stands still: tokens, rotation, expiry, what ends with a session."""

from __future__ import annotations

import uuid

import pytest

from barrage.errors import AuthenticationError, LimitExceededError, TransportError
from barrage.limits import Limits
from barrage.server.access.session_store import LIFETIME_NS, ROTATIONS_PER_LIFETIME, SessionStore
from barrage.server.identity.caller import ANYBODY, Caller, Proof
from barrage.server.identity.calls_under_way import CredentialsExpiredError
from barrage.server.identity.credentials import Credentials
from tests.helpers.virtual_clock import VirtualClock

FIFTH_NS = LIFETIME_NS // ROTATIONS_PER_LIFETIME


ALICE = Caller(name="alice", proof=Proof.PASSWORD)


class Scene:
    """A store with a clock."""

    def __init__(self, **limits: int) -> None:
        self.clock = VirtualClock(1_000_000)
        self.store = SessionStore(Limits(**limits), self.clock)

    def find(self, token: str):
        return self.store.find(Credentials.of_header(f"Bearer {token}"))


@pytest.fixture
def scene() -> Scene:
    return Scene()


# --- tokens ---


def test_a_token_is_a_uuid_and_finds_its_session(scene):
    first, second = scene.store.open(ANYBODY), scene.store.open(ANYBODY)
    assert uuid.UUID(first.token)
    assert first.bearer == f"Bearer {first.token}"
    assert scene.find(first.token) is first
    assert scene.find(second.token) is second
    assert first.session_id != second.session_id


def test_other_credentials_with_a_tokens_text_find_nothing(scene):
    session = scene.store.open(ANYBODY)
    assert scene.store.find(Credentials.of_header(f"psk {session.token}")) is None


def test_a_token_is_replaced_when_it_is_a_fifth_of_the_lifetime_old(scene):
    session = scene.store.open(ANYBODY)
    old = session.token
    scene.clock.advance(FIFTH_NS - 1)
    assert scene.find(old) is session
    assert session.token == old
    scene.clock.advance(1)
    assert scene.find(old) is session
    assert session.token != old
    assert scene.find(session.token) is session


def test_an_old_token_is_good_until_its_own_time_is_up(scene):
    session = scene.store.open(ANYBODY)
    old = session.token
    scene.clock.advance(FIFTH_NS)
    scene.find(old)
    scene.clock.advance(LIFETIME_NS - FIFTH_NS - 1)
    assert scene.find(old) is session
    scene.clock.advance(1)
    assert scene.find(old) is None
    assert scene.find(session.token) is session


def test_a_session_that_is_used_never_ends(scene):
    session = scene.store.open(ANYBODY)
    for _ in range(20):
        scene.clock.advance(LIFETIME_NS // 2)
        assert scene.find(session.token) is session
    assert len(scene.store._tokens) <= ROTATIONS_PER_LIFETIME + 1


def test_a_session_ends_when_its_newest_token_does(scene):
    session = scene.store.open(ANYBODY)
    scene.clock.advance(LIFETIME_NS - 1)
    scene.store.sweep()
    assert not session.is_closed
    scene.clock.advance(1)
    scene.store.sweep()
    assert session.is_closed
    assert len(scene.store) == 0
    assert scene.store._tokens == {}


def test_a_token_past_its_time_is_refused_before_any_sweep(scene):
    session = scene.store.open(ANYBODY)
    scene.clock.advance(LIFETIME_NS)
    assert scene.find(session.token) is None
    assert session.is_closed


def test_when_a_token_ends_by_the_wall_clock(scene):
    session = scene.store.open(ANYBODY)
    scene.clock.advance(FIFTH_NS // 2)
    ends_ns = scene.store.expires_wall_ms(session) * 1_000_000
    assert abs(ends_ns - scene.clock.wall_ns() - (LIFETIME_NS - FIFTH_NS // 2)) < 1_000_000


# --- the end ---


def test_closing_tells_who_listens_once_and_frees_the_exports(scene):
    session = scene.store.open(ANYBODY)
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
    session = scene.store.open(ANYBODY)
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
        scene.store.open(ANYBODY).on_close(told.append)
    scene.store.close_all(TransportError("going"))
    assert [str(error) for error in told] == ["going"] * 3
    assert len(scene.store) == 0


def test_sessions_at_the_limit_and_one_past_it():
    scene = Scene(sessions_max=2)
    first = scene.store.open(ANYBODY)
    assert scene.find(first.token) is first
    scene.clock.advance(FIFTH_NS)
    second = scene.store.open(ANYBODY)
    assert scene.find(second.token) is second
    with pytest.raises(LimitExceededError, match="sessions"):
        scene.store.open(ANYBODY)
    scene.clock.advance(LIFETIME_NS - FIFTH_NS)
    third = scene.store.open(ANYBODY)
    assert list(scene.store) == [second, third]


def test_sessions_nobody_came_back_to_make_room_for_new_ones():
    scene = Scene(sessions_max=4)
    used, holding, watched, unused = (scene.store.open(ANYBODY) for _ in range(4))
    assert scene.find(used.token) is used
    holding.exports.define(1)
    watched.on_close(lambda _: None)
    newest = scene.store.open(ANYBODY)
    assert unused.is_closed
    assert scene.find(unused.token) is None
    assert list(scene.store) == [used, holding, watched, newest]
    assert scene.store.open(ANYBODY)
    assert newest.is_closed


def test_the_types_a_session_asks_for():
    scene = Scene()
    assert scene.store.open(ANYBODY).types == "deephaven"
    assert scene.store.open(ANYBODY, "ticking").types == "ticking"


# --- the caller ---


def test_a_session_is_its_callers(scene):
    assert scene.store.open(ALICE).caller is ALICE


def test_the_sessions_of_who_is_a_caller_no_more_end_and_no_others(scene):
    told: list[Exception] = []
    first, other = scene.store.open(ALICE), scene.store.open(ANYBODY)
    first.on_close(told.append)
    error = AuthenticationError("gone")
    scene.store.revoke(lambda caller: caller.name == "alice", error)
    assert told == [error]
    assert scene.find(first.token) is None
    assert scene.find(other.token) is other


@pytest.mark.parametrize("is_swept", [True, False])
def test_a_session_ends_when_what_its_caller_showed_runs_out(scene, is_swept):
    ends_ns = scene.clock.wall_ns() + 10
    session = scene.store.open(Caller(name="a", proof=Proof.JWT, expires_ns=ends_ns))
    told: list[Exception] = []
    session.on_close(told.append)
    scene.clock.advance(9)
    scene.store.sweep()
    assert scene.find(session.token) is session
    scene.clock.advance(1)
    if is_swept:
        scene.store.sweep()
    else:
        assert scene.find(session.token) is None
    assert [type(error) for error in told] == [CredentialsExpiredError]
