"""Runs a real pydeephaven against two of our servers: logging in, ticking types, ends of sessions.

``python pydeephaven_sessions.py OPEN_PORT GUARDED_PORT`` prints one JSON object per scenario. The
guarded server wants the token ``key``; both have a table ``wide`` and one called ``plain``.
Started by :mod:`tests.interop.test_pydeephaven_sessions`.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
import time
import traceback

from pydeephaven import Session
from pydeephaven.dherror import DHError
from pydeephaven_ticking import table_listener

gc.disable()
# A Table that is collected in one of gRPC's own threads asks whether its session is alive and waits
# for a lock, and whoever holds that waits for an answer which this thread would have to read.

OPEN, GUARDED = (int(port) for port in sys.argv[1:3])
LIFETIME_SECONDS = float(os.environ["BARRAGE_SESSION_SECONDS"])
KEY_HANDLER = "io.deephaven.authentication.psk.PskAuthenticationHandler"


def outcome(port: int, **login: str) -> str:
    """``in`` and a row count, or ``refused``."""
    try:
        session = Session("127.0.0.1", port, **login)
    except DHError:
        return "refused"
    try:
        return f"in, {session.open_table('plain').to_arrow().num_rows} rows"
    finally:
        session.close()


def logging_in() -> dict:
    return {
        "anonymous": outcome(OPEN),
        "unknown token": outcome(OPEN, auth_type="Bearer", auth_token="made up"),
        "guarded, anonymous": outcome(GUARDED),
        "guarded, key": outcome(GUARDED, auth_type=KEY_HANDLER, auth_token="key"),
        "guarded, wrong key": outcome(GUARDED, auth_type=KEY_HANDLER, auth_token="yek"),
        "guarded, password": outcome(GUARDED, auth_type="Basic", auth_token="me:key"),
        "guarded, wrong password": outcome(GUARDED, auth_type="Basic", auth_token="me:yek"),
        "guarded, token": outcome(GUARDED, auth_type="Bearer", auth_token="key"),
    }


class Follower:
    """Follows a table; waits for its first update or its end."""

    def __init__(self, session: Session, name: str) -> None:
        self.updated, self.failed = threading.Event(), threading.Event()
        self.error = ""
        table = session.open_table(name)
        self.types = [str(field.type) for field in table.schema]
        self.handle = table_listener.listen(table, self._on_update, self._on_error)
        self.handle.start()

    def _on_update(self, _update) -> None:
        self.updated.set()

    def _on_error(self, error) -> None:
        self.error = str(error)
        self.failed.set()


def types_of_the_ticking_client() -> dict:
    """``wide`` has columns its core does not read, until the session asks for types it does."""
    told = {}
    for name, headers in (("default", {}), ("ticking", {b"x-barrage-types": b"ticking"})):
        session = Session("127.0.0.1", OPEN, extra_headers=headers)
        try:
            follower = Follower(session, "wide")
        except Exception as error:
            told[name] = f"failed: {type(error).__name__}"
        else:
            assert follower.updated.wait(30), follower.error
            told[name] = follower.types
            follower.handle.stop()
        session.close()
    return told


def a_session_that_is_closed_ends_its_listeners() -> dict:
    session = Session("127.0.0.1", OPEN)
    followers = [Follower(session, "plain") for _ in range(3)]
    assert all(follower.updated.wait(30) for follower in followers)
    session.close()
    assert all(follower.failed.wait(30) for follower in followers)
    return {"errors": [follower.error for follower in followers]}


def a_session_nobody_keeps_alive() -> dict:
    session = Session("127.0.0.1", OPEN, never_timeout=False)
    follower = Follower(session, "plain")
    assert follower.updated.wait(30)
    assert follower.failed.wait(30)
    try:
        session.open_table("plain")
    except DHError as error:
        return {"stream": follower.error, "call": str(error)}
    return {"stream": follower.error, "call": "worked"}


def a_session_that_is_used() -> dict:
    """Every call renews it, although the timer that would is off."""
    session = Session("127.0.0.1", OPEN, never_timeout=False)
    tokens = {session._auth_header_value}
    started = time.monotonic()
    while time.monotonic() < started + 2.5 * LIFETIME_SECONDS:
        assert session.open_table("plain").to_arrow().num_rows == 2
        tokens.add(session._auth_header_value)
        time.sleep(LIFETIME_SECONDS / 8)
    session.close()
    return {"tokens": len(tokens)}


SCENARIOS = (
    logging_in,
    types_of_the_ticking_client,
    a_session_that_is_closed_ends_its_listeners,
    a_session_nobody_keeps_alive,
    a_session_that_is_used,
)


def main() -> None:
    for scenario in SCENARIOS:
        told: dict = {"scenario": scenario.__name__}
        try:
            told["result"] = scenario()
        except Exception:
            told["error"] = traceback.format_exc()
        sys.stdout.write(json.dumps(told) + "\n")
        sys.stdout.flush()


main()
