"""What a configuration of JWTs must be, and tokens made to break the reader. Good and bad ones
over the wire: tests/end_to_end/test_identity_doors.py."""

from __future__ import annotations

import base64
import json
import time

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm

from barrage.errors import AuthenticationError, ConfigError, TransportError
from barrage.server.identity.caller import Proof
from tests.helpers.logging_in import Chain

KEY = ec.generate_private_key(ec.SECP256R1())


@pytest.fixture
def keys(tmp_path):
    path = tmp_path / "keys.json"
    told = ECAlgorithm.to_jwk(KEY.public_key(), as_dict=True)
    secret = {"kty": "oct", "k": "c2VjcmV0", "kid": "s"}
    path.write_text(json.dumps({"keys": [{**told, "kid": "a"}, secret, "nonsense"]}))
    return path


def chain(keys, **changed) -> Chain:
    return Chain(**{"jwt_keys": str(keys), "jwt_issuer": "i", "jwt_audience": "a", **changed})


def token(**changed) -> str:
    claims = {"iss": "i", "aud": "a", "sub": "dave", "exp": int(time.time()) + 600, **changed}
    return jwt.encode(claims, KEY, algorithm="ES256", headers={"kid": "a"})


def test_keys_in_a_file(keys):
    caller = chain(keys).shown(f"Bearer {token(roles='a b')}")
    assert (caller.name, caller.proof, caller.roles) == ("dave", Proof.JWT, {"a", "b"})


def test_claims_of_other_names(keys):
    made = chain(keys, jwt_user_claim="email", jwt_roles_claim="groups")
    caller = made.shown(f"Bearer {token(email='d@example', groups=['g'])}")
    assert (caller.name, caller.roles) == ("d@example", {"g"})


def part(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


@pytest.mark.parametrize(
    "text",
    [
        "..",
        "a.b.c",
        f"{part('[' * 8000)}.e30.AAAA",
        f"{part(json.dumps({'alg': 'ES256', 'kid': {'a': 1}}))}.e30.AAAA",
        f"{part(json.dumps({'alg': 'ES256', 'kid': 'a'}))}.{part('[' * 8000)}.AAAA",
        f"{part(json.dumps({'alg': ['ES256']}))}.e30.AAAA",
        f"{part(json.dumps({'alg': 'HS256', 'kid': 's'}))}.e30.AAAA",
        "x" * 20_000 + "..",
    ],
)
def test_tokens_made_to_break_the_reader(keys, text):
    with pytest.raises(AuthenticationError):
        chain(keys).shown(f"Bearer {text}")


@pytest.mark.parametrize(
    "claims", [{"sub": 7}, {"sub": ""}, {"sub": "a\nb"}, {"roles": 7}, {"roles": [[]]}]
)
def test_claims_that_name_nobody(keys, claims):
    with pytest.raises(AuthenticationError):
        chain(keys).shown(f"Bearer {token(**claims)}")


def test_the_end_of_a_token_is_no_further_than_clocks_go(keys):
    assert chain(keys).shown(f"Bearer {token(exp=10**15)}").expires_ns <= 2**63


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"jwt_issuer": None}, "needs jwt_issuer"),
        ({"jwt_audience": None}, "needs jwt_issuer and jwt_audience"),
        ({"jwt_keys": None}, "need jwt_keys"),
        ({"jwt_algorithms": "none"}, "must be of ES256"),
        ({"jwt_algorithms": "HS256"}, "must be of ES256"),
        ({"jwt_algorithms": ","}, "must be of ES256"),
        ({"jwt_keys": "http://keys.example/"}, "https://"),
        ({"jwt_keys": "https://me:hush@keys.example/"}, "without a user"),
        ({"jwt_keys": "ftp://localhost/"}, "https://"),
        ({"jwt_keys": "/nowhere"}, "cannot read jwt_keys"),
    ],
)
def test_what_a_configuration_must_be(keys, changed, words):
    with pytest.raises(ConfigError, match=words) as told:
        chain(keys, **changed)
    assert "hush" not in str(told.value)


def test_where_no_keys_can_be_had_that_is_told():
    made = chain("http://127.0.0.1:9/keys")
    with pytest.raises(TransportError, match="cannot be had"):
        made.shown(f"Bearer {token()}")
