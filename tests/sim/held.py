"""What a seed draws about readers that lag behind: bounds so small that their changes are given up
often, and one more table whose operator makes row sets that are no ranges."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from barrage.limits import DEFAULT_LIMITS

EXTRA_KINDS = ("keyed where", "keyed sorted", "keyed", "keyed joined", "list sorted")


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOptions:
    """Drawn from a generator of its own: what a seed draws besides stays what it was."""

    table_bytes_max: int = DEFAULT_LIMITS.held_table_bytes_max
    server_bytes_max: int = DEFAULT_LIMITS.held_server_bytes_max
    propagation_bytes_max: int = DEFAULT_LIMITS.propagation_bytes_max
    extra_kind: str | None = None
    """Kind of the additional table."""
    extra_share: float = 0.0
    """Chance of a client to subscribe to it."""

    @classmethod
    def draw(cls, random: Random) -> HeldOptions:
        """Half of the seeds have bounds that matter."""
        if random.random() < 0.5:
            return cls()
        return cls(
            table_bytes_max=random.choice([0, 500, 1000, 2000, 4000, cls().table_bytes_max]),
            server_bytes_max=random.choice([0, 1000, 4000, *[cls().server_bytes_max] * 3]),
            propagation_bytes_max=random.choice([0, cls().propagation_bytes_max]),
            extra_kind=random.choice(EXTRA_KINDS),
            extra_share=random.choice([0.3, 0.6]),
        )

    turn_work_max: int = DEFAULT_LIMITS.turn_work_max
    makings_max: int = DEFAULT_LIMITS.makings_max
    making_chance: float = 1.0
    """Chance per tick that what is made beside is done."""

    def with_makings(self, random: Random) -> HeldOptions:
        """In two thirds of the seeds messages are made beside: all of them, or large ones."""
        if random.random() < 0.33:
            return self
        return replace(
            self,
            turn_work_max=random.choice([0, 0, 20, 100, 400]),
            makings_max=random.choice([1, 1, 2, 5]),
            making_chance=random.choice([0.03, 0.2, 1.0]),
        )

    def limits(self) -> dict[str, int]:
        return {
            "held_table_bytes_max": self.table_bytes_max,
            "held_server_bytes_max": self.server_bytes_max,
            "propagation_bytes_max": self.propagation_bytes_max,
            "turn_work_max": self.turn_work_max,
            "makings_max": self.makings_max,
        }
