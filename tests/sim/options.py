"""What one seed switches on: every run has its own mix of tables, subscribers and faults, and
whole classes of faults are off in many of them."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

TABLE_KINDS = (
    "append",
    "append tail",
    "append where",
    "append last_by",
    "append sorted",
    "keyed",
    "keyed sorted",
    "keyed sorted head",
    "keyed where",
    "list",
    "list sorted",
    "list where",
    "ring",
    "ring sorted",
    "blink",
    "static",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Chances per link or client and tick, and sizes. 0 means never."""

    delay_ms_max: int = 0
    clog: float = 0.0
    clog_ms_max: int = 200
    cut: float = 0.0
    restart: float = 0.0
    half_close: float = 0.0
    slow_reader: float = 0.0
    misbehave: float = 0.0
    window_frames: int = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Everything drawn from the seed before the run starts."""

    table_kinds: tuple[str, ...]
    client_count: int
    ticks: int
    cycle_ms: int
    changes_per_cycle: int
    change_chance: float
    viewport_change: float
    snapshot_client: float
    stall_ms_max: int
    outbox_updates_max: int
    delta_segments_max: int
    initial_rows: int
    faults: Faults

    @classmethod
    def draw(cls, random: Random) -> Options:
        """Swarm style: each kind of trouble is there in some seeds only."""

        def sometimes(chance: float, high: float) -> float:
            return random.uniform(0, high) if random.random() < chance else 0.0

        faults = Faults(
            delay_ms_max=random.choice([0, 0, 3, 30, 120]),
            clog=sometimes(0.4, 0.02),
            clog_ms_max=random.choice([50, 200, 800]),
            cut=sometimes(0.4, 0.006),
            restart=sometimes(0.15, 0.004),
            half_close=sometimes(0.2, 0.004),
            slow_reader=sometimes(0.5, 0.03),
            misbehave=sometimes(0.2, 0.003),
            window_frames=random.choice([1, 1, 2, 8, 64]),
        )
        kinds = random.sample(TABLE_KINDS, random.randint(1, 4))
        return cls(
            table_kinds=tuple(kinds),
            client_count=random.randint(2, 9),
            ticks=random.choice([120, 250]),
            cycle_ms=random.choice([5, 10, 20, 40]),
            changes_per_cycle=random.choice([1, 1, 2, 4]),
            change_chance=random.choice([0.2, 0.6, 1.0]),
            viewport_change=random.choice([0.0, 0.01, 0.1]),
            snapshot_client=random.choice([0.0, 0.2]),
            stall_ms_max=random.choice([150, 400, 60_000, 60_000]),
            outbox_updates_max=random.choice([1, 2, 4]),
            delta_segments_max=random.choice([1, 2, 64]),
            initial_rows=random.choice([0, 1, 10, 60]),
            faults=faults,
        )
