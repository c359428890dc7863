"""Our client and server in two network namespaces: nothing but a cable between them."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import pytest

import barrage
from barrage.client import BodyStatus, BodyWay
from barrage.client.bodies import body_routes
from barrage.errors import TransportUnavailableError
from barrage.transport.ucx.dialer import DEVICES_VARIABLE, device_towards
from tests.helpers.server_process import wait_until
from tests.ucx.links import wait_until_up

WAIT = 30

SERVER = """
import sys, threading, numpy as np, pyarrow as pa, barrage
from barrage.server.settings.config import ServerConfig
config = ServerConfig(
    host={host!r}, port=0, token="secret", bodies="shm,ucx", ucx_host={host!r},
    ucx_allow_network=True, ucx_devices={device!r},
)
server = barrage.Server(config=config).start()
table = server.create_table("t", {{"k": "int64", "v": "int64"}}, key="k")
keys = np.arange(50_000)
table.upsert(pa.table({{"k": keys, "v": keys * 0}}))
sys.stdout.write(server.address + "\\n")
sys.stdout.flush()
for line in sys.stdin:
    table.upsert(pa.table({{"k": keys, "v": keys * 0 + int(line)}}))
"""


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=WAIT)


class Cable(NamedTuple):
    """The other namespace, the device in it and its address."""

    space: str
    device: str
    address: str


@contextmanager
def cable() -> Iterator[Cable]:
    """Names and addresses are drawn: another run may go on at the same time, or have been killed
    and left its own behind. Everything is gone afterwards."""
    word = secrets.token_hex(3)
    space, ours, theirs = f"bq{word}", f"bq{word}a", f"bq{word}b"
    net, block = f"10.213.{secrets.randbelow(256)}", 4 * secrets.randbelow(64)
    there, here = f"{net}.{block + 1}", f"{net}.{block + 2}"
    try:
        ip("netns", "add", space)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no network namespaces here: {error}")
    try:
        ip("link", "add", ours, "type", "veth", "peer", "name", theirs)
        ip("link", "set", theirs, "netns", space)
        ip("addr", "add", f"{here}/30", "dev", ours)
        ip("link", "set", ours, "up")
        ip("-n", space, "addr", "add", f"{there}/30", "dev", theirs)
        ip("-n", space, "link", "set", theirs, "up")
        ip("-n", space, "link", "set", "lo", "up")
        wait_until_up(None, ours)
        wait_until_up(space, theirs)
        yield Cable(space, theirs, there)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no virtual cable here: {error.stderr!r}")
    finally:
        ip("netns", "del", space)


@contextmanager
def server_at(cable: Cable) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    process = subprocess.Popen(
        ["ip", "netns", "exec", cable.space, sys.executable, "-c",
         SERVER.format(host=cable.address, device=cable.device)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=dict(os.environ),
    )  # fmt: skip
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert address.startswith(cable.address)
        yield address, process
    finally:
        process.kill()
        process.communicate()


def test_bodies_between_two_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    with cable() as there, server_at(there) as (address, process):
        own = device_towards(there.address)
        assert own.startswith("bq")
        assert own != there.device
        with (
            barrage.connect(address, auth="secret", bodies="ucx") as session,
            session.table("t").subscribe(interval_ms=10) as live,
        ):
            live.wait_ready(WAIT)
            assert live.bodies == BodyStatus(BodyWay.UCX)
            assert process.stdin is not None
            for value in range(1, 6):
                process.stdin.write(f"{value}\n")
                process.stdin.flush()
            wait_until(lambda: set(live.to_arrow()["v"].to_pylist()) == {5})
            assert live.stats.bodies.ucx.count > 1
            assert live.stats.reconnects == 0
        # A device that does not lead there: no connection, and bodies come inline.
        monkeypatch.setenv(DEVICES_VARIABLE, "lo")
        monkeypatch.setattr(body_routes, "CONNECT_SECONDS_MAX", 1.0)
        with (
            barrage.connect(address, auth="secret", bodies="ucx") as session,
            session.table("t").subscribe(interval_ms=10) as live,
        ):
            live.wait_ready(WAIT)
            assert live.bodies.way is BodyWay.INLINE
            assert live.bodies.reason
            assert set(live.to_arrow()["v"].to_pylist()) == {5}


def test_a_host_nobody_knows() -> None:
    with pytest.raises(TransportUnavailableError):
        device_towards("nowhere.invalid")
