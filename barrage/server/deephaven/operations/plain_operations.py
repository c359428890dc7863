"""Operations that are an operator and nothing else: their requests hold its arguments as they are.

Which these are, and in what fields: :class:`barrage.model.operators.DeephavenMessage`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from barrage.engine.operators.derive import BUILDERS
from barrage.model.operators import OPERATORS, Form
from barrage.server.deephaven.operations.operations import (
    OperationContext,
    TableOperation,
    check_not_negative,
    check_texts,
    derived,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from barrage.engine.tables.table import Table
    from barrage.model.operators import DeephavenMessage, OperatorSpec
    from barrage.server.deephaven.operations.operations import Derive


def _derive(spec: OperatorSpec, message: DeephavenMessage) -> Derive:
    def derive(request: Any, sources: Sequence[Table], context: OperationContext) -> Table:
        arguments = []
        for parameter, field in zip(spec.parameters, message.fields, strict=True):
            value = getattr(request, field)
            if parameter.form is Form.COUNT:
                check_not_negative(f"{spec.name}: the number of rows", value)
            elif parameter.form in (Form.TEXTS, Form.SOME_TEXTS):
                check_texts("columns", value, context.limits)
                value = tuple(dict.fromkeys(value))
            arguments.append(value)
        placed, named = spec.spread(arguments)
        return BUILDERS[spec.name](sources[0], *placed, **named)

    return derive


OPERATIONS = tuple(
    TableOperation(
        name=message.operation,
        method=message.method,
        request=message.request,
        perform=derived(_derive(spec, message)),
    )
    for spec in OPERATORS.values()
    if (message := spec.message) is not None and message.method
)
