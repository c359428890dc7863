"""From where clients may connect by UCX, given from where they call."""

from __future__ import annotations

import ipaddress

import pytest

from barrage.transport.ucx.caller_hosts import hosts_of
from barrage.transport.ucx.served_bodies import warn_of_network

HERE = {"127.0.0.1"}


@pytest.mark.parametrize(
    ("peer", "ucx_host", "hosts"),
    [
        ("ipv4:10.0.0.2:4711", "10.0.0.1", {"10.0.0.2"}),
        ("ipv6:[::ffff:10.0.0.2]:4711", "10.0.0.1", {"10.0.0.2"}),
        ("ipv6:%5B::ffff:10.0.0.2%5D:4711", "10.0.0.1", {"10.0.0.2"}),
        ("ipv4:127.0.0.1:4711", "127.0.0.1", HERE),
        ("ipv4:127.0.0.9:4711", "localhost", HERE),
        ("ipv6:%5B::1%5D:4711", "127.0.0.1", HERE),
        ("ipv4:10.0.0.1:4711", "127.0.0.1", HERE),
        ("ipv4:127.0.0.1:4711", "10.0.0.1", {"10.0.0.1", *HERE}),
        ("ipv4:10.0.0.1:4711", "10.0.0.1", {"10.0.0.1", *HERE}),
        ("unix:", "10.0.0.1", {"10.0.0.1", *HERE}),
        ("", "10.0.0.1", {"10.0.0.1", *HERE}),
        ("ipv6:[fd00::2]:4711", "10.0.0.1", set()),
        ("ipv6:[fe80::2%25eth0]:4711", "10.0.0.1", set()),
        ("ipv4:nonsense:4711", "10.0.0.1", set()),
        ("ipv4:10.0.0.2:4711", "server.example", {"10.0.0.2"}),
    ],
)
def test_hosts_of_a_caller(peer: str, ucx_host: str, hosts: set[str]) -> None:
    assert hosts_of(peer, ucx_host) == {ipaddress.IPv4Address(each) for each in hosts}


def test_a_port_that_other_hosts_reach_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    warn_of_network("127.0.0.1", 4711)
    assert not caplog.records
    warn_of_network("10.0.0.1", 4711)
    assert "10.0.0.1:4711" in caplog.text
    assert "can end it" in caplog.text
    assert "docs/security.md" in caplog.text
