"""Two network namespaces with a pair of virtual devices between them: as near to two hosts as one
host gets. Skipped where namespaces cannot be made."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.ucx.links import wait_until_up

ROWS = 50_000


class Ends(NamedTuple):
    server_space: str
    server_device: str
    server_address: str
    client_space: str
    client_device: str


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=10)


@pytest.fixture(scope="module")
def ends() -> Iterator[Ends]:
    """Two namespaces that see each other and nobody else."""
    if shutil.which("ip") is None or os.geteuid() != 0:
        pytest.skip("making network namespaces takes root and the ip command")
    number = os.getpid() % 250
    made = Ends(
        f"brg-s-{os.getpid()}", f"brgs{number}", f"10.213.{number}.1",
        f"brg-c-{os.getpid()}", f"brgc{number}",
    )  # fmt: skip
    try:
        for space in (made.server_space, made.client_space):
            _ip("netns", "add", space)
        _ip(
            "link", "add", made.server_device, "netns", made.server_space, "type", "veth",
            "peer", "name", made.client_device, "netns", made.client_space,
        )  # fmt: skip
        for space, device, last in (
            (made.server_space, made.server_device, 1),
            (made.client_space, made.client_device, 2),
        ):
            _ip("-n", space, "addr", "add", f"10.213.{number}.{last}/30", "dev", device)
            _ip("-n", space, "link", "set", device, "up")
            _ip("-n", space, "link", "set", "lo", "up")
        wait_until_up(made.server_space, made.server_device)
        wait_until_up(made.client_space, made.client_device)
    except (OSError, subprocess.SubprocessError) as error:
        _remove(made)
        pytest.skip(f"network namespaces cannot be made here: {error}")
    yield made
    _remove(made)


def _remove(ends: Ends) -> None:
    for space in (ends.server_space, ends.client_space):
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            _ip("netns", "del", space)


def _command(space: str, *words: str) -> list[str]:
    return [
        "ip", "netns", "exec", space, sys.executable, "-m", "tests.ucx.namespace_peer", *words,
    ]  # fmt: skip


def test_tables_between_two_namespaces(ends: Ends) -> None:
    serving = _command(
        ends.server_space, "serve", ends.server_address, ends.server_device, str(ROWS)
    )
    with subprocess.Popen(
        serving, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        assert server.stdin is not None
        try:
            offers = json.loads(server.stdout.readline())
            assert len(offers) == 3
            for offer in offers:
                assert f"ucx://{ends.server_address}:" in offer[0]
                fetching = _command(
                    ends.client_space, "fetch", ends.client_device, str(ROWS), *offer
                )
                told = subprocess.run(
                    fetching, capture_output=True, text=True, check=False, timeout=60
                )
                assert told.stdout.strip() == "true", told.stderr
        finally:
            server.stdin.close()
            server.wait(10)


def test_an_address_that_nobody_can_reach(ends: Ends) -> None:
    """From the client's namespace the loopback of the server's is nowhere."""
    location = "ucx://127.0.0.1:4711?want_data=4503599627370496"
    fetching = _command(ends.client_space, "fetch", "lo", "1", location, location, "00" * 16)
    told = subprocess.run(fetching, capture_output=True, text=True, check=False, timeout=60)
    assert told.returncode != 0
    assert "TransportUnavailableError" in told.stderr


def test_connections_from_another_address_are_dropped_before_ucx_sees_them(ends: Ends) -> None:
    guarding = _command(ends.server_space, "guard", ends.server_address, ends.server_device)
    client_address = ends.server_address.removesuffix(".1") + ".2"
    with subprocess.Popen(
        guarding, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        port = json.loads(server.stdout.readline())

        def knocked(seconds: float) -> str:
            words = ("knock", ends.server_address, str(port), str(seconds))
            told = subprocess.run(
                _command(ends.client_space, *words), capture_output=True, text=True, timeout=90
            )
            return str(json.loads(told.stdout))

        try:
            for offered, expected in (
                ("", "dropped"),
                ("10.213.255.9", "dropped"),
                (f"10.213.255.9 {client_address}", "open"),
                ("10.213.255.9", "dropped"),
            ):
                server.stdin.write(offered + "\n")
                server.stdin.flush()
                assert json.loads(server.stdout.readline()) == len(offered.split())
                assert knocked(60.0 if expected == "open" else 1.5) == expected
        finally:
            server.stdin.close()
            server.wait(60)
