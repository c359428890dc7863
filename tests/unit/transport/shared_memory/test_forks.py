"""The hooks around a fork, one after the other in one process, as the interpreter calls them."""

from __future__ import annotations

import os
import threading

import pytest

from barrage.transport.shared_memory import Arena, ArenaMapping, forks, mapped_segment
from tests.unit.transport.shared_memory.bodies import KIB, content, placed


class Thing:
    """Remembers its hooks."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def before_fork(self) -> None:
        self.seen.append("before")

    def after_fork_in_parent(self) -> None:
        self.seen.append("parent")

    def after_fork_in_child(self) -> None:
        self.seen.append("child")


def test_nothing_is_added_and_nobody_else_forks_in_the_middle_of_a_fork() -> None:
    first, second = Thing(), Thing()
    forks.watch_forks(first)

    def fork_too() -> None:
        forks._before()
        forks._after_in_child()

    forks._before()
    threads = [
        threading.Thread(target=forks.watch_forks, args=(second,)),
        threading.Thread(target=fork_too),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(0.05)
    alive = [thread.is_alive() for thread in threads]
    seen = list(first.seen)
    forks._after_in_parent()
    assert alive == [True, True]
    assert seen == ["before"]
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert first.seen == ["before", "parent", "before", "child"]
    assert second.seen in ([], ["before", "child"])
    assert second in forks._aware


def test_what_comes_back_during_a_fork_is_given_back_after_it(
    arena: Arena, mapping: ArenaMapping
) -> None:
    told: list[int] = []
    region = placed(arena, content(1, KIB))
    buffer = mapping.borrow(region.reference(), told.append)
    forks._before()
    del buffer
    assert told == [], "the child would not have it otherwise"
    forks._after_in_parent()
    assert told == [region.address]
    del region
    assert arena.statistics().bytes_in_use == 0


def test_child_that_could_be_given_no_opening_has_none(
    arena: Arena,
    mapping: ArenaMapping,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    told: list[int] = []
    region = placed(arena, content(1, KIB))
    buffer = mapping.borrow(region.reference(), told.append)

    def refuse(path: str, flags: int) -> int:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(mapped_segment.os, "open", refuse)
        forks._before()
    segment = mapping._segments[0]
    before = len(os.listdir("/proc/self/fd"))
    segment.after_fork_in_child()
    assert len(os.listdir("/proc/self/fd")) == before - 1
    del buffer
    assert told == []
    # It forks as well.
    segment.before_fork()
    segment.after_fork_in_child()
    forks._held.remove(segment)
    forks._after_in_parent()
    assert "may lose its arrays" in caplog.text
    assert "stays locked" not in caplog.text
