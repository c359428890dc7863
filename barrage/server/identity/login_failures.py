"""How often a peer may be wrong: a bucket of failed logins for each, which empties with time.

A peer is a host; of IPv6 the network of 64 bits, of which one machine has all addresses. Behind a
proxy all callers are one peer.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

from barrage.errors import BarrageError, StatusCode

if TYPE_CHECKING:
    from barrage.clock import Clock
    from barrage.limits import Limits

_NANOS_PER_S = 1_000_000_000
_NETWORK_BITS = 64


class TooManyFailuresError(BarrageError):
    """This peer has shown wrong credentials too often and must wait."""

    status_code = StatusCode.RESOURCE_EXHAUSTED

    def __init__(self, wait_s: int) -> None:
        self.wait_s = wait_s
        super().__init__(f"too many failed logins from this host; try again in {wait_s} s")


class LoginFailures:
    """The buckets of one server. Runs on the event loop."""

    def __init__(self, limits: Limits, clock: Clock) -> None:
        self._limits = limits
        self._clock = clock
        self._buckets: dict[str, tuple[float, int]] = {}
        """Failures in each, and when it was so; the peer that failed last stands last."""

    def __len__(self) -> int:
        return len(self._buckets)

    def check(self, peer: str) -> None:
        """TooManyFailuresError when this peer has to wait."""
        over = self._level(host_of(peer)) - (self._limits.login_failures_max - 1)
        if over > 0:
            wait_ns = over * self._limits.login_failure_ns
            raise TooManyFailuresError(int(-(-wait_ns // _NANOS_PER_S)))

    def count(self, peer: str) -> None:
        """It has failed once more."""
        host = host_of(peer)
        level = self._level(host) + 1
        self._buckets.pop(host, None)
        if len(self._buckets) >= self._limits.login_failure_peers_max:
            del self._buckets[next(iter(self._buckets))]
        self._buckets[host] = (level, self._clock.monotonic_ns())

    def _level(self, host: str) -> float:
        found = self._buckets.get(host)
        if found is None:
            return 0.0
        level, at_ns = found
        passed_ns = self._clock.monotonic_ns() - at_ns
        return max(0.0, level - passed_ns / self._limits.login_failure_ns)


def host_of(peer: str) -> str:
    """The part of a peer's name that it cannot change by connecting again."""
    family, _, rest = peer.partition(":")
    if family == "ipv4":
        return rest.rpartition(":")[0]
    if family != "ipv6":
        return family
    address = rest.rpartition(":")[0].replace("%5B", "[").replace("%5D", "]").strip("[]")
    try:
        number = int(ipaddress.IPv6Address(address.partition("%")[0]))
    except ValueError:
        return family
    mapped = ipaddress.IPv6Address(number).ipv4_mapped
    if mapped is not None:
        return str(mapped)
    return f"{ipaddress.IPv6Address(number >> _NETWORK_BITS << _NETWORK_BITS)}/{_NETWORK_BITS}"
