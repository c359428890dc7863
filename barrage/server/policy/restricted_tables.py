"""What a restriction leaves of a table: one operator, shared by all whom the same is shown."""

from __future__ import annotations

import hashlib
import logging
from functools import lru_cache, partial
from typing import TYPE_CHECKING

import pyarrow as pa

from barrage.engine.expressions.expression import bind_condition
from barrage.engine.operators.restrict import UNSHOWN, CellMask, Restricted, restrict
from barrage.errors import (
    BarrageError,
    CycleTooLongError,
    ExpressionError,
    LimitExceededError,
    PermissionDeniedError,
    StatusCode,
    TableFailedError,
)
from barrage.server.policy.concern_rows import ConcernRows
from barrage.server.policy.keyed_hash import can_be_hashed, hashed_cells

if TYPE_CHECKING:
    from barrage.engine.operators.where import RowCondition
    from barrage.engine.tables.table import Table
    from barrage.server.policy.rules import Constant, Restriction

log = logging.getLogger(__name__)


class UnfitRuleError(PermissionDeniedError):
    """The rule that decides does not fit the table, so nothing of it is shown."""


class TooMuchForRulesError(BarrageError):
    """What a rule shows cannot be computed within the limits."""

    status_code = StatusCode.RESOURCE_EXHAUSTED


def restricted_table(table: Table, name: str, restriction: Restriction, *, key: bytes) -> Table:
    """The table that is shown instead of ``table``, published as ``name``. On the engine thread, or
    where queries are derived. UnfitRuleError, TableFailedError, and what :func:`restrict` raises
    for the work."""
    shown = restricted(table.schema, name, restriction, key=key)
    try:
        return restrict(table, shown)
    except CycleTooLongError:
        # It counts the rows of the whole table.
        raise CycleTooLongError from None
    except TableFailedError as error:
        # The reason may quote cells.
        raise TableFailedError(UNSHOWN) from error
    except LimitExceededError:
        # It counts the rows of the whole table.
        raise TooMuchForRulesError(
            f"what the rules show of table {name!r} is more work than is allowed at once"
        ) from None


def restricted(schema: pa.Schema, name: str, restriction: Restriction, *, key: bytes) -> Restricted:
    """What is shown of tables of that schema. UnfitRuleError, which says no more than that: the
    text of the rule may name what is hidden."""
    try:
        return _restricted(schema, restriction, key)
    except (ExpressionError, pa.ArrowException, UnfitRuleError) as error:
        _tell_keeper(name, str(error))
        raise UnfitRuleError(
            f"the rule for table {name!r} does not fit it; ask whoever keeps the server's policy"
        ) from None


@lru_cache(1_024)
def _tell_keeper(name: str, reason: str) -> None:
    """Once for each: callers ask as often as they like."""
    log.error("a rule does not fit table %r, nothing of it is shown: %s", name, reason)


def tell_anew() -> None:
    """There are other rules: what does not fit them is told again."""
    _tell_keeper.cache_clear()


def _restricted(schema: pa.Schema, restriction: Restriction, key: bytes) -> Restricted:
    constants = dict(restriction.mask)
    columns, fields, masks = [], [], {}
    for place, field in enumerate(schema):
        if field.name in restriction.hide or not (
            not restriction.show or field.name in restriction.show
        ):
            continue
        shown = field
        if field.name in constants:
            masks[place] = _constant_mask(field, constants[field.name])
            is_nullable = field.nullable or constants[field.name] is None
            shown = pa.field(field.name, field.type, is_nullable)
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
        condition=_condition(schema, restriction),
        columns=tuple(columns),
        schema=pa.schema(fields),
        masks=masks,
        identity=_identity(restriction, key),
    )


def _condition(schema: pa.Schema, restriction: Restriction) -> RowCondition | None:
    rows = None if restriction.rows is None else bind_condition(restriction.rows, schema)
    concern = restriction.concern
    if concern is None:
        return rows
    place = schema.get_field_index(concern.column)
    if place < 0 or not pa.types.is_string(schema.field(place).type):
        raise UnfitRuleError(f"it has no column {concern.column!r} that says whom a row concerns")
    return ConcernRows(place, concern, rows)


def _constant_mask(field: pa.Field, constant: Constant) -> CellMask:
    """UnfitRuleError when the constant cannot be a cell of the column."""
    encoded = field.type
    plain = encoded.value_type if pa.types.is_dictionary(encoded) else encoded
    try:
        cell = pa.array([constant], pa.null() if constant is None else None).cast(plain)
        cell = cell.cast(encoded) if cell.type != encoded else cell
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise UnfitRuleError(
            f"column {field.name!r} of {field.type} cannot show {constant!r}: {error}"
        ) from None
    return CellMask(apply=partial(_repeated, cell), is_constant=True)


def _repeated(cell: pa.Array, cells: pa.Array) -> pa.Array:
    """One cell as often as there are others."""
    if pa.types.is_dictionary(cell.type):
        indices = pa.repeat(cell.indices[0], len(cells))
        return pa.DictionaryArray.from_arrays(indices, cell.dictionary, ordered=cell.type.ordered)
    return pa.repeat(cell[0], len(cells))


def _identity(restriction: Restriction, key: bytes) -> tuple[object, ...]:
    """Equal for equal restrictions in every process; it stands in epochs, so the key does not."""
    rows, concern = restriction.rows, restriction.concern
    told = ("", "") if rows is None else (rows.scope, rows.text)
    digest = hashlib.blake2b(key, digest_size=8).hexdigest() if restriction.hash else ""
    return (
        told,
        None if concern is None else (concern.column, concern.identity),
        restriction.show,
        restriction.hide,
        repr(restriction.mask),
        restriction.hash,
        digest,
    )
