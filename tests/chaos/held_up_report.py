"""What servers that were watched (:func:`tests.helpers.held_up.watch_process`) were held up by."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

WATCHED = "BARRAGE_TEST_WATCHED"
"""Set in the environment of servers that are to be watched."""

SUFFIX = ".held-up"
"""Of the file beside the data directory of the servers."""


def report_path(data: Path | str) -> Path:
    """Where all lives of the servers of a data directory write."""
    return Path(f"{data}{SUFFIX}")


@dataclass(slots=True)
class HeldUp:
    """Of all lives together."""

    violations: list[str] = field(default_factory=list)
    """What was above the bound, or file IO on the engine thread."""
    longest: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By thread: how long it took, and the text with the stack."""

    @classmethod
    def read(cls, data: Path | str) -> HeldUp:
        """A last line that a kill has cut is left out."""
        found = cls()
        for line in report_path(data).read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                found._take(json.loads(line))
        return found

    def _take(self, facts: dict[str, Any]) -> None:
        if "violation" in facts:
            self.violations.append(facts["violation"])
            return
        known = self.longest.get(facts["thread"])
        if known is None or known["took_ns"] < facts["took_ns"]:
            self.longest[facts["thread"]] = facts

    def __str__(self) -> str:
        return "\n".join(f"longest: {each['longest']}" for each in self.longest.values())
