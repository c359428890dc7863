"""Which hosts messages of alerts may go to, by name and by the address a name stands for.

A name is checked when an alert is declared, the address each time a connection is made, and the
connection is made to that address: what a name stands for may be another one a moment later.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from barrage.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable

    IPAddress: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
    IPNetwork: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

_INTERNET = ipaddress.IPv6Network("2000::/3")
"""All of IPv6 that is given out to be routed (RFC 4291, 2.4)."""

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_ANY_HOST = "*."
_LABEL = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")

HOSTS_MAX = 1_000


@dataclass(frozen=True, slots=True)
class ReceiverHosts:
    """Hosts that were named. With none every host may be sent to that has a public address."""

    names: frozenset[str] = frozenset()
    """In small letters; ``*.example.org`` stands for all below."""
    networks: tuple[IPNetwork, ...] = ()
    """Addresses, also those that are not public."""

    @classmethod
    def parse(cls, texts: Iterable[str]) -> ReceiverHosts:
        """Names, addresses and networks (``10.0.0.0/8``). ConfigError."""
        names, networks = set(), []
        for text in (each.strip().lower() for each in texts):
            network = _network(text)
            if network is not None:
                networks.append(network)
                continue
            if not is_host(text.removeprefix(_ANY_HOST)):
                raise ConfigError(
                    f"hosts of alerts are names (*.example.org for all below), addresses and "
                    f"networks such as 10.0.0.0/8, not {text[:60]!r}"
                )
            names.add(text.rstrip("."))
        if len(names) + len(networks) > HOSTS_MAX:
            raise ConfigError(f"there are more than {HOSTS_MAX} hosts of alerts")
        return cls(frozenset(names), tuple(networks))

    def __or__(self, other: ReceiverHosts) -> ReceiverHosts:
        return ReceiverHosts(self.names | other.names, (*self.networks, *other.networks))

    def names_host(self, host: str) -> bool:
        """Whether a host of an address, a name or an IP address, was named, or none was at all."""
        plain = host.lower().rstrip(".")
        address = _address(plain)
        if address is not None:
            is_named = any(address in network for network in self.networks)
            return is_named or (not self.names and not self.networks and is_public(address))
        if not self.names:
            return not self.networks
        labels = plain.split(".")
        above = (_ANY_HOST + ".".join(labels[at:]) for at in range(1, len(labels)))
        return plain in self.names or any(each in self.names for each in above)

    def allows(self, address: IPAddress | str) -> bool:
        """Whether a connection may be made to an address: one that is public, or was named."""
        found = _address(address) if isinstance(address, str) else address
        if found is None:
            return False
        return any(found in network for network in self.networks) or is_public(found)


def is_host(text: str) -> bool:
    """Whether it is an address, or may be a name."""
    plain = text.removesuffix(".")
    labels = plain.split(".")
    return _address(text) is not None or (len(plain) <= 253 and all(map(_is_label, labels)))


def is_public(address: IPAddress) -> bool:
    """Whether it is an address of the internet, and of nothing nearer in another form."""
    inner = _embedded(address)
    if inner is not None:
        return is_public(inner)
    if address.version == 6 and address not in _INTERNET:
        return False
    return address.is_global and not address.is_multicast and not address.is_reserved


def _embedded(address: IPAddress) -> IPAddress | None:
    """The IPv4 address for which one of IPv6 stands."""
    if not isinstance(address, ipaddress.IPv6Address):
        return None
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    if address.teredo is not None:
        return address.teredo[1]
    return address.ipv4_mapped or address.sixtofour


def _address(text: str) -> IPAddress | None:
    try:
        found = ipaddress.ip_address(text.strip("[]").partition("%")[0])
    except ValueError:
        return None
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return mapped or found


def _network(text: str) -> IPNetwork | None:
    try:
        return ipaddress.ip_network(text.strip("[]"), strict=False)
    except ValueError:
        return None


def _is_label(text: str) -> bool:
    return text.isascii() and bool(_LABEL.fullmatch(text))
