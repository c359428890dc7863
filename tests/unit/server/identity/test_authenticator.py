"""The chain: which way is asked, what is looked up, who must wait, and what ends."""

from __future__ import annotations

import asyncio
import threading
import uuid
from pathlib import Path

import pytest

from barrage.errors import AuthenticationError, ConfigError, LimitExceededError
from barrage.limits import Limits
from barrage.server.identity import password_way
from barrage.server.identity.caller import ANYBODY, Proof
from barrage.server.identity.calls_under_way import CredentialsExpiredError
from barrage.server.identity.login_failures import LoginFailures, TooManyFailuresError, host_of
from barrage.server.identity.users_file import changing_users
from barrage.server.identity.ways import HOOKS_AT_A_TIME, HookFailedError, Login, User
from tests.helpers.logging_in import Chain, ShownCall, basic
from tests.helpers.users import ALICE_PASSWORD, users_file
from tests.helpers.virtual_clock import VirtualClock

SECOND_NS = 1_000_000_000


@pytest.fixture
def users(tmp_path):
    return users_file(tmp_path / "users.jsonl")


# --- nothing, and the key ---


@pytest.mark.parametrize("header", [None, "Anonymous", basic("any"), "psk any"])
def test_where_nothing_is_set_up_who_is_local_is_anybody(header):
    assert Chain().shown(header) is ANYBODY


def test_but_a_token_is_one_that_was_given_out():
    with pytest.raises(AuthenticationError, match="this server needs no token and has no session"):
        Chain().shown(f"Bearer {uuid.uuid4()}")


def test_where_others_can_reach_it_a_key_is_made_up():
    chain = Chain(is_local=False)
    assert len(chain.authenticator.key) >= 32
    assert chain.shown(f"Bearer {chain.authenticator.key}").proof is Proof.KEY
    with pytest.raises(AuthenticationError, match="no credentials"):
        chain.shown(None)


def test_unless_everybody_is_meant():
    chain = Chain(is_local=False, anonymous=True)
    assert chain.authenticator.key is None
    assert chain.shown(None) is ANYBODY


def test_anybody_can_be_kept_out_of_loopback(users):
    with pytest.raises(AuthenticationError):
        Chain(users=users).shown(None)
    assert Chain(users=users, anonymous=True).shown(None) is ANYBODY


@pytest.mark.parametrize("header", ["Bearer key", basic("key"), "psk key"])
def test_the_key_is_good_in_every_form(header):
    assert Chain(token="key").shown(header).proof is Proof.KEY


@pytest.mark.parametrize(
    "header", ["Bearer no", "Bearer kez", basic("no"), "psk no", "Anonymous", "psk", "Basic !"]
)
def test_a_wrong_key_is_none(header):
    with pytest.raises(AuthenticationError, match="Authentication details invalid"):
        Chain(token="key").shown(header)


# --- passwords ---


def test_a_user_with_a_password(users):
    caller = Chain(users=users).shown(basic(ALICE_PASSWORD, "alice"))
    assert caller.name == "alice"
    assert caller.roles == {"reader", "writer"}
    assert caller.proof is Proof.PASSWORD


@pytest.mark.parametrize(
    ("user", "password"),
    [("alice", "wrong"), ("nobody", ALICE_PASSWORD), ("carol", ALICE_PASSWORD), ("alice", "")],
)
def test_all_that_is_wrong_is_told_in_the_same_words(users, user, password):
    with pytest.raises(AuthenticationError) as told:
        Chain(users=users).shown(basic(password, user))
    assert str(told.value) == "Authentication details invalid"


def test_who_is_nobody_costs_a_hash_too(tmp_path, monkeypatch):
    users = users_file(tmp_path / "users.jsonl", is_dear=True)
    chain, hashes = Chain(users=users), []
    whole = chain.authenticator._users._checks.fits

    async def counted(password, kept):
        hashes.append(kept)
        return await whole(password, kept)

    monkeypatch.setattr(chain.authenticator._users._checks, "fits", counted)
    for user in ("nobody", "carol", "alice"):
        with pytest.raises(AuthenticationError):
            chain.shown(basic("wrong", user))
    assert len(set(hashes)) == 3
    assert len({kept.rsplit("$", 2)[0] for kept in hashes}) == 1, "of the same costs"


def test_one_hash_for_all_calls_that_show_the_same_at_the_same_time(users, monkeypatch):
    chain, hashes = Chain(users=users), []
    whole = chain.authenticator._users._checks.fits

    async def counted(password, kept):
        hashes.append(kept)
        return await whole(password, kept)

    monkeypatch.setattr(chain.authenticator._users._checks, "fits", counted)

    async def scene():
        right = basic(ALICE_PASSWORD, "alice")
        await asyncio.gather(*(chain.ashown(right) for _ in range(50)))
        await chain.ashown(right)

    asyncio.run(scene())
    assert len(hashes) == 1
    assert chain.authenticator._proving == {}


