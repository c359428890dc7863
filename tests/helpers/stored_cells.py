"""A stored column beside the list it stands for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from barrage.model.storage import ColumnStore


def check_stored(store: ColumnStore, cells: list[Any]) -> None:
    """All of it, a part of it, and cells picked from the end backwards."""
    assert len(store) == len(cells)
    assert store.slice(0, len(cells)).to_pylist() == cells
    middle = slice(len(cells) // 3, len(cells) * 2 // 3)
    assert store.slice(middle.start, middle.stop).to_pylist() == cells[middle]
    slots = np.arange(len(cells) - 1, -1, -3)
    assert store.take(slots).to_pylist() == [cells[slot] for slot in slots]
