"""Locks that belong to one opening of a file."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from barrage.transport.shared_memory import locks


@pytest.fixture
def two(tmp_path: Path):
    path = tmp_path / "file"
    path.write_bytes(bytes(1000))
    reader, writer = os.open(path, os.O_RDONLY), os.open(path, os.O_RDWR)
    yield reader, writer
    os.close(writer)
    os.close(reader)


def test_a_lock_is_seen_by_other_openings_of_this_process(two: tuple[int, int]) -> None:
    reader, writer = two
    assert not locks.is_locked(writer, 0, 1000)
    locks.lock_shared(reader, 100, 50)
    assert locks.is_locked(writer, 149, 1)
    assert locks.is_locked(writer, 0, 101)
    assert not locks.is_locked(writer, 0, 100)
    assert not locks.is_locked(writer, 150, 1000)
    assert not locks.is_locked(reader, 0, 1000), "its own lock is in nobody's way"
    locks.unlock(reader, 100, 50)
    assert not locks.is_locked(writer, 0, 1000)


def test_two_readers_lock_the_same_part(two: tuple[int, int], tmp_path: Path) -> None:
    reader, writer = two
    other = os.open(tmp_path / "file", os.O_RDONLY)
    locks.lock_shared(reader, 0, 10)
    locks.lock_shared(other, 0, 10)
    locks.unlock(reader, 0, 10)
    assert locks.is_locked(writer, 0, 10)
    os.close(other)
    assert not locks.is_locked(writer, 0, 10), "closing gives locks back"


def test_unlocking_in_the_middle_keeps_the_neighbours(two: tuple[int, int]) -> None:
    reader, writer = two
    for start in (0, 10, 20):
        locks.lock_shared(reader, start, 10)
    locks.unlock(reader, 10, 10)
    assert [locks.is_locked(writer, start, 10) for start in (0, 10, 20)] == [True, False, True]


def test_only_one_may_own_a_file(two: tuple[int, int]) -> None:
    reader, writer = two
    assert locks.own_file(writer)
    assert not locks.own_file(reader)


def test_what_the_kernel_refuses_is_an_error(two: tuple[int, int]) -> None:
    reader, writer = two
    with pytest.raises(OSError, match="Bad file descriptor"):
        locks.lock_shared(-1, 0, 1)
    with pytest.raises(OSError, match="Invalid argument"):
        locks.is_locked(writer, -1, 1)
    request = locks._FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 10, 0)
    fcntl.fcntl(writer, fcntl.F_OFD_SETLK, request)
    with pytest.raises(BlockingIOError):
        locks.lock_shared(reader, 9, 1)