def test_what_was_right_on_one_connection_is_looked_at_again_on_another(users):
    chain = Chain(users=users)
    chain.shown(basic(ALICE_PASSWORD, "alice"))
    assert len(chain.authenticator._verified) == 1
    chain.shown(basic(ALICE_PASSWORD, "alice"), ShownCall("ipv4:10.0.0.2:5"))
    assert len(chain.authenticator._verified) == 2


def test_it_is_known_for_a_time_and_for_a_number(users):
    chain = Chain(token="key", limits=Limits(verified_credentials_max=2))
    for port in range(3):
        chain.shown("Bearer key", ShownCall(f"ipv4:10.0.0.2:{port}"))
    assert len(chain.authenticator._verified) == 2
    chain.clock.advance(Limits().verified_credentials_ns)
    verified = chain.authenticator._verified
    assert all(verified.find(digest) is None for digest in list(verified._callers))


def test_logins_at_the_limit_and_one_past_it(users):
    chain = Chain(users=users, limits=Limits(password_checks_waiting_max=1))

    async def scene():
        several = (chain.ashown(basic(f"wrong {number}", "alice")) for number in range(4))
        return await asyncio.gather(*several, return_exceptions=True)

    ends = [type(error) for error in asyncio.run(scene())]
    assert sorted(end.__name__ for end in ends) == [
        *["AuthenticationError"] * 3,
        LimitExceededError.__name__,
    ]
    assert chain.authenticator._users._checks._threads._under_way == 0


# --- users that change ---


def refreshed(chain: Chain) -> None:
    asyncio.run(chain.authenticator.refresh())


def test_a_user_that_is_removed_is_nobody_at_once(users):
    chain = Chain(users=users)
    alice, bob = basic(ALICE_PASSWORD, "alice"), basic(ALICE_PASSWORD, "bob")
    ended = {}
    for header in (alice, bob):
        caller = chain.shown(header)
        chain.authenticator.calls.begin(
            caller, lambda error, name=caller.name: ended.setdefault(name, error)
        )
        token = chain.authenticator.tokens.issue(caller)
        assert chain.shown(f"Bearer {token}").name == caller.name
    with changing_users(users) as changed:
        del changed["alice"]
    assert chain.shown(alice).name == "alice", "the file was not looked at"
    refreshed(chain)
    assert list(ended) == ["alice"]
    assert "removed or changed" in str(ended["alice"])
    assert len(chain.authenticator.tokens) == 1
    assert len(chain.authenticator.calls) == 1
    with pytest.raises(AuthenticationError):
        chain.shown(alice)
    assert chain.shown(bob).name == "bob"


def test_who_is_removed_while_the_password_is_looked_at_is_nobody(users, monkeypatch):
    chain = Chain(users=users)
    checks = chain.authenticator._users._checks
    whole = checks.fits

    async def slow(password, kept):
        is_right = await whole(password, kept)
        if "alice" in chain.authenticator._users.users:
            with changing_users(users) as changed:
                del changed["alice"]
            await chain.authenticator.refresh()
        return is_right

    monkeypatch.setattr(checks, "fits", slow)
    with pytest.raises(AuthenticationError):
        chain.shown(basic(ALICE_PASSWORD, "alice"))
    assert len(chain.authenticator._verified) == 0


@pytest.mark.parametrize("text", [b"nonsense", b'{"name": "x"}', b"\xff", b"{}\n" * 2])
def test_a_file_that_cannot_be_read_changes_nothing(users, text, caplog):
    chain = Chain(users=users)
    users.write_bytes(text)
    refreshed(chain)
    refreshed(chain)
    assert chain.shown(basic(ALICE_PASSWORD, "alice")).name == "alice"
    assert len(caplog.records) == 1
    users.unlink()
    refreshed(chain)
    assert chain.shown(basic(ALICE_PASSWORD, "alice")).name == "alice"


def test_a_file_that_could_not_be_read_for_a_while_is_read_then(users, monkeypatch, caplog):
    """As one that root has replaced, until it is the server's user's again."""
    chain = Chain(users=users)
    with changing_users(users) as changed:
        del changed["alice"]
    with monkeypatch.context() as patched:
        patched.setattr(password_way, "read_users", refused_by_the_system)
        refreshed(chain)
        refreshed(chain)
    assert len(caplog.records) == 1
    assert chain.shown(basic(ALICE_PASSWORD, "bob")).name == "bob"
    refreshed(chain)
    with pytest.raises(AuthenticationError):
        chain.shown(basic(ALICE_PASSWORD, "alice"))


def refused_by_the_system(path: Path) -> None:
    raise ConfigError(f"cannot read the users file {path}: Permission denied")


# --- tokens ---


