"""What a header shows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrage.errors import AuthenticationError
from barrage.server.identity.credentials import AUTH_TOKEN, CredentialKind, Credentials
from tests.helpers.logging_in import Chain, basic


@pytest.mark.parametrize(
    ("header", "kind", "secret", "user"),
    [
        ("Bearer abc", CredentialKind.TOKEN, "abc", ""),
        ("bearer  abc ", CredentialKind.TOKEN, "abc", ""),
        ("Bearer two words", CredentialKind.TOKEN, "two words", ""),
        ("Anonymous", CredentialKind.ANONYMOUS, "", ""),
        (basic("pass:word"), CredentialKind.PASSWORD, "pass:word", "me"),
        ("Basic !!!", CredentialKind.UNREADABLE, "", ""),
        (
            "io.deephaven.authentication.psk.PskAuthenticationHandler key",
            CredentialKind.SECRET,
            "key",
            "",
        ),
        ("any.Other key", CredentialKind.SECRET, "key", ""),
        ("lonely", CredentialKind.SECRET, "", ""),
    ],
)
def test_what_a_header_shows(header, kind, secret, user):
    found = Credentials.of_metadata([("x", "y"), ("authorization", header)])
    assert found == Credentials(kind, secret, user)


@pytest.mark.parametrize("value", [b"abc", b"Bearer abc", "abc"])
def test_flight_clients_repeat_the_token_in_a_header_of_their_own(value):
    assert Credentials.of_metadata([(AUTH_TOKEN, value)]) == Credentials(
        CredentialKind.TOKEN, "abc"
    )


OPEN, WITH_KEY = Chain(), Chain(token="key")


@given(st.text(max_size=40) | st.text(max_size=20).map("Basic {}".format))
def test_any_header_is_good_or_refused(header):
    for chain in (OPEN, WITH_KEY):
        chain.clock.advance(2_000_000_000)
        try:
            caller = chain.shown(header)
        except AuthenticationError:
            continue
        assert chain is OPEN or Credentials.of_header(header).secret == "key"
        assert caller.name in ("anonymous", "key")


def test_an_empty_header_shows_nothing():
    assert Credentials.of_metadata([("authorization", " ")]) is None
    assert Credentials.of_metadata([]) is None


def test_secrets_are_not_printed():
    assert "abc" not in repr(Credentials.of_header("Bearer abc"))
    assert "abc" not in repr(Credentials.of_header(basic("abc")))
