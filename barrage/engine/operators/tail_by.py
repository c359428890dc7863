"""The last n rows of each group."""

from __future__ import annotations

from typing import TYPE_CHECKING

from barrage.engine import work
from barrage.engine.operator_plan import check_count, derived
from barrage.engine.operators.group_ends import GroupEndsTable

if TYPE_CHECKING:
    from barrage.engine.table import DerivedTable, Table


class TailByTable(GroupEndsTable):
    """The last ``count`` rows of each combination of values in ``by``, in the parent's order."""

    is_from_end = True

    def __init__(self, parent: Table, count: int, by: tuple[str, ...]) -> None:
        traits = parent.traits.changed(is_flat=False, is_append_only=False)
        super().__init__(parent, count, by, traits)

    def _like_this(self, parents: tuple[Table, ...]) -> DerivedTable:
        return TailByTable(parents[0], self.count, self.by)


def tail_by(table: Table, count: int, *by: str) -> Table:
    """The last ``count`` rows of each combination of values in ``by`` (none: of all rows), in row
    order. SchemaError when a column cannot be compared."""
    check_count(count)
    return derived(
        (table,),
        ("tail_by", count, by),
        lambda parent: TailByTable(parent, count, by),
        per_row=work.of_keys(len(by)) + work.SORT_COLUMN,
    )
