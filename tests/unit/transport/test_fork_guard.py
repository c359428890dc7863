"""A process that forks beside a connection is told of the variable that makes it safe."""

from __future__ import annotations

import subprocess

import pytest

import barrage
from barrage.transport.over_grpc.fork_guard import FORK_SUPPORT, ForkGuard, fork_guard


@pytest.fixture
def guard(monkeypatch):
    """A guard that has told nothing yet, and is not asked by the forks of later tests."""
    monkeypatch.setattr("os.register_at_fork", lambda **_: None)
    return ForkGuard()


class Channel:
    """Something that can be open."""


@pytest.mark.parametrize("value", [None, "1"])
def test_the_variable_is_named_once(guard, caplog, monkeypatch, value):
    monkeypatch.delenv(FORK_SUPPORT, raising=False)
    if value is not None:
        monkeypatch.setenv(FORK_SUPPORT, value)
    guard.before_fork()
    assert not caplog.records, "nobody is connected"
    channel = Channel()
    guard.opened(channel)
    guard.before_fork()
    guard.before_fork()
    assert [FORK_SUPPORT in record.getMessage() for record in caplog.records] == [True]


@pytest.mark.parametrize("value", ["0", "false"])
def test_nothing_is_said_where_it_is_off_or_closed(guard, caplog, monkeypatch, value):
    channel = Channel()
    guard.opened(channel)
    monkeypatch.setenv(FORK_SUPPORT, value)
    guard.before_fork()
    monkeypatch.delenv(FORK_SUPPORT)
    guard.closed(channel)
    guard.before_fork()
    assert not caplog.records


def test_a_session_is_guarded_while_it_is_open(caplog, monkeypatch):
    """No child is made here: what a fork would ask is asked."""
    monkeypatch.delenv(FORK_SUPPORT, raising=False)
    monkeypatch.setattr(fork_guard, "_has_told", False)
    with barrage.Server() as server:
        with barrage.connect(server.uri):
            fork_guard.before_fork()
            assert FORK_SUPPORT in caplog.text
        monkeypatch.setattr(fork_guard, "_has_told", False)
        caplog.clear()
    # A child without preexec_fn is none of those.
    subprocess.run(["true"], check=True)
    assert not caplog.records
