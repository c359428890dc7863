"""How much the machines have done."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Counts:
    """Since they were last taken."""

    steps: int = 0
    """Seams that threads have passed, and callbacks that loops have run."""
    switches: int = 0
    """How often somebody else than the last one went on; of a loop, tasks that were put off."""

    def add(self, steps: int, switches: int) -> None:
        self.steps += steps
        self.switches += switches

    def take(self) -> dict[str, int]:
        taken = {"steps": self.steps, "switches": self.switches}
        self.steps = self.switches = 0
        return taken


COUNTS = Counts()
