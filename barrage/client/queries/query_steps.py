"""The steps of a query: operators and their arguments, checked when they are written down; and the
tickets by which they travel to our own servers, ``q/`` and canonical JSON.

Which operators there are and what arguments they take: :mod:`barrage.model.operators`. Their
methods are in :mod:`barrage.client.queries.query_methods`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from barrage.client.connection.table_sources import NamedSource, TableSource
from barrage.errors import ConfigError, ExpressionError
from barrage.model.operators import OPERATORS, Form
from barrage.model.query import AppliedOperator, Query

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from barrage.model.operators import OperatorSpec, Parameter


QUERY_ROUTE = b"q/"


@dataclass(frozen=True, slots=True)
class Step:
    """One operator and its arguments: texts, numbers, tuples of texts, pairs of texts, and for a
    join the source of the other table."""

    name: str
    arguments: tuple[Any, ...]

    @property
    def others(self) -> tuple[TableSource, ...]:
        return tuple(value for value in self.arguments if isinstance(value, TableSource))

    def __str__(self) -> str:
        words = [word for value in self.arguments for word in _words(value)]
        return f"{self.name}({', '.join(words)})"


def _words(value: Any) -> list[str]:
    """An argument as it is written in code; texts in a row are written one after another."""
    if isinstance(value, TableSource):
        return [value.label]
    if isinstance(value, tuple):
        return [
            f"{part[0]}={part[1]!r}" if isinstance(part, tuple) else repr(part) for part in value
        ]
    return [repr(value)]


R = TypeVar("R")


class QuerySteps(ABC, Generic[R]):
    """A remote table to which operators can be applied, which gives one of type ``R``."""

    @abstractmethod
    def _with_steps(self, steps: Sequence[Step]) -> R:
        """A table that is this one with more operators."""

    @abstractmethod
    def _query_source(self) -> TableSource:
        """The source of this table."""

    def _operated(self, operator: str, *arguments: Any) -> R:
        """This table with one operator more; a method's arguments in their order."""
        return self._with_steps([_step(OPERATORS[operator], arguments)])

    def _each(self, operator: str, texts: Sequence[str]) -> R:
        """This table with one operator more for each text."""
        return self._with_steps(
            [Step(operator, (text,)) for text in _texts(operator, texts, least=1)]
        )


def _step(spec: OperatorSpec, arguments: Sequence[Any]) -> Step:
    """ConfigError and ExpressionError for arguments that cannot be."""
    checked = []
    for index, argument in enumerate(arguments):
        parameter = spec.parameter(index)
        assert parameter is not None
        checked.append(_CHECKS[parameter.form](spec, parameter, argument))
    if spec.is_repeated and not checked:
        raise ExpressionError(f"{spec.name} wants at least one other table")
    if spec.wanted and not any(checked):
        raise ExpressionError(f"{spec.name} wants {spec.wanted}")
    return Step(spec.name, tuple(checked))


def _one_text(spec: OperatorSpec, _parameter: Parameter, text: Any) -> str:
    return _texts(spec.name, (text,), least=1)[0]


def _list(spec: OperatorSpec, parameter: Parameter, values: Any) -> tuple[str, ...]:
    texts = (values,) if isinstance(values, str) else values
    least = 1 if parameter.form is Form.SOME_TEXTS or parameter.wanted else 0
    return _texts(spec.name, texts, least=least)


def _texts(name: str, values: Sequence[Any], *, least: int = 0) -> tuple[str, ...]:
    texts = tuple(values)
    if len(texts) < least or not all(isinstance(text, str) and text for text in texts):
        wanted = "at least one text" if least else "texts"
        raise ExpressionError(f"{name} wants {wanted}, not {', '.join(map(repr, texts)) or 'none'}")
    return texts


def _formulas(
    spec: OperatorSpec, parameter: Parameter, formulas: Mapping[str, str]
) -> tuple[tuple[str, str], ...]:
    _texts(spec.name, tuple(formulas.values()))
    if parameter.wanted and not formulas:
        raise ExpressionError(f"{spec.name} wants {parameter.wanted}")
    return tuple(formulas.items())


def _count(spec: OperatorSpec, _parameter: Parameter, count: Any) -> int:
    if not isinstance(count, int) or not 0 <= count < 2**63:
        raise ExpressionError(f"{spec.name} wants a number of rows, not {count!r}")
    return count


def _position(spec: OperatorSpec, _parameter: Parameter, position: Any) -> int:
    if not isinstance(position, int) or not -(2**63) < position < 2**63:
        raise ExpressionError(f"{spec.name} wants positions of rows, not {position!r}")
    return position


def _table(spec: OperatorSpec, _parameter: Parameter, table: Any) -> TableSource:
    if not isinstance(table, QuerySteps):
        wanted = "remote tables" if spec.is_repeated else "a remote table"
        raise ConfigError(f"{spec.name} wants {wanted}, not {type(table).__name__}")
    return table._query_source()


_CHECKS: Mapping[Form, Callable[[OperatorSpec, Parameter, Any], Any]] = {
    Form.TEXT: _one_text,
    Form.TEXTS: _list,
    Form.SOME_TEXTS: _list,
    Form.PAIRS: _formulas,
    Form.COUNT: _count,
    Form.POSITION: _position,
    Form.QUERY: _table,
}


def query_ticket(name: str, steps: Sequence[Step]) -> bytes:
    """The ticket of the operators ``steps`` applied to the published table ``name``."""
    return QUERY_ROUTE + _query(name, steps).to_json().encode()


def _query(name: str, steps: Sequence[Step]) -> Query:
    return Query(
        name,
        tuple(AppliedOperator(step.name, tuple(map(_argument, step.arguments))) for step in steps),
    )


def _argument(value: Any) -> Any:
    """A table is a query of its own."""
    if not isinstance(value, TableSource):
        return value
    return _query(value.label, ()) if isinstance(value, NamedSource) else _nested(value)


def _nested(source: Any) -> Query:
    """The query of a source that is one."""
    return _query(source.name, source.steps)
