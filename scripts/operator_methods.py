"""Writes what follows from the list of operators (``barrage/model/operators.py``) and stands in the
repository as code, so that editors and type checkers see it: ``make generated``.

* the functions of the engine, gathered in ``barrage/engine/operators/derive.py``;
* the methods of a server's tables, ``barrage/server/api/operator_methods.py``;
* the methods of clients' tables, ``barrage/client/queries/query_methods.py``.
"""

from __future__ import annotations

import textwrap

from barrage.model.operators import OPERATORS, Form, OperatorSpec, Parameter
from scripts.writing import ROOT, note

NOTE = note(__file__, ROOT / "model" / "operators.py")


def engine_text() -> str:
    """``barrage/engine/operators/derive.py``."""
    names = sorted(OPERATORS)
    imports = "\n".join(f"from barrage.engine.operators.{name} import {name}" for name in names)
    exported = "\n".join(f'    "{name}",' for name in ["BUILDERS", *names])
    builders = "\n".join(f'    "{name}": {name},' for name in OPERATORS)
    return f'''{NOTE}\
"""Derives tables from tables: each operator is a function of the tables it reads.

Equal operators upon one table are one table, which lives as long as somebody uses it. What a
function raises besides TableFailedError and LimitExceededError is told where it is defined, in
``engine/operators/``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

{imports}

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from barrage.engine.tables.table import Table

__all__ = [
{exported}
]

BUILDERS: Mapping[str, Callable[..., Table]] = {{
{builders}
}}
"""The functions by name. Arguments are those of Python
(:meth:`barrage.model.operators.OperatorSpec.spread`)."""
'''


def server_text() -> str:
    """``barrage/server/api/operator_methods.py``."""
    methods = "\n".join(_server_method(spec) for spec in OPERATORS.values())
    return f'''{NOTE}"""The operators as methods of a server's tables.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from barrage.server.api.table_handle import names_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from barrage.server.api.table_handle import TableHandle

R = TypeVar("R")


class OperatorMethods(ABC, Generic[R]):
    """Each operator gives an ``R``: a view, or a coroutine that returns one."""

    @abstractmethod
    def _view(self, operator: str, /, *arguments: Any, **named: Any) -> R:
        """What an operator makes of this table."""

{methods}'''


def client_text() -> str:
    """``barrage/client/queries/query_methods.py``."""
    methods = "\n".join(_client_method(spec) for spec in OPERATORS.values())
    return f'''{NOTE}"""The operators as methods of clients' tables.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from barrage.client.queries.query_steps import QuerySteps, R

if TYPE_CHECKING:
    from collections.abc import Sequence


class QueryMethods(QuerySteps[R]):
    """The operators of a remote table, which give one of type ``R``. Nothing is sent; mistakes are
    told when the result is used."""

{methods}'''


def _server_method(spec: OperatorSpec) -> str:
    signature, given = ["self"], [f'"{spec.name}"']
    for parameter in spec.parameters:
        name = parameter.name
        if parameter.form is Form.QUERY:
            star = "*" if spec.is_repeated else ""
            signature.append(f"{star}{name}: TableHandle")
            table = "*(other._table for other in others)" if star else f"{name}._table"
            given.append(table)
            continue
        signature.append(_in_signature(parameter, name))
        given.append(_spread(parameter, name))
    return _method(spec, signature, f"self._view({', '.join(given)})")


def _client_method(spec: OperatorSpec) -> str:
    signature, given = ["self"], [f'"{spec.name}"']
    for parameter in spec.parameters:
        name = parameter.client_name
        if parameter.form is Form.QUERY:
            star = "*" if spec.is_repeated else ""
            signature.append(f"{star}{name}: QueryMethods[Any]")
            given.append(star + name)
        elif parameter.in_clients.startswith("*"):
            signature.append(f"*{name}: str")
            return _method(spec, signature, f'self._each("{spec.name}", {name})')
        else:
            signature.append(_in_signature(parameter, name).replace(_also(parameter), ""))
            given.append(name)
    return _method(spec, signature, f"self._operated({', '.join(given)})")


def _in_signature(parameter: Parameter, name: str) -> str:
    if parameter.form is Form.PAIRS:
        return f"**{name}: str"
    if parameter.form in (Form.COUNT, Form.POSITION):
        return f"{name}: int"
    if parameter.is_list:
        return f"{name}: str | Sequence[str]" + ("" if parameter.wanted else " = ()")
    star = "*" if parameter.is_spread else ""
    return f"{star}{name}: str{_also(parameter)}"


def _also(parameter: Parameter) -> str:
    return f" | {parameter.also_takes}" if parameter.also_takes else ""


def _spread(parameter: Parameter, name: str) -> str:
    if parameter.form is Form.PAIRS:
        return f"**{name}"
    if parameter.is_list:
        return f"names_of({name})"
    return f"*{name}" if parameter.is_spread else name


def _method(spec: OperatorSpec, signature: list[str], result: str) -> str:
    if spec.parameters and spec.parameters[-1].form is Form.PAIRS:
        # A new column may have any name, ``self`` and those of the other arguments included.
        places = [part.startswith("*") for part in signature]
        signature.insert(places.index(True), "/")
    doc = (
        textwrap.fill(f'"""{spec.doc}"""', 92, break_long_words=False, break_on_hyphens=False)
        if "\n" not in spec.doc
        else f'"""{textwrap.dedent(spec.doc)}\n"""'
    )
    lines = [f"def {spec.name}({', '.join(signature)}) -> R:"]
    lines.append(textwrap.indent(doc, "    "))
    lines.append(f"    return {result}")
    return textwrap.indent("\n".join(lines), "    ") + "\n"


TEXTS = {
    ROOT / "engine" / "operators" / "derive.py": engine_text,
    ROOT / "server" / "api" / "operator_methods.py": server_text,
    ROOT / "client" / "queries" / "query_methods.py": client_text,
}
"""The files and what makes them."""
