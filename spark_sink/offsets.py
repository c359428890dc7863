"""Offsets: the names of places in a source's progress, as Spark's logs keep them.

Spark compares offsets as text, so they are built in one function with one order of keys; and it
asks for the initial one again and again, also after a restart, so that one is a constant that
names no place (spark.md sections 3.2 and 4.4).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

VERSION_MAX = 2**63 - 1

COMPLETE = -1
"""``row`` of an offset up to which everything was read."""


@dataclass(frozen=True, slots=True)
class Offset:
    """``epoch`` and ``version`` name a state of the table. ``row`` is -1 when everything up to it
    was read; else a snapshot of it is being read in pieces, and rows with ids below ``row`` are
    done. ``sync`` counts the snapshots started: where it differs between two offsets, the rows
    between them are a new snapshot instead of changes."""

    epoch: str
    version: int
    row: int = COMPLETE
    sync: int = 0

    @property
    def is_symbolic(self) -> bool:
        """Whether this is the initial offset, which names no state."""
        return not self.epoch

    def as_json(self) -> dict[str, Any]:
        """The form Spark writes; the only place where it is built."""
        return {
            "epoch": self.epoch,
            "version": self.version,
            "row": self.row,
            "sync": self.sync,
        }

    @classmethod
    def of(cls, found: object) -> Offset:
        """The offset in a parsed JSON object; ValueError says what is wrong with it."""
        if not isinstance(found, dict):
            raise ValueError(f"an offset is a JSON object, not {type(found).__name__}")
        epoch = found.get("epoch")
        if not isinstance(epoch, str) or len(epoch) > 64:
            raise ValueError("its epoch is not a text")
        version = _number(found, "version", None, least=-1)
        row = _number(found, "row", COMPLETE, least=COMPLETE)
        return cls(epoch, version, row, _number(found, "sync", 0, least=0))


def _number(found: dict[str, Any], name: str, default: int | None, *, least: int) -> int:
    value = found.get(name, default)
    if type(value) is not int or not least <= value <= VERSION_MAX:
        raise ValueError(f"its {name} is not a whole number of at least {least}")
    return value


SYMBOLIC = Offset("", -1, COMPLETE, 0)
"""Before anything was read."""
