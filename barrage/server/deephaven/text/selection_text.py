"""Column texts of view, update_view, select, update and lazy_update -> named expressions.

``Name`` keeps a column, ``New = Old`` renames or copies one, ``New = formula`` computes one. A text
may use the names that earlier texts of the same call define; their formulas are put in place.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from barrage.engine.expressions.expression import Expression, bind
from barrage.engine.expressions.expression_text import Call, Column
from barrage.engine.expressions.java_functions import PREFIX
from barrage.engine.expressions.tokens import error_at, in_text
from barrage.errors import ExpressionError, near_miss
from barrage.limits import DEFAULT_LIMITS
from barrage.server.deephaven.text.filter_text import SCOPE, check_size
from barrage.server.deephaven.text.formula_text import FormulaReader, OperationBudget, tokens_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from barrage.engine.expressions.expression_text import Node
    from barrage.limits import Limits

_NAME = re.compile(r"[A-Za-z_$][\w$]*", re.ASCII)
_ASSIGNED = re.compile(r"\s*([^\W\d][\w$]*|\$[\w$]*)\s*=(?!=)", re.ASCII)
_RESERVED_WORDS = """
i ii k in not true false null abstract assert boolean break byte case catch char class const
continue default do double else enum extends final finally float for goto if implements
import instanceof int interface long native new package private protected public return
short static strictfp super switch synchronized this throw throws transient try void
volatile while
"""
_RESERVED = frozenset(_RESERVED_WORDS.split())
"""Words that Deephaven does not take as column names."""


def parse_selection(
    texts: Sequence[str], schema: pa.Schema, limits: Limits = DEFAULT_LIMITS
) -> list[tuple[str, Expression]]:
    """Result columns and what they hold, in the order of the texts, checked against ``schema``.

    A kept or renamed column is an expression that is nothing but the column.
    ExpressionError names the text and the position of what is wrong or not supported.
    """
    check_size(texts, limits)
    selection: list[tuple[str, Expression]] = []
    defined: dict[str, Node] = {}
    budget = OperationBudget()
    for index, text in enumerate(texts):
        try:
            name, root = _parse(text, schema, defined)
        except ExpressionError as error:
            raise in_text(error, text) from error
        budget.spend(root)
        scope = "\n".join([SCOPE, *texts[:index]])
        expression = Expression(text, _whole(root), scope)
        bind(expression, schema)
        selection.append((name, expression))
        defined[name] = root
    return selection


def parse_update(
    texts: Sequence[str], schema: pa.Schema, limits: Limits = DEFAULT_LIMITS
) -> list[tuple[str, Expression]]:
    """All columns after an update: those of ``schema``, replaced where a text names them, then the
    new ones."""
    changed = dict(parse_selection(texts, schema, limits))
    columns = {name: Expression(name, Column(0, name), SCOPE) for name in schema.names}
    return list((columns | changed).items())


def _whole(root: Node) -> Node:
    return root if isinstance(root, Column) else Call(0, PREFIX + "result", (root,))


def _parse(text: str, schema: pa.Schema, defined: dict[str, Node]) -> tuple[str, Node]:
    match = _ASSIGNED.match(text)
    if match is None:
        return _kept(text, schema, defined)
    name = match[1]
    start = match.start(1)
    if name in _RESERVED:
        raise error_at(start, f"{name!r} cannot name a column")
    if name in defined:
        raise error_at(start, f"column {name!r} is defined twice")
    formula = " " * match.end() + text[match.end() :]
    return name, FormulaReader(tokens_of(formula), defined).whole()


def _kept(text: str, schema: pa.Schema, defined: dict[str, Node]) -> tuple[str, Node]:
    name = text.strip()
    if schema.get_field_index(name) >= 0 and name not in defined:
        return name, Column(0, name)
    if name in defined:
        raise error_at(0, f"column {name!r} is defined twice")
    if _NAME.fullmatch(name):
        raise error_at(0, f"unknown column {name!r}{near_miss(name, schema.names)}")
    raise error_at(0, "expected a column or 'New = formula'")
