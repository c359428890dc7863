"""No secret comes out again: not in logs, errors, answers, statistics, the audit log, nor in what
the system shows of the process. One is planted in each proof and looked for everywhere."""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import os
import ssl
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import pyarrow.flight as flight
import pytest
from typer.testing import CliRunner

import barrage
from barrage.cli.main import app
from barrage.errors import BarrageError
from barrage.limits import Limits
from barrage.server import ServerConfig
from barrage.server.identity.ways import Login
from barrage.server.policy.policy_file import read_policy
from barrage.transport.deephaven_messages import SESSION_SERVICE
from barrage.transport.flight_messages import FLIGHT
from tests.helpers import warm_python
from tests.helpers.certificates import authority
from tests.helpers.connector_source import SocketSource
from tests.helpers.logging_in import basic
from tests.helpers.server_process import wait_until
from tests.helpers.shown_calls import Peer, Request, acted, got, put
from tests.helpers.token_issuer import AUDIENCE, ISSUER, Issuer
from tests.helpers.users import ALICE_PASSWORD, users_file

MAIN = ["-c", "from barrage.cli.main import main; main()"]
HANG_SECONDS = 120
KEY = "planted-key-4711"
WRONG = "planted-guess-4712"
VAULT = "planted-vault-4713"
MASK = "706c616e7465642d6d61736b2d343731"


@dataclass
class Planted:
    """What must come out nowhere, and all that came out."""

    secrets: dict[str, str]
    told: dict[str, str] = field(default_factory=dict)

    def keep(self, where: str, text: object) -> None:
        shown = text.decode(errors="replace") if isinstance(text, bytes) else str(text)
        self.told[where] = self.told.get(where, "") + shown + "\n"

    def check(self) -> None:
        for where, text in self.told.items():
            for name, secret in self.secrets.items():
                for form in forms(secret):
                    assert form not in text, f"{name} is in {where}"


def forms(secret: str) -> Iterator[str]:
    """As it is, as a password travels, and as somebody may print bytes."""
    yield secret
    yield base64.b64encode(secret.encode()).decode().rstrip("=")
    yield secret.encode().hex()
    for user in ("alice", "nobody"):
        yield base64.b64encode(f"{user}:{secret}".encode()).decode().rstrip("=")


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    made = Issuer()
    yield made
    made.close()


def who(login: Login) -> str | None:
    if login.secret == f"{VAULT}-fails":
        raise ValueError(f"the vault has no {login.secret}")
    return "robot" if login.secret == VAULT else None


def private_lines(path: str) -> str:
    """The middle of a key file."""
    return Path(path).read_text().splitlines()[2]


def test_no_secret_comes_out_of_a_server(tmp_path, issuer, caplog, capfd):
    caplog.set_level(logging.DEBUG)
    (tmp_path / "mask.key").write_text(MASK)
    (tmp_path / "policy.toml").write_text(
        'hash_key_file = "mask.key"\n[[rule]]\ntables = ["*", "_*"]\nallow = ["admin"]\n'
    )
    certificate, key = authority().for_localhost().write(tmp_path, "server")
    config = ServerConfig(
        token=KEY,
        users=str(users_file(tmp_path / "users")),
        audit=str(tmp_path / "audit.log"),
        policy=str(tmp_path / "policy.toml"),
        jwt_keys=issuer.uri,
        jwt_issuer=ISSUER,
        jwt_audience=AUDIENCE,
        connector="127.0.0.1:0",
        tls_cert=certificate,
        tls_key=key,
        journal="memory",
        limits=Limits(login_failures_max=1_000, key_set_pause_ns=0),
    )
    token = issuer.token()
    planted = Planted(
        {
            "the key": KEY,
            "the password": ALICE_PASSWORD,
            "a guess": WRONG,
            "what a function knows": VAULT,
            "the key of hashes": MASK,
            "a JWT": token.rpartition(".")[2],
            "an expired JWT": issuer.token(lives_s=-60).rpartition(".")[2],
            "the key of TLS": private_lines(key),
            "a hash of a password": users_file(tmp_path / "more").read_text().split("$")[-1][:20],
        }
    )
    planted.keep("settings", repr(config))
    planted.keep("settings", config)
    with barrage.Server(config=config, authenticate=who) as server:
        server.create_table("t", {"x": "int64"}, data={"x": [1]})
        everything_is_shown(server, planted, token)
        planted.keep("the policy", repr(read_policy(tmp_path / "policy.toml")))
    planted.keep("logs", caplog.text)
    out, err = capfd.readouterr()
    planted.keep("output", out + err)
    planted.keep("the audit log", (tmp_path / "audit.log").read_text())
    assert "UNAUTHENTICATED" in planted.told["the audit log"]
    assert "alice" in planted.told["the audit log"]
    planted.check()