def test_a_token_is_good_for_its_time(users):
    chain = Chain(users=users, token_lifetime_ms=5000)
    tokens = chain.authenticator.tokens
    token = tokens.issue(chain.shown(basic(ALICE_PASSWORD, "alice")))
    caller = chain.shown(f"Bearer {token}")
    assert (caller.name, caller.proof) == ("alice", Proof.PASSWORD)
    assert caller.expires_ns == chain.clock.wall_ns() + 5 * SECOND_NS
    chain.clock.advance(4 * SECOND_NS)
    fresh = tokens.renew(token)
    chain.clock.advance(1 * SECOND_NS)
    with pytest.raises(AuthenticationError):
        chain.shown(f"Bearer {token}")
    assert tokens.renew(token) is None
    assert chain.shown(f"Bearer {fresh}").name == "alice"
    chain.authenticator.sweep()
    assert len(tokens) == 1
    assert token not in repr(vars(tokens))


def test_a_token_is_not_renewed_for_ever():
    chain = Chain(
        token="key", token_lifetime_ms=5000, limits=Limits(token_age_ns_max=8 * SECOND_NS)
    )
    tokens = chain.authenticator.tokens
    first = tokens.issue(chain.shown("Bearer key"))
    chain.clock.advance(4 * SECOND_NS)
    second = tokens.renew(first)
    chain.clock.advance(4 * SECOND_NS)
    with pytest.raises(AuthenticationError, match="log in"):
        tokens.renew(second)


def test_a_token_never_outlives_what_it_was_given_for():
    chain = Chain(hook=lambda _: User(name="a", expires_ns=2 * SECOND_NS))
    tokens = chain.authenticator.tokens
    token = tokens.issue(chain.shown("Bearer x"))
    assert tokens.find(token).expires_ns == 2 * SECOND_NS


def test_tokens_at_the_limit_and_one_past_it():
    chain = Chain(token="key", limits=Limits(issued_tokens_max=2))
    given = [chain.authenticator.tokens.issue(ANYBODY) for _ in range(3)]
    assert [chain.authenticator.tokens.find(token) is None for token in given] == [
        True,
        False,
        False,
    ]


def test_who_asks_for_many_tokens_makes_only_its_own_go():
    chain = Chain(token="key", limits=Limits(issued_tokens_per_caller_max=2))
    tokens = chain.authenticator.tokens
    other = tokens.issue(chain.shown("Bearer key"))
    given = [tokens.issue(ANYBODY) for _ in range(3)]
    assert tokens.find(other) is not None
    assert [tokens.find(token) is None for token in given] == [True, False, False]
    tokens.revoke(lambda _: True)
    assert (tokens._tokens, tokens._of_owner) == ({}, {})


def test_calls_of_a_caller_whose_time_is_up_end():
    chain = Chain(hook=lambda _: User(name="a", expires_ns=2 * SECOND_NS))
    ended = []
    caller = chain.shown("Bearer x")
    chain.authenticator.calls.begin(caller, ended.append)
    chain.authenticator.sweep()
    assert ended == []
    chain.clock.advance(2 * SECOND_NS)
    chain.authenticator.sweep()
    chain.authenticator.sweep()
    assert [type(error) for error in ended] == [CredentialsExpiredError]
    assert len(chain.authenticator.calls) == 0
    with pytest.raises(CredentialsExpiredError):
        chain.shown("Bearer x")


# --- failures ---


def test_who_fails_too_often_waits_and_nobody_else_does():
    chain = Chain(token="key", limits=Limits(login_failures_max=3))
    for number in range(3):
        with pytest.raises(AuthenticationError):
            chain.shown(f"Bearer {number}")
    with pytest.raises(TooManyFailuresError, match="try again in 1 s"):
        chain.shown("Bearer key")
    with pytest.raises(TooManyFailuresError):
        chain.shown("Bearer key", ShownCall("ipv4:10.0.0.2:9"))
    assert chain.shown("Bearer key", ShownCall("ipv4:10.0.0.3:4711")).proof is Proof.KEY
    chain.clock.advance(SECOND_NS)
    assert chain.shown("Bearer key").proof is Proof.KEY


def test_who_was_let_in_before_goes_on_while_another_fails():
    chain = Chain(token="key", limits=Limits(login_failures_max=1))
    chain.shown("Bearer key")
    other = ShownCall("ipv4:10.0.0.2:9")
    with pytest.raises(AuthenticationError):
        chain.shown("Bearer no", other)
    assert chain.shown("Bearer key").proof is Proof.KEY
    with pytest.raises(TooManyFailuresError):
        chain.shown("Bearer key", other)


