"""Runs a real pydeephaven, and the ticking client, against our servers over TLS.

``python pydeephaven_tls.py PORT CA [CERTIFICATE KEY]`` prints one JSON object. The server wants the
token ``key`` and has a keyed table ``plain`` of two rows, to which it adds one when a line is
printed. Started by :mod:`tests.interop.test_pydeephaven_tls`.
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

from pydeephaven import Session
from pydeephaven.dherror import DHError
from pydeephaven_ticking import table_listener

KEY_HANDLER = "io.deephaven.authentication.psk.PskAuthenticationHandler"
SECONDS = 60


def session(port: int, ca: str, shown: list[str], **login: str) -> Session:
    """One that trusts ``ca``, and shows a certificate and its key."""
    certificate, key = ([Path(each).read_bytes() for each in shown]) or (b"", b"")
    return Session(
        "localhost",
        port,
        use_tls=True,
        tls_root_certs=Path(ca).read_bytes(),
        client_cert_chain=certificate,
        client_private_key=key,
        **login,
    )


def outcome(port: int, ca: str, shown: list[str], **login: str) -> str:
    """Rows, or that it was refused."""
    try:
        made = session(port, ca, shown, **login)
    except DHError:
        return "refused"
    try:
        return f"{made.open_table('plain').to_arrow().num_rows} rows"
    finally:
        made.close()


def followed(port: int, ca: str, shown: list[str]) -> list[int]:
    """The keys a listener is told of, until there are three."""
    made = session(port, ca, shown, auth_type=KEY_HANDLER, auth_token="key")
    told: list[int] = []
    is_enough = threading.Event()

    def note(update) -> None:
        told.extend(update.added("K").get("K", pa_empty()).to_pylist())
        if len(told) >= 3:
            is_enough.set()

    def pa_empty():
        import pyarrow as pa

        return pa.array([])

    handle = table_listener.listen(made.open_table("plain"), note)
    handle.start()
    print("following", flush=True)
    is_enough.wait(SECONDS)
    handle.stop()
    made.close()
    return sorted(told)


def main() -> None:
    port, ca, *shown = sys.argv[1:]
    told = {
        "key": outcome(int(port), ca, shown, auth_type=KEY_HANDLER, auth_token="key"),
        "password": outcome(int(port), ca, shown, auth_type="Basic", auth_token="me:key"),
        "wrong key": outcome(int(port), ca, shown, auth_type=KEY_HANDLER, auth_token="yek"),
        "followed": followed(int(port), ca, shown),
    }
    if shown:
        told["without a certificate"] = outcome(
            int(port), ca, [], auth_type=KEY_HANDLER, auth_token="key"
        )
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
