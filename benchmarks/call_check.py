"""What it costs to find the caller of a call that shows what it has shown before: the header is
read, the credentials are looked up, the call is entered and taken out. Without hashing a password,
which is done once a minute for each connection and takes tens of milliseconds beside the loop.
"""

from __future__ import annotations

import asyncio
import base64
import tempfile
from pathlib import Path
from typing import Any

from barrage.clock import SystemClock
from barrage.server.identity.credentials import Credentials
from barrage.server.identity.current_call import begin_call
from barrage.server.identity.password_hashing import hashed
from barrage.server.identity.setting_up import authenticator_of
from barrage.server.identity.users_file import UserRecord, changing_users
from barrage.server.settings.config import ServerConfig
from barrage.transport.base import NOBODY, PeerIdentity
from benchmarks.report import Measurement, result
from benchmarks.timing import best_ms

GOAL_US_MAX = 20.0
CALLS = 10_000
CALLS_QUICK = 1_000
PASSWORD = "correct horse"


class _Call:
    def peer(self) -> str:
        return "ipv4:127.0.0.1:4711"

    def peer_identity(self) -> PeerIdentity:
        return NOBODY


async def _measured(calls: int, users: Path) -> list[Measurement]:
    config = ServerConfig(token="the key", users=str(users))
    chain = authenticator_of(config, SystemClock(), hook=None, is_local=True)
    basic = "Basic " + base64.b64encode(f"alice:{PASSWORD}".encode()).decode()
    call, lines = _Call(), []
    caller = await chain.authenticate(Credentials.of_header(basic), call)  # type: ignore[arg-type]
    shown = {
        "user and password": basic,
        "key": "Bearer the key",
        "token of ours": f"Bearer {chain.tokens.issue(caller)}",
    }
    for name, header in shown.items():
        metadata = (("user-agent", "benchmark"), ("te", "trailers"), ("authorization", header))
        await chain.authenticate(Credentials.of_metadata(metadata), call)  # type: ignore[arg-type]

        def check(metadata: Any = metadata) -> None:
            for _ in range(calls):
                found = chain.known(Credentials.of_metadata(metadata), call)  # type: ignore[arg-type]
                assert found is not None
                begin_call(found)
                chain.calls.finish(chain.calls.begin(found, lambda _: None))

        value = best_ms(check) * 1000 / calls
        lines.append(
            Measurement(
                line=f"check a call, {name}",
                value=value,
                unit="µs",
                goal=f"at most {GOAL_US_MAX:g} µs",
                met=value <= GOAL_US_MAX,
            )
        )
    chain.close()
    return lines


def run(*, quick: bool = False) -> dict[str, Any]:
    """Measure the ways that are shown with every call."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "users.jsonl"
        with changing_users(path) as users:
            users["alice"] = UserRecord(name="alice", password=hashed(PASSWORD))
        lines = asyncio.run(_measured(CALLS_QUICK if quick else CALLS, path))
    return result("call_check", lines)
