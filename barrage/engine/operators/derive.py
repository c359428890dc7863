# Written by scripts/operator_methods.py (make generated); do not edit.
# It follows from barrage/model/operators.py.
"""Derives tables from tables: each operator is a function of the tables it reads.

Equal operators upon one table are one table, which lives as long as somebody uses it. What a
function raises besides TableFailedError and LimitExceededError is told where it is defined, in
``engine/operators/``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from barrage.engine.operators.agg_by import agg_by
from barrage.engine.operators.drop import drop
from barrage.engine.operators.flatten import flatten
from barrage.engine.operators.head import head
from barrage.engine.operators.head_by import head_by
from barrage.engine.operators.last_by import last_by
from barrage.engine.operators.merge import merge
from barrage.engine.operators.natural_join import natural_join
from barrage.engine.operators.select import select
from barrage.engine.operators.select_distinct import select_distinct
from barrage.engine.operators.slice import slice
from barrage.engine.operators.sort import sort
from barrage.engine.operators.tail import tail
from barrage.engine.operators.tail_by import tail_by
from barrage.engine.operators.ungroup import ungroup
from barrage.engine.operators.update_by import update_by
from barrage.engine.operators.where import where

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from barrage.engine.tables.table import Table

__all__ = [
    "BUILDERS",
    "agg_by",
    "drop",
    "flatten",
    "head",
    "head_by",
    "last_by",
    "merge",
    "natural_join",
    "select",
    "select_distinct",
    "slice",
    "sort",
    "tail",
    "tail_by",
    "ungroup",
    "update_by",
    "where",
]

BUILDERS: Mapping[str, Callable[..., Table]] = {
    "where": where,
    "sort": sort,
    "select": select,
    "drop": drop,
    "head": head,
    "tail": tail,
    "slice": slice,
    "last_by": last_by,
    "agg_by": agg_by,
    "select_distinct": select_distinct,
    "natural_join": natural_join,
    "merge": merge,
    "head_by": head_by,
    "tail_by": tail_by,
    "ungroup": ungroup,
    "update_by": update_by,
    "flatten": flatten,
}
"""The functions by name. Arguments are those of Python
(:meth:`barrage.model.operators.OperatorSpec.spread`)."""
