"""A real pydeephaven and the ticking client as users, over TLS and under rules."""

from __future__ import annotations

import json
import pathlib
import subprocess

import pyarrow as pa
import pyarrow.flight as flight
import pytest

import barrage
from barrage import Policy, Rule
from barrage.server.policy.rules import Operation
from barrage.server.settings.config import ServerConfig
from tests.helpers.certificates import authority
from tests.helpers.users import ALICE_PASSWORD, users_file
from tests.interop.processes import ROOT, deephaven_python

pytestmark = pytest.mark.interop

SCRIPT = pathlib.Path(__file__).with_name("pydeephaven_rules.py")
TIMEOUT_SECONDS = 120
RULES = Policy.of(
    Rule(tables=("*", "_*"), users=("alice",), allow=frozenset({Operation.ADMIN})),
    Rule(
        tables=("trades",),
        users=("bob",),
        allow=frozenset({Operation.READ}),
        rows="Desk = caller()",
        hide=("Account",),
    ),
)
SHOWN_TO_BOB = {
    "columns": ["Id", "Desk"],
    "ids": [1, 3, 5],
    "filtered": [5],
    "counted": [{"Desk": "bob", "n": 3}],
    "joined": 3,
    "by a hidden column": "INVALID_ARGUMENT",
    "tables": ["trades"],
    "hidden": "NOT_FOUND",
    "nothing": "NOT_FOUND",
    "named": "PERMISSION_DENIED",
    "uploaded": 2,
}


def trades(*ids: int) -> pa.Table:
    desks = ["bob" if each % 2 else "eve" for each in ids]
    return pa.table({"Id": ids, "Desk": desks, "Account": [f"SECRET{each}" for each in ids]})


def token_of(server: barrage.Server, ca: bytes) -> str:
    with flight.connect(server.uri.replace("grpcs", "grpc+tls"), tls_root_certs=ca) as client:
        _, header = client.authenticate_basic_token("bob", ALICE_PASSWORD)
    return header.decode().removeprefix("Bearer ")


@pytest.mark.parametrize("http", ["own", "grpcio"])
def test_users_see_what_rules_say(tmp_path, http):
    python = deephaven_python("pydeephaven_ticking")
    if python is None:
        pytest.skip("pydeephaven-ticking is not installed (extra: interop)")
    certificate, key = authority().for_localhost().write(tmp_path, "server")
    config = ServerConfig(
        host="localhost",
        http=http,
        users=str(users_file(tmp_path / "users")),
        tls_cert=certificate,
        tls_key=key,
    )
    ca = authority().write(tmp_path)
    with barrage.Server(config=config, policy=RULES) as server:
        table = server.create_table("trades", key="Id", data=trades(0, 1, 2, 3, 4, 5))
        server.create_table("hidden", data={"x": [1]})
        token = token_of(server, authority().certificate)
        with subprocess.Popen(
            [python, str(SCRIPT), str(server.port), ca, token, ALICE_PASSWORD],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as running:
            assert running.stdout is not None
            first = running.stdout.readline()
            if first == "following\n":
                table.upsert(trades(6, 7))
            said, errors = running.communicate(timeout=TIMEOUT_SECONDS)
    assert first == "following\n", errors
    assert "SECRET" not in said
    told = json.loads(said.splitlines()[-1])
    assert told.pop("bob") == SHOWN_TO_BOB
    assert told.pop("token") == SHOWN_TO_BOB
    assert told == {
        "alice": [6, ["Account", "Desk", "Id"], [{"x": 1}]],
        "wrong password": "UNAUTHENTICATED",
        "wrong token": "UNAUTHENTICATED",
        "nobody": "UNAUTHENTICATED",
        "followed": [1, 3, 5, 7],
    }
