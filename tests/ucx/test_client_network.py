"""Our client and server in two network namespaces: nothing but a cable between them."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import barrage
from barrage.client import BodyStatus, BodyWay
from barrage.client.body_backends import DEVICES_VARIABLE, device_towards
from barrage.errors import TransportUnavailableError
from tests.helpers.server_process import wait_until
from tests.ucx.links import wait_until_up

WAIT = 20
HERE, THERE = "10.213.77.2", "10.213.77.1"

SERVER = """
import sys, threading, numpy as np, pyarrow as pa, barrage
from barrage.server.config import ServerConfig
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


@contextmanager
def cable() -> Iterator[tuple[str, str]]:
    """Name of the other namespace and of the device in it; both are gone afterwards."""
    word = secrets.token_hex(3)
    space, ours, theirs = f"bq{word}", f"bq{word}a", f"bq{word}b"
    try:
        ip("netns", "add", space)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no network namespaces here: {error}")
    try:
        ip("link", "add", ours, "type", "veth", "peer", "name", theirs)
        ip("link", "set", theirs, "netns", space)
        ip("addr", "add", f"{HERE}/30", "dev", ours)
        ip("link", "set", ours, "up")
        ip("-n", space, "addr", "add", f"{THERE}/30", "dev", theirs)
        ip("-n", space, "link", "set", theirs, "up")
        ip("-n", space, "link", "set", "lo", "up")
        wait_until_up(None, ours)
        wait_until_up(space, theirs)
        yield space, theirs
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no virtual cable here: {error.stderr!r}")
    finally:
        ip("netns", "del", space)


@contextmanager
def server_in(space: str, device: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    process = subprocess.Popen(
        ["ip", "netns", "exec", space, sys.executable, "-c",
         SERVER.format(host=THERE, device=device)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=dict(os.environ),
    )  # fmt: skip
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert address.startswith(THERE)
        yield address, process
    finally:
        process.kill()
        process.communicate()


def test_bodies_between_two_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    with cable() as (space, device), server_in(space, device) as (address, process):
        own = device_towards(THERE)
        assert own.startswith("bq")
        assert own != device
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
