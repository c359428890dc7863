"""Conditions in our language as functions of rows, for programs that keep rows of their own.

``Condition.of("price > 3", schema)`` gives what a change feed takes as its predicate
(:class:`barrage.journal.FeedOptions`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from barrage.engine.expressions.expression import BoundExpression, bind_condition

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition on rows of one schema."""

    bound: BoundExpression

    @classmethod
    def of(cls, text: str, schema: pa.Schema) -> Condition:
        """ExpressionError for what is no condition, or not one on these columns."""
        return cls(bind_condition(text, schema))

    def __call__(self, rows: pa.RecordBatch) -> pa.Array:
        """A boolean for each row; null where the condition is neither true nor false."""
        cells = [rows.column(index) for index in self.bound.columns]
        return self.bound.evaluate(cells, rows.num_rows)
