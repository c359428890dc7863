"""Arenas in a directory of their own, on the file system bodies really lie on."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from barrage.transport.shared_memory import Arena, ArenaMapping
from tests.unit.transport.shared_memory.bodies import SMALL


@pytest.fixture
def directory() -> Iterator[str]:
    if not Path("/dev/shm").is_dir():
        pytest.skip("this system has no /dev/shm")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as path:
        yield path


@pytest.fixture
def arena(directory: str) -> Iterator[Arena]:
    arena = Arena.create(SMALL, directory=directory)
    yield arena
    arena.close()


@pytest.fixture
def mapping(arena: Arena, directory: str) -> Iterator[ArenaMapping]:
    mapping = ArenaMapping.open(arena.name, directory=directory)
    yield mapping
    mapping.close()
