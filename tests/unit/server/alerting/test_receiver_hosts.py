"""Where messages of alerts may go."""

from __future__ import annotations

import pytest

from barrage.errors import ConfigError
from barrage.server.alerting.receiver_hosts import HOSTS_MAX, ReceiverHosts

NOT_PUBLIC = [
    "127.0.0.1",
    "127.1.2.3",
    "0.0.0.0",
    "10.0.0.1",
    "172.16.0.1",
    "192.168.1.1",
    "169.254.169.254",
    "100.64.0.1",
    "224.0.0.1",
    "240.0.0.1",
    "255.255.255.255",
    "::1",
    "::",
    "fe80::1",
    "fe80::1%eth0",
    "fc00::1",
    "fec0::1",
    "fec0::a00:1",
    "4000::1",
    "::127.0.0.1",
    "64:ff9b:1::7f00:1",
    "ff02::1",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "64:ff9b::7f00:1",
    "64:ff9b::a9fe:a9fe",
    "2002:7f00:1::",
    "2001:0:4136:e378:8000:63bf:80ff:fffe",
    "nonsense",
    "",
]


@pytest.mark.parametrize("address", NOT_PUBLIC)
def test_what_is_not_public_is_refused_unless_it_is_named(address):
    assert not ReceiverHosts().allows(address)
    assert not ReceiverHosts.parse(["hooks.example.org"]).allows(address)


@pytest.mark.parametrize("address", ["93.184.216.34", "2606:2800:220:1::1", "64:ff9b::5db8:d822"])
def test_public_addresses_may_be_sent_to(address):
    assert ReceiverHosts().allows(address)
    assert ReceiverHosts.parse(["hooks.example.org"]).allows(address)


@pytest.mark.parametrize(
    ("named", "address"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("127.0.0.0/8", "::ffff:127.0.0.1"),
        ("10.0.0.0/8", "10.255.255.255"),
        ("::1", "::1"),
        ("fc00::/7", "fd00::1"),
    ],
)
def test_what_is_named_may_be_sent_to(named, address):
    assert ReceiverHosts.parse([named]).allows(address)


def test_a_network_ends_where_it_ends():
    hosts = ReceiverHosts.parse(["10.0.0.0/24"])
    assert hosts.allows("10.0.0.255")
    assert not hosts.allows("10.0.1.0")


@pytest.mark.parametrize(
    ("named", "host", "is_named"),
    [
        ([], "hooks.example.org", True),
        ([], "93.184.216.34", True),
        ([], "127.0.0.1", False),
        ([], "::1", False),
        (["hooks.example.org"], "HOOKS.example.org.", True),
        (["hooks.example.org"], "example.org", False),
        (["hooks.example.org"], "93.184.216.34", False),
        (["*.example.org"], "a.b.example.org", True),
        (["*.example.org"], "example.org", False),
        (["*.example.org"], "evilexample.org", False),
        (["10.0.0.0/8"], "10.1.2.3", True),
        (["10.0.0.0/8"], "93.184.216.34", False),
        (["10.0.0.0/8"], "inner", False),
    ],
)
def test_hosts_of_addresses_are_those_that_were_named(named, host, is_named):
    assert ReceiverHosts.parse(named).names_host(host) is is_named


@pytest.mark.parametrize("text", ["", "a b", "a/b", "http://a", "*", "10.0.0.0/99", "a..b"])
def test_what_is_no_host_is_refused(text):
    with pytest.raises(ConfigError, match="hosts of alerts are"):
        ReceiverHosts.parse([text])


def test_there_are_so_many_hosts_at_most():
    ReceiverHosts.parse(f"h{n}" for n in range(HOSTS_MAX))
    with pytest.raises(ConfigError, match="more than"):
        ReceiverHosts.parse(f"h{n}" for n in range(HOSTS_MAX + 1))
