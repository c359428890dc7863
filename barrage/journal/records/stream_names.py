"""Under which names the positions of external streams stand among those of producers.

Positions of streams are never forgotten, as a stream that nobody knows any more would be sent again
from its beginning; those of producers are, the longest silent first. Producers' names are
printable, so they cannot be taken for a stream's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

_PREFIX = "\x1f"


def name_of_stream(number: int) -> str:
    """The name of the stream with this number."""
    return f"{_PREFIX}{number}"


def stream_positions(positions: Mapping[str, int]) -> dict[int, int]:
    """Of all positions those of streams, by number of the stream."""
    return {
        int(name.removeprefix(_PREFIX)): last
        for name, last in positions.items()
        if name.startswith(_PREFIX)
    }


def names_to_forget(names: Collection[str], producers_max: int) -> list[str]:
    """Of names in the order in which they last moved, those past the bound."""
    if len(names) <= producers_max:
        return []
    producers = [name for name in names if not name.startswith(_PREFIX)]
    return producers[: max(0, len(producers) - producers_max)]