def test_a_hundred_guesses_at_once_are_not_a_hundred_guesses():
    chain = Chain(token="key", limits=Limits(login_failures_max=3))

    async def scene():
        guesses = (chain.ashown(f"Bearer {number}") for number in range(100))
        return await asyncio.gather(*guesses, return_exceptions=True)

    ends = [type(error) for error in asyncio.run(scene())]
    assert ends.count(AuthenticationError) == 3
    assert ends.count(TooManyFailuresError) == 97


def test_tokens_of_ours_that_have_run_out_are_no_guesses():
    chain = Chain(token="key", limits=Limits(login_failures_max=1))
    stale = chain.authenticator.tokens.issue(ANYBODY)
    chain.clock.advance(10**15)
    for token in (stale, str(uuid.uuid4())) * 3:
        with pytest.raises(AuthenticationError):
            chain.shown(f"Bearer {token}")
    assert chain.shown("Bearer key").proof is Proof.KEY


def test_peers_at_the_limit_and_one_past_it():
    failures = LoginFailures(
        Limits(login_failure_peers_max=2, login_failures_max=1), VirtualClock()
    )
    for host in (1, 2, 3):
        failures.count(f"ipv4:10.0.0.{host}:1")
    assert len(failures) == 2
    failures.check("ipv4:10.0.0.1:1")
    for host in (2, 3):
        with pytest.raises(TooManyFailuresError):
            failures.check(f"ipv4:10.0.0.{host}:1")


@pytest.mark.parametrize(
    ("peer", "host"),
    [
        ("ipv4:10.0.0.2:4711", "10.0.0.2"),
        ("ipv6:[2001:db8:1:2:3:4:5:6]:4711", "2001:db8:1:2::/64"),
        ("ipv6:%5B2001:db8:1:2:9::1%5D:1", "2001:db8:1:2::/64"),
        ("ipv6:[::ffff:10.0.0.2]:1", "10.0.0.2"),
        ("ipv6:[fe80::1%eth0]:1", "fe80::/64"),
        ("ipv6:nonsense", "ipv6"),
        ("unix:/a/b", "unix"),
        ("unix:", "unix"),
        ("", ""),
    ],
)
def test_who_counts_as_one_peer(peer, host):
    assert host_of(peer) == host


# --- the program's own way ---


async def anyone(login: Login) -> User:
    return User(name=f"{login.scheme}/{login.user}", roles=("a",))


@pytest.mark.parametrize(
    ("hook", "header", "name"),
    [
        (lambda login: login.user, basic("x", "eve"), "eve"),
        (anyone, basic("x", "eve"), "basic/eve"),
        (anyone, "Bearer x", "bearer/"),
        (anyone, "psk x", "key/"),
    ],
)
def test_a_function_says_who_it_is(hook, header, name):
    caller = Chain(hook=hook).shown(header)
    assert (caller.name, caller.proof) == (name, Proof.HOOK)


def test_nobody_is_refused_and_nothing_is_not_asked_about():
    asked = []
    chain = Chain(hook=asked.append)
    with pytest.raises(AuthenticationError):
        chain.shown("Bearer x")
    with pytest.raises(AuthenticationError):
        chain.shown(None)
    assert len(asked) == 1
    assert "'x'" not in repr(asked)


@pytest.mark.parametrize("answer", [7, User(name=""), User(name="a", roles="abc")])
def test_an_answer_that_is_none_lets_nobody_in(answer):
    with pytest.raises(TypeError, match="authenticate returned"):
        Chain(hook=lambda _: answer).shown("Bearer x")


def test_logins_that_wait_for_a_function_are_bounded_and_nothing_waits_with_them(users):
    """A function may ask a directory, and take as long as that does."""
    is_answered = threading.Event()
    chain = Chain(
        hook=lambda _: is_answered.wait(60) and None,
        users=users,
        limits=Limits(hook_calls_waiting_max=1),
    )
    with changing_users(users) as changed:
        del changed["alice"]

    async def scene():
        logins = [
            asyncio.create_task(chain.ashown(f"Bearer {number}"))
            for number in range(HOOKS_AT_A_TIME + 2)
        ]
        try:
            await asyncio.wait_for(chain.authenticator.refresh(), 30)
        finally:
            is_answered.set()
        return await asyncio.gather(*logins, return_exceptions=True)

    ends = [type(error) for error in asyncio.run(scene())]
    assert ends == [*[AuthenticationError] * (HOOKS_AT_A_TIME + 1), LimitExceededError]
    assert "alice" not in chain.authenticator._users.users
    chain.authenticator.close()


def test_a_function_that_raises_is_told_without_its_words(caplog):
    def who(login):
        raise ValueError(f"no {login.secret}")

    with pytest.raises(HookFailedError, match="authenticate raised ValueError") as told:
        Chain(hook=who).shown("Bearer hush")
    assert "authenticate failed: ValueError" in caplog.text
    assert "in who" in caplog.text
    assert "hush" not in caplog.text + str(told.value)
