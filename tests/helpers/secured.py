"""Servers of the large suites that ask who calls: TLS, users with passwords and tokens, rules.

``make interop-secured`` and ``make test-spark-secured`` set ``SECURED_SUITE``: then the servers
that the fixtures of those suites start are such ones, and every client logs in, as alice.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow.flight as flight

import barrage
from barrage import Operation, Policy, Rule
from tests.helpers.certificates import authority
from tests.helpers.users import ALICE_PASSWORD, users_file

IS_SECURED = bool(os.environ.get("SECURED_SUITE"))
USER = "alice"


def rules(*parts: str) -> Policy:
    """Alice may do everything, but that she is shown ``parts`` by an operator of rules, as who sees
    a part of a table is: here it lets all rows through and hides a column none has."""
    keeper = Rule(tables=("*", "_*"), users=(USER,), allow=frozenset({Operation.ADMIN}))
    if not parts:
        return Policy.of(keeper)
    shown = Rule(
        tables=parts,
        users=(USER,),
        allow=frozenset({Operation.READ}),
        rows=f"caller() = '{USER}'",
        hide=("Secret",),
    )
    return Policy.of(shown, keeper)


class Secured:
    """The files of such a server, in a folder; any process may ask for them once they are made."""

    def __init__(self, folder: Path) -> None:
        self.ca = str(folder / "ca.pem")
        self._certificate, self._key = str(folder / "server.pem"), str(folder / "server.key")
        self._users = str(folder / "users.jsonl")
        self._tokens: dict[int, str] = {}

    @classmethod
    def made(cls, folder: Path) -> Secured:
        authority().write(folder)
        authority().for_localhost().write(folder, "server")
        users_file(folder / "users.jsonl")
        return cls(folder)

    def settings(self) -> dict[str, Any]:
        """Those of the server's configuration."""
        return {
            "users": self._users,
            "tls_cert": self._certificate,
            "tls_key": self._key,
        }

    def connect(self, uri: str) -> barrage.Session:
        """A session of our client, with the password."""
        auth = barrage.Basic(USER, ALICE_PASSWORD)
        return barrage.connect(uri, auth=auth, tls=barrage.TLS(ca=self.ca))

    def token(self, address: str, *, server: int = 0) -> str:
        """A bearer token; the same one for all calls of one ``server``, any number."""
        if server not in self._tokens:
            root = Path(self.ca).read_bytes()
            with flight.connect(f"grpc+tls://{address}", tls_root_certs=root) as client:
                _, header = client.authenticate_basic_token(USER, ALICE_PASSWORD)
            self._tokens[server] = header.decode().removeprefix("Bearer ")
        return self._tokens[server]

    def login(self, address: str, *, server: int = 0) -> dict[str, str]:
        """What scripts with Deephaven's clients take to log in."""
        token = self.token(address, server=server)
        return {"ca": self.ca, "auth_type": "Bearer", "auth_token": token}

    def spark_options(self) -> dict[str, str]:
        """Of the Spark source and sink."""
        return {
            "tls.rootCertificates": self.ca,
            "auth.user": USER,
            "auth.password": ALICE_PASSWORD,
        }
