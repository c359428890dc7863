"""Hosts with a network between them, on one machine: network namespaces, and links that are slow,
lose packets, or are cut.

Each host is a namespace with one interface, whose other end is in our hands: packets come to a
thread here, which passes them on as late as the link between the two hosts says, or not at all.
What ``tc netem`` does in kernels that have it is done here without it. Needs root, ``ip`` and
``/dev/net/tun``.
"""

from __future__ import annotations

import contextlib
import fcntl
import heapq
import itertools
import os
import random
import select
import shutil
import struct
import subprocess
import threading
import time
from dataclasses import dataclass

_TUN = "/dev/net/tun"
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
_PACKET_BYTES_MAX = 65_536
_WAITING_MAX = 5000
"""Packets under way; past it they are lost, as in a router."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """Between two hosts, the same both ways."""

    delay_ms: float = 0.0
    jitter_ms: float = 0.0
    """Added to the delay at random; packets keep their order."""
    loss: float = 0.0
    """Part of the packets that never arrive."""
    is_cut: bool = False


@dataclass(slots=True)
class LinkCount:
    """What a link has done, both ways together."""

    passed: int = 0
    lost: int = 0


@dataclass(frozen=True, slots=True)
class Host:
    """One of them."""

    name: str
    namespace: str
    address: str

    def command(self, *words: str) -> list[str]:
        """``words`` to be run there."""
        return ["ip", "netns", "exec", self.namespace, *words]


def refusal() -> str | None:
    """Why this machine cannot have such a network; None when it can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "the command ip is not installed (apt-get install iproute2)"
    if not os.access(_TUN, os.R_OK | os.W_OK):
        return f"there is no {_TUN}"
    try:
        with Network(["probe"]):
            return None
    except (OSError, subprocess.CalledProcessError) as error:
        return f"network namespaces cannot be made: {error}"


class Network:
    """The hosts of these names, which reach each other at once until :meth:`link` says else. To be
    used as a context manager; one at a time in a process."""

    def __init__(self, names: list[str], *, seed: int = 0) -> None:
        mark = f"b{os.getpid():x}"
        self.hosts = {
            name: Host(name, f"{mark}-{name}", f"10.77.0.{number}")
            for number, name in enumerate(names, 1)
        }
        self._mark = mark
        self._chance = random.Random(seed)
        self._links: dict[frozenset[str], Link] = {}
        self.counts: dict[frozenset[str], LinkCount] = {}
        self._ends: dict[str, int] = {}
        self._by_address = {
            bytes(int(part) for part in host.address.split(".")): host.name
            for host in self.hosts.values()
        }
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._pass_on, name="test network")

    def __enter__(self) -> Network:
        try:
            for number, host in enumerate(self.hosts.values()):
                _ip("netns", "add", host.namespace)
                device = f"{self._mark}t{number}"
                self._ends[host.name] = _tun(device)
                _ip("link", "set", "dev", device, "netns", host.namespace)
                _ip("-n", host.namespace, "address", "add", f"{host.address}/24", "dev", device)
                for each in ("lo", device):
                    _ip("-n", host.namespace, "link", "set", "dev", each, "up")
        except BaseException:
            self._take_down()
            raise
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        self._take_down()

    def _take_down(self) -> None:
        for end in self._ends.values():
            os.close(end)
        for host in self.hosts.values():
            with contextlib.suppress(subprocess.CalledProcessError):
                _ip("netns", "delete", host.namespace)

    def link(self, one: str, other: str, link: Link) -> None:
        """From now on it is so between these hosts."""
        with self._lock:
            self._links[frozenset((one, other))] = link

    def count(self, one: str, other: str) -> LinkCount:
        """What has gone between these hosts."""
        with self._lock:
            return self.counts.setdefault(frozenset((one, other)), LinkCount())

    # --- the thread ---

    def _pass_on(self) -> None:
        names = {end: name for name, end in self._ends.items()}
        waiting: list[tuple[float, int, int, bytes]] = []
        latest: dict[tuple[str, str], float] = {}
        order = itertools.count()
        while not self._is_over.is_set():
            pause = 0.05 if not waiting else min(max(waiting[0][0] - time.monotonic(), 0), 0.05)
            ready, _, _ = select.select(list(names), [], [], pause)
            for end in ready:
                packet = os.read(end, _PACKET_BYTES_MAX)
                target = self._target(packet)
                if target is None or len(waiting) >= _WAITING_MAX:
                    continue
                way = names[end], target
                delay_s = self._delay_s(way)
                if delay_s is not None:
                    due = max(time.monotonic() + delay_s, latest.get(way, 0.0))
                    latest[way] = due
                    heapq.heappush(waiting, (due, next(order), self._ends[target], packet))
            while waiting and waiting[0][0] <= time.monotonic():
                _, _, end, packet = heapq.heappop(waiting)
                with contextlib.suppress(OSError):
                    os.write(end, packet)

    def _target(self, packet: bytes) -> str | None:
        is_ipv4 = len(packet) >= 20 and packet[0] >> 4 == 4
        return self._by_address.get(packet[16:20]) if is_ipv4 else None

    def _delay_s(self, way: tuple[str, str]) -> float | None:
        """How late a packet arrives; None when it does not."""
        with self._lock:
            link = self._links.get(frozenset(way), Link())
            count = self.counts.setdefault(frozenset(way), LinkCount())
            if link.is_cut or self._chance.random() < link.loss:
                count.lost += 1
                return None
            count.passed += 1
            return (link.delay_ms + self._chance.random() * link.jitter_ms) / 1000


def _tun(device: str) -> int:
    """Our end of a new interface."""
    end = os.open(_TUN, os.O_RDWR | os.O_CLOEXEC)
    try:
        request = struct.pack("16sH22x", device.encode(), _IFF_TUN | _IFF_NO_PI)
        fcntl.ioctl(end, _TUNSETIFF, request)
    except BaseException:
        os.close(end)
        raise
    return end


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
