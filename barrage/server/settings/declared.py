"""Settings and JSON fields checked against the types they are declared with.

A declaration is an annotation that msgspec understands: a type, ``Literal`` words, or
``Annotated[type, Meta(bounds)]``. Nothing is converted: true is no number, 1.0 no whole one.
"""

from __future__ import annotations

import types
from functools import cache
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec
from msgspec import Meta

if TYPE_CHECKING:
    from collections.abc import Mapping

NUMBER_MAX = 2**63 - 1

Count = Annotated[int, Meta(ge=0)]
Number = Annotated[int, Meta(ge=0, le=NUMBER_MAX)]

_WORDS = {bool: "true or false", int: "a whole number", str: "text"}


def converted(value: object, declared: Any) -> Any:
    """``value`` if it is as ``declared``; ValueError that says what it must be."""
    try:
        return msgspec.convert(value, declared)
    except msgspec.ValidationError:
        raise ValueError(expected(declared)) from None


@cache
def declarations(kind: type) -> Mapping[str, Any]:
    """What each field of a class is declared as."""
    return get_type_hints(kind, include_extras=True)


def plain_type(declared: Any) -> Any:
    """The type beneath bounds and ``None``; text for words."""
    origin = get_origin(declared)
    if origin is Annotated:
        return plain_type(get_args(declared)[0])
    if origin in (Union, types.UnionType):
        return plain_type(get_args(declared)[0])
    return str if origin is Literal else declared


def expected(declared: Any) -> str:
    """What a value must be, to stand behind "must be"."""
    origin, arguments = get_origin(declared), get_args(declared)
    if origin in (Union, types.UnionType):
        return expected(arguments[0])
    if origin is Literal:
        return f"one of {', '.join(arguments)}"
    if origin is not Annotated:
        return _WORDS.get(declared, str(declared))
    meta: Meta = arguments[1]
    if meta.description is not None:
        return meta.description
    if meta.le is None:
        return f"{expected(arguments[0])} of {meta.ge} or more"
    return f"{expected(arguments[0])} from {meta.ge} to {meta.le}"
