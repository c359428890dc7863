"""Runs a real pydeephaven, and the ticking client, as users, over TLS and under rules.

``python pydeephaven_rules.py PORT CA TOKEN PASSWORD`` prints one JSON object. The server knows
alice, who may do everything, and bob, who sees the rows of his own in ``trades``, without their
accounts; ``TOKEN`` is a bearer token of his. It adds rows when a line is printed. Started by
:mod:`tests.interop.test_pydeephaven_rules`.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

import pyarrow as pa
from pydeephaven import Session, agg
from pydeephaven.dherror import DHError
from pydeephaven_ticking import table_listener

SECONDS = 60


class Scene:
    def __init__(self, port: str, ca: str, password: str) -> None:
        self.port = int(port)
        self.ca = Path(ca).read_bytes()
        self.password = password

    def session(self, auth_type: str, auth_token: str) -> Session:
        return Session(
            "localhost",
            self.port,
            auth_type=auth_type,
            auth_token=auth_token,
            use_tls=True,
            tls_root_certs=self.ca,
        )

    def user(self, name: str) -> Session:
        return self.session("Basic", f"{name}:{self.password}")


def outcome(work: Any) -> str:
    """What it gives, or the status it is refused with."""
    try:
        return str(work())
    except DHError as error:
        text = f"{error} {error.__cause__}"
        known = ("UNAUTHENTICATED", "PERMISSION_DENIED", "NOT_FOUND", "INVALID_ARGUMENT")
        return next((each for each in known if each in text), text)


def rows(session: Session, table: str = "trades") -> list[dict[str, Any]]:
    return session.open_table(table).to_arrow().to_pylist()


def work_of(session: Session) -> dict[str, Any]:
    trades = session.open_table("trades")
    again = session.open_table("trades")
    joined = trades.natural_join(again, on=["Id"], joins=["Other = Desk"])
    counted = trades.agg_by([agg.count_("n")], by=["Desk"]).to_arrow().to_pylist()
    return {
        "columns": trades.to_arrow().column_names,
        "ids": trades.to_arrow()["Id"].to_pylist(),
        "filtered": trades.where("Id > 3").to_arrow()["Id"].to_pylist(),
        "counted": counted,
        "joined": joined.to_arrow().num_rows,
        "by a hidden column": outcome(lambda: trades.where("Account = `a`").to_arrow()),
        "tables": sorted(name for name in session.tables if not name.startswith("_")),
        "hidden": outcome(lambda: rows(session, "hidden")),
        "nothing": outcome(lambda: rows(session, "nothing")),
        "named": outcome(lambda: session.bind_table("trades", trades)),
        "uploaded": session.import_table(pa.table({"a": [1, 2]})).to_arrow().num_rows,
    }


def followed(session: Session) -> list[int]:
    """The keys a listener is told of, until there are four."""
    told: list[int] = []
    is_enough = threading.Event()

    def note(update: Any) -> None:
        told.extend(update.added("Id").get("Id", pa.array([])).to_pylist())
        if len(told) >= 4:
            is_enough.set()

    handle = table_listener.listen(session.open_table("trades"), note)
    handle.start()
    print("following", flush=True)
    is_enough.wait(SECONDS)
    handle.stop()
    return sorted(told)


def main() -> None:
    port, ca, token, password = sys.argv[1:]
    scene = Scene(port, ca, password)
    told: dict[str, Any] = {}
    for name, made in (("bob", scene.user("bob")), ("token", scene.session("Bearer", token))):
        told[name] = work_of(made)
        made.close()
    alice = scene.user("alice")
    told["alice"] = len(rows(alice)), sorted(rows(alice)[0]), rows(alice, "hidden")
    alice.close()
    for name, login in {
        "wrong password": ("Basic", "bob:nope"),
        "wrong token": ("Bearer", token[:-4] + "AAAA"),
        "nobody": ("Anonymous", ""),
    }.items():
        told[name] = outcome(lambda login=login: scene.session(*login))
    bob = scene.user("bob")
    told["followed"] = followed(bob)
    bob.close()
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    try:
        main()
    except BaseException:
        # Not by the interpreter's own end, in which the library waits for its server.
        traceback.print_exc()
        os._exit(1)
