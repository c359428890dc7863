"""A condition on the rows of tables about the server: those that concern a caller."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from barrage.engine.expressions.expression import BoundExpression
    from barrage.server.policy.rules import Concern

OPERATIONS = 10
"""Row operations, as of a kernel upon texts."""


class ConcernRows:
    """Rows whose text in one column is shown, and for which a condition of the rule holds, if it
    has one. Asks once for each distinct text: there are few."""

    def __init__(self, place: int, concern: Concern, rows: BoundExpression | None) -> None:
        self._place = place
        self._concern = concern
        self._rows = rows
        further = () if rows is None else rows.columns
        self.columns = tuple(sorted({place, *further}))

    @property
    def identity(self) -> Hashable:
        return self._concern.identity, None if self._rows is None else self._rows.identity

    @property
    def row_operations(self) -> int:
        return OPERATIONS + (0 if self._rows is None else self._rows.row_operations)

    def evaluate(self, cells: Sequence[pa.Array], row_count: int) -> pa.Array:
        """Whether each row is shown."""
        given = dict(zip(self.columns, cells, strict=True))
        names = given[self._place]
        is_shown = self._concern.is_shown
        shown = [name for name in names.unique().to_pylist() if name is not None and is_shown(name)]
        truth = pc.is_in(names, value_set=pa.array(shown, pa.string()))
        if self._rows is None:
            return truth
        own = self._rows.evaluate([given[column] for column in self._rows.columns], row_count)
        return pc.and_kleene(truth, own)
