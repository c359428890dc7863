"""Settings of a journal store. Every field is in the unit its name ends with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from barrage.limits import NANOS_PER_MS

JournalClass: TypeAlias = Literal["durable", "memory"]

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalOptions:
    """How changes are grouped, kept and forgotten; the same for all tables of one store.

    History is forgotten when any of the three ``retain_`` limits is passed, in whole segments, and
    only up to a checkpoint. A consumer's hold keeps it longer, within ``hold_bytes_max``.
    """

    group_ns: int = 10 * NANOS_PER_MS
    """Longest time a change waits for others before all of them are written and synced."""

    group_bytes: int = MIB
    """Waiting bytes that are written at once, however short they have waited."""

    segment_bytes: int = 64 * MIB
    """Size at which a segment file is closed and the next one begun."""

    retain_bytes: int | None = 1024 * MIB
    """Bytes of history kept per table, the checkpoint beneath it not counted."""

    retain_age_ns: int | None = None
    """Age past which a change may be forgotten."""

    retain_steps: int | None = None
    """Versions kept per table."""

    hold_bytes_max: int = 4096 * MIB
    """Bytes of history per table past which even a consumer's hold is overridden."""

    holds_max: int = 10_000
    """Most consumers that may hold one table's history."""

    memory_bytes: int = 64 * MIB
    """Bytes of history kept per table in memory, for tables of class ``memory``."""

    reserve_bytes: int = 64 * MIB
    """Bytes of disk kept for the changes that are waiting when the disk gets full."""

    checkpoint_bytes_min: int = 16 * MIB
    """Bytes of changes since the last checkpoint below which none is made."""

    checkpoint_state_ratio: float = 2.0
    """A checkpoint is due when the changes since the last one outweigh the rows by this factor, so
    that reading them back costs at most that much more than reading the rows."""

    upkeep_bytes: int = 16 * MIB
    """Bytes written after which checkpoints and retention are looked at without waiting."""

    reserved_steps: int = 1_000_000
    """Step numbers set aside on disk at a time; so many may be skipped by a crash."""

    producers_max: int = 10_000
    """Producers per table whose position is kept; past it the one that moved longest ago goes."""


DEFAULT_JOURNAL_OPTIONS = JournalOptions()