def everything_is_shown(server: barrage.Server, planted: Planted, token: str) -> None:
    """Right ones and wrong ones, at every kind of door; all answers are kept."""
    pem = authority().certificate
    headers = [
        f"Bearer {KEY}",
        basic(KEY, "anybody"),
        basic(ALICE_PASSWORD, "alice"),
        f"Bearer {token}",
        f"Bearer {VAULT}",
        f"Bearer {VAULT}-fails",
        f"Bearer {WRONG}",
        basic(WRONG, "alice"),
        basic(ALICE_PASSWORD, "nobody"),
        f"Bearer {planted.secrets['an expired JWT']}",
        f"io.deephaven.authentication.psk.PskAuthenticationHandler {WRONG}",
        f"Basic {WRONG}",
        f"{WRONG} {WRONG}",
    ]
    with grpc.secure_channel(server.address, grpc.ssl_channel_credentials(pem)) as channel:
        for header in headers:
            for request in (
                got(b"s/t"),
                put("t", keys=(), mode="append"),
                acted("barrage.tables"),
                Request(f"/{SESSION_SERVICE}/NewSession"),
                Request(FLIGHT + "ListActions", kind="server_stream"),
            ):
                outcome = Peer(channel, header).ask(request)
                planted.keep("answers", f"{outcome.status} {outcome.details} {outcome.answers}")
    options = {"tls_root_certs": pem}
    with flight.connect(f"grpc+tls://{server.address}", **options) as client:
        for user, password in (("alice", ALICE_PASSWORD), ("alice", WRONG), ("any", KEY)):
            try:
                _, header = client.authenticate_basic_token(user, password)
                planted.secrets[f"a token of {user}"] = header.decode().removeprefix("Bearer ")
            except flight.FlightError as error:
                planted.keep("handshakes", error)
    ca = str(Path(server.config.tls_cert).parent / "ca.pem")
    authority().write(Path(ca).parent)
    for auth in (
        barrage.Basic("alice", ALICE_PASSWORD),
        barrage.Basic("alice", WRONG),
        barrage.Bearer(WRONG),
        barrage.PreSharedKey(WRONG),
        barrage.Bearer(KEY),
    ):
        planted.keep("our clients", repr(auth))
        try:
            with barrage.connect(server.uri, auth=auth, tls=barrage.TLS(ca=ca)) as session:
                planted.keep("our clients", repr(session))
                for table in session.tables():
                    planted.keep("tables", f"{table} {session.table(table.name).snapshot()}")
        except BarrageError as error:
            planted.keep("our clients", f"{error!r} {error}")
    for cookie in (KEY, f"alice:{ALICE_PASSWORD}", WRONG, f"alice:{WRONG}"):
        with contextlib.suppress(EOFError, OSError):
            SocketSource(server.connector_port, "p", cookie=cookie, tls=_trusting()).close()
    wait_until(lambda: not server._app._connectors.connection_count, HANG_SECONDS)


def _trusting() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=authority().certificate.decode())
    return context


@pytest.mark.further
def test_no_secret_is_shown_of_a_process(tmp_path):
    users = users_file(tmp_path / "users")
    variables = {"BARRAGE_TOKEN": KEY, "BARRAGE_USERS": str(users)}
    words = ["serve", "--port", "0", "--json", "--audit", str(tmp_path / "audit.log")]
    planted = Planted({"the key": KEY, "the password": ALICE_PASSWORD, "a guess": WRONG})
    process = warm_python.cold_popen([*MAIN, *words], env={**os.environ, **variables})
    try:
        line = process.stdout.readline()
        address = f"127.0.0.1:{json.loads(line)['port']}"
        planted.keep("output", line)
        for auth in (KEY, WRONG, barrage.Basic("alice", ALICE_PASSWORD)):
            try:
                with barrage.connect(address, auth=auth) as session:
                    session.put("t", {"x": [1]})
            except BarrageError as error:
                planted.keep("errors", error)
        shown = subprocess.run(
            ["ps", "-ww", "-o", "args,comm", "-p", str(process.pid)],
            capture_output=True,
            text=True,
            check=False,
        )
        planted.keep("ps", shown.stdout)
        folder = Path(f"/proc/{process.pid}")
        for file in ("cmdline", "comm", "status", *(f"task/{t}/comm" for t in threads(folder))):
            with contextlib.suppress(OSError):
                planted.keep("the process", (folder / file).read_bytes())
        doctor = CliRunner().invoke(app, ["doctor", address], env={"BARRAGE_TOKEN": KEY})
        planted.keep("doctor", doctor.output)
        assert "t" in doctor.output
    finally:
        process.terminate()
        out, err = process.communicate(timeout=HANG_SECONDS)
    planted.keep("output", out + err)
    planted.keep("the audit log", (tmp_path / "audit.log").read_text())
    planted.check()


def threads(folder: Path) -> list[str]:
    try:
        return os.listdir(folder / "task")
    except OSError:
        return []


def test_what_is_looked_for_would_be_found():
    planted = Planted({"a secret": "hush"})
    for told in (
        "hush",
        base64.b64encode(b"alice:hush").decode(),
        b"hush".hex(),
        f"x{base64.b64encode(b'hush').decode()}",
    ):
        planted.told = {"a log": f"so {told} it is"}
        with pytest.raises(AssertionError, match="a secret is in a log"):
            planted.check()
