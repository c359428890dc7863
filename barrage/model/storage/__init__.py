"""Columnar storage addressed by slot: what engine sources and the client's replica keep their cells
in."""

from barrage.model.storage.column_store import ColumnStore, take_cells
from barrage.model.storage.equality import cells_differ

__all__ = ["ColumnStore", "cells_differ", "take_cells"]
