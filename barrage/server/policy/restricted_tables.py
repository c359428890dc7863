"""What a restriction leaves of a table: one operator, shared by all whom the same is shown."""

from __future__ import annotations

import hashlib
import logging
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from barrage.engine.expressions.expression import bind_condition
from barrage.engine.operators.restrict import CellMask, Restricted, restrict
from barrage.errors import ExpressionError, PermissionDeniedError
from barrage.server.policy.keyed_hash import can_be_hashed, hashed_cells

if TYPE_CHECKING:
    from barrage.engine.tables.table import Table
    from barrage.server.policy.rules import Restriction

log = logging.getLogger(__name__)


class UnfitRuleError(PermissionDeniedError):
    """The rule that decides does not fit the table, so nothing of it is shown."""


def restricted_table(table: Table, name: str, restriction: Restriction, *, key: bytes) -> Table:
    """The table that is shown instead of ``table``, published as ``name``. On the engine thread, or
    where queries are derived. UnfitRuleError, and what :func:`restrict` raises."""
    return restrict(table, restricted(table.schema, name, restriction, key=key))


def restricted(schema: pa.Schema, name: str, restriction: Restriction, *, key: bytes) -> Restricted:
    """What is shown of tables of that schema. UnfitRuleError, which says no more than that: the
    text of the rule may name what is hidden."""
    try:
        return _restricted(schema, restriction, key)
    except (ExpressionError, pa.ArrowException, UnfitRuleError) as error:
        log.error("a rule does not fit table %r, nothing of it is shown: %s", name, error)
        raise UnfitRuleError(
            f"the rule for table {name!r} does not fit it; ask whoever keeps the server's policy"
        ) from None


def _restricted(schema: pa.Schema, restriction: Restriction, key: bytes) -> Restricted:
    condition = None if restriction.rows is None else bind_condition(restriction.rows, schema)
    constants = dict(restriction.mask)
    hidden = set(restriction.hide)
    columns, fields, masks = [], [], {}
    for place, field in enumerate(schema):
        if field.name in hidden:
            continue
        shown = field
        if field.name in constants:
            scalar = pa.scalar(constants[field.name], field.type)
            masks[place] = CellMask(apply=partial(_constant, scalar), is_constant=True)
        elif field.name in restriction.hash:
            if not can_be_hashed(field.type):
                raise UnfitRuleError(f"column {field.name!r} of {field.type} cannot be hashed")
            masks[place] = CellMask(apply=partial(hashed_cells, key=key), is_constant=False)
            shown = pa.field(field.name, pa.string(), field.nullable)
        columns.append(place)
        fields.append(shown)
    if not columns:
        raise UnfitRuleError("all of its columns are hidden")
    return Restricted(
        condition=condition,
        columns=tuple(columns),
        schema=pa.schema(fields),
        masks=masks,
        identity=_identity(restriction, condition is not None, key),
    )


def _constant(scalar: pa.Scalar, cells: pa.Array) -> pa.Array:
    return pa.repeat(scalar, len(cells))


def _identity(restriction: Restriction, has_rows: bool, key: bytes) -> tuple[object, ...]:
    """Equal for equal restrictions in every process; it stands in epochs, so the key does not."""
    rows = restriction.rows
    told = ("", "") if rows is None or not has_rows else (rows.scope, rows.text)
    digest = hashlib.blake2b(key, digest_size=8).hexdigest() if restriction.hash else ""
    return (told, restriction.hide, restriction.mask, restriction.hash, digest)
