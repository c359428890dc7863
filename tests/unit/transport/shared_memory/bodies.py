"""Limits of small arenas, and bodies whose content says which one it is."""

from __future__ import annotations

import numpy as np

from barrage.limits import Limits
from barrage.transport.shared_memory import Arena, Region

KIB = 1024
SMALL = Limits(
    body_arena_bytes=256 * KIB, body_segment_bytes=64 * KIB, body_inline_bytes_max=1 * KIB
)
"""Four segments of 64 KiB."""


def content(seed: int, length: int) -> bytes:
    """Bytes that differ from those of any other seed nearly everywhere."""
    return np.random.default_rng(seed).bytes(length)


def placed(arena: Arena, body: bytes) -> Region:
    """A region with that body; the arena has room for it."""
    region = arena.place([body], len(body))
    assert region is not None
    return region


def fill(arena: Arena, length: int) -> list[Region]:
    """All regions of ``length`` bytes the arena has room for."""
    regions = []
    while (region := arena.allocate(length)) is not None:
        regions.append(region)
    return regions
