"""The options that make a query of a table, shared by all commands that read one.

Which options there are and what they say is in the list of operators
(:mod:`barrage.model.operators`).
"""

from __future__ import annotations

import functools
import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import typer

from barrage.cli.arguments import split_names
from barrage.cli.command_errors import usage_error
from barrage.model.operators import OPERATORS, Form

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from barrage.model.operators import CommandOption, OperatorSpec

T = TypeVar("T")

_SPECS = sorted((spec for spec in OPERATORS.values() if spec.options), key=lambda spec: spec.place)
"""The operators a command can apply, in the order in which it does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorCall:
    """An operator and its arguments, all of them given; tables are names."""

    operator: str
    arguments: tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryOptions:
    """What is done to the table, in this order."""

    calls: tuple[OperatorCall, ...] = ()

    def apply(self, table_of: Callable[[str], T], name: str) -> T:
        """The query on the table ``name``; ``table_of`` gives the remote tables of either
        client."""
        query: Any = table_of(name)
        for call in self.calls:
            spec = OPERATORS[call.operator]
            placed, named = spec.spread(
                [
                    table_of(argument) if parameter.form is Form.QUERY else argument
                    for parameter, argument in zip(spec.parameters, call.arguments, strict=True)
                ]
            )
            query = getattr(query, call.operator)(*placed, **named)
        return query  # type: ignore[no-any-return]


def parse_query(**given: Any) -> QueryOptions:
    """The options as given, by name (None: not given); a usage error for what cannot be."""
    return QueryOptions(calls=tuple(call for spec in _SPECS for call in _calls(spec, given)))


def _calls(spec: OperatorSpec, given: Mapping[str, Any]) -> list[OperatorCall]:
    """The operator, once for each text of an option that is repeated, once or not at all."""
    main = spec.options[-1]
    if main.is_repeated:
        texts = given.get(_key(main)) or ()
        return [_call(spec, _arguments(spec, main, text)) for text in texts]
    found: dict[str, Any] = {}
    for option in spec.options:
        value = given.get(_key(option))
        if value is not None and value != []:
            found |= _arguments(spec, option, value)
    if found and main.arguments[0] not in found:
        raise usage_error(
            f"--{spec.options[0].name} groups rows for --{main.name}; add, for example, "
            f"--{main.name} {main.example}"
        )
    return [_call(spec, found)] if found else []


def _call(spec: OperatorSpec, found: Mapping[str, Any]) -> OperatorCall:
    arguments = tuple(found.get(parameter.name, ()) for parameter in spec.parameters)
    return OperatorCall(operator=spec.name, arguments=arguments)


def _arguments(spec: OperatorSpec, option: CommandOption, value: Any) -> dict[str, Any]:
    """The arguments an option gives, by name."""
    [first, *_] = option.arguments
    if _form(spec, first) is Form.PAIRS:
        return {first: _pairs(option, value)}
    parts = [value] if len(option.arguments) == 1 else _parts(option, value)
    return {
        name: _argument(_form(spec, name), option, part)
        for name, part in zip(option.arguments, parts, strict=False)
    }


def _form(spec: OperatorSpec, name: str) -> Form:
    return next(parameter.form for parameter in spec.parameters if parameter.name == name)


def _argument(form: Form, option: CommandOption, part: Any) -> Any:
    if form in (Form.TEXTS, Form.SOME_TEXTS):
        return tuple(split_names(part) or ())
    if form is Form.COUNT and isinstance(part, str):
        if not (part.isascii() and part.isdigit()):
            raise _not_so(option, part)
        return int(part)
    return part


def _parts(option: CommandOption, text: str) -> list[str]:
    """What stands between the colons; some of it may be missing at the end."""
    parts = [part.strip() for part in text.split(":")]
    least = option.metavar.partition("[")[0].count(":") + 1
    if not least <= len(parts) <= len(option.arguments) or not all(parts):
        raise _not_so(option, text)
    return parts


def _pairs(option: CommandOption, texts: Sequence[str]) -> tuple[tuple[str, str], ...]:
    pairs = []
    for text in texts:
        name, equals, formula = (part.strip() for part in text.partition("="))
        if not equals or not name or not formula:
            raise _not_so(option, text)
        pairs.append((name, formula))
    if len(dict(pairs)) != len(pairs):
        raise usage_error(f"two --{option.name} make a column of the same name")
    return tuple(pairs)


def _not_so(option: CommandOption, text: str) -> Exception:
    """The usage error for a text of another form."""
    least, _, rest = option.metavar.removesuffix("]").partition("[")
    forms = f"{least} or {least}{rest}" if rest else least
    return usage_error(f"--{option.name} {text!r}: write {forms}, such as {option.example}")


def _key(option: CommandOption) -> str:
    return option.name.replace("-", "_")


def _annotation(spec: OperatorSpec, option: CommandOption) -> Any:
    """The option as the parser of commands wants it."""
    form = _form(spec, option.arguments[0])
    is_number = form is Form.COUNT and len(option.arguments) == 1
    is_several = option.is_repeated or form is Form.PAIRS
    kind: Any = int if is_number else list[str] if is_several else str
    described = typer.Option(
        f"--{option.name}",
        metavar=option.metavar,
        help=option.help,
        min=0 if is_number else None,
        show_default=False,
    )
    return Annotated[kind | None, described]


_OPTIONS: dict[str, Any] = {
    _key(option): _annotation(spec, option) for spec in _SPECS for option in spec.options
}


def with_query_options(command: Callable[..., None]) -> Callable[..., None]:
    """A command with the options of a query in front of its own, which reach it as one argument
    ``query``."""

    @functools.wraps(command)
    def run(**arguments: Any) -> None:
        given = {name: arguments.pop(name) for name in _OPTIONS}
        command(query=parse_query(**given), **arguments)

    hints = get_type_hints(command, include_extras=True)
    own = [
        parameter.replace(annotation=hints[name])
        for name, parameter in inspect.signature(command).parameters.items()
        if name != "query"
    ]
    added = [
        inspect.Parameter(
            name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None, annotation=kind
        )
        for name, kind in _OPTIONS.items()
    ]
    run.__signature__ = inspect.Signature([own[0], *added, *own[1:]])  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in (own[0], *added, *own[1:])}
    return run
