"""Which Arrow type a column has for a Deephaven client, and how its values become that type.

Sources: deephaven-clients.md section 3.6 and barrage-wire.md section 12.1. Two families:

* ``deephaven``: what pydeephaven, the Java client and the JS API read. Types Deephaven has stay or
  become its form of them; encodings (dictionary, run-end) are dissolved; whatever is left is text.
* ``ticking``: the few types the C++ core takes. ``listen`` fails for a table with any other.

=====================================  ============================  ==========================
column                                 deephaven                     ticking, if different
=====================================  ============================  ==========================
bool, int8 to int64, float32, float64  as it is
uint16                                 uint16 (char)
uint8, uint32                          int16, int64
uint64, decimals                       binary (BigInteger,           text
                                       BigDecimal)
float16                                float32
string of any kind                     utf8
binary of any kind                     binary (byte[])               hexadecimal text
date32, date64                         date64
time32, time64                         time64(ns)
timestamp of any unit and zone         timestamp(ns, UTC)
duration                               duration(ns)                  int64 (nanoseconds)
list of any kind                       list of the converted type    text if lists nest
dictionary, run-end encoded            its values
extension                              its storage
null, interval, map, struct, union     text
=====================================  ============================  ==========================

A timestamp or duration whose nanoseconds do not fit 64 bits is an error, never another time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np
import pyarrow as pa

from barrage.engine.expressions.java_values import JAVA_FORMS
from barrage.server.presentation.text_forms import (
    big_decimal_of,
    big_integer_of,
    hex_of,
    text_of,
)
from barrage.wire.wire_schema import java_type, plain_array

if TYPE_CHECKING:
    from collections.abc import Callable

_T = pa.types

SessionTypes: TypeAlias = Literal["deephaven", "ticking"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownType:
    """How a column is shown. ``apply`` is None when its values are right as they are; ``java`` is
    set when the Arrow type alone does not say which class the values belong to."""

    data_type: pa.DataType
    java: str | None = None
    apply: Callable[[pa.Array], pa.Array] | None = None
    may_fail: bool = False

    @property
    def java_name(self) -> str | None:
        return self.java or java_type(self.data_type)


def _same(kind: pa.DataType) -> ShownType:
    return ShownType(data_type=kind)


def _cast(kind: pa.DataType, *, may_fail: bool = False) -> Callable[[pa.DataType], ShownType]:
    """The type itself when it is ``kind`` already, else Arrow's checked cast."""

    def show(source: pa.DataType) -> ShownType:
        if source == kind:
            return _same(kind)
        return ShownType(data_type=kind, apply=lambda array: array.cast(kind), may_fail=may_fail)

    return show


def _made(
    kind: pa.DataType, apply: Callable[[pa.Array], pa.Array], java: str | None = None
) -> Callable[[pa.DataType], ShownType]:
    return lambda _: ShownType(data_type=kind, java=java, apply=apply)


def _is_any_binary(kind: pa.DataType) -> bool:
    return bool(
        _T.is_binary(kind)
        or _T.is_large_binary(kind)
        or _T.is_binary_view(kind)
        or _T.is_fixed_size_binary(kind)
    )


def _is_plain_number(kind: pa.DataType) -> bool:
    return bool(
        _T.is_signed_integer(kind)
        or _T.is_uint16(kind)
        or _T.is_float32(kind)
        or _T.is_float64(kind)
        or _T.is_boolean(kind)
    )


def _duration_numbers(array: pa.Array) -> pa.Array:
    return array.cast(pa.duration("ns")).cast(pa.int64())


_Rule: TypeAlias = "tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType], ShownType]]"

_SHARED: tuple[_Rule, ...] = (
    (_is_plain_number, _same),
    *((matches, _cast(form, may_fail=_T.is_timestamp(form))) for matches, form in JAVA_FORMS),
)

_ANY_TEXT: _Rule = (lambda _: True, _made(pa.string(), text_of))

_RULES: dict[SessionTypes, tuple[_Rule, ...]] = {
    "deephaven": (
        *_SHARED,
        (_is_any_binary, _cast(pa.binary())),
        (_T.is_duration, _cast(pa.duration("ns"), may_fail=True)),
        (_T.is_uint64, _made(pa.binary(), big_integer_of, "java.math.BigInteger")),
        (_T.is_decimal, _made(pa.binary(), big_decimal_of, "java.math.BigDecimal")),
        _ANY_TEXT,
    ),
    "ticking": (
        *_SHARED,
        (_is_any_binary, _made(pa.string(), hex_of)),
        (
            _T.is_duration,
            lambda _: ShownType(data_type=pa.int64(), apply=_duration_numbers, may_fail=True),
        ),
        _ANY_TEXT,
    ),
}


def shown_type(kind: pa.DataType, session_types: SessionTypes) -> ShownType:
    """How a column of ``kind`` is shown to clients of one family; there is a form for every
    type."""
    if _T.is_dictionary(kind):
        return _after(pa.DictionaryArray.dictionary_decode, kind.value_type, session_types)
    if _T.is_run_end_encoded(kind):
        return _after(plain_array, kind.value_type, session_types)
    if isinstance(kind, pa.BaseExtensionType):
        return _after(plain_array, kind.storage_type, session_types)
    if _is_any_list(kind):
        return _shown_list(kind, session_types)
    return next(show(kind) for matches, show in _RULES[session_types] if matches(kind))


def _after(
    dissolve: Callable[[pa.Array], pa.Array], inner: pa.DataType, session_types: SessionTypes
) -> ShownType:
    """Values of ``inner`` that ``dissolve`` brings to light."""
    shown = shown_type(inner, session_types)
    turn = shown.apply

    def apply(array: pa.Array) -> pa.Array:
        plain = dissolve(array)
        return plain if turn is None else turn(plain)

    return ShownType(
        data_type=shown.data_type, java=shown.java, apply=apply, may_fail=shown.may_fail
    )


def _is_any_list(kind: pa.DataType) -> bool:
    return bool(
        _T.is_list(kind)
        or _T.is_large_list(kind)
        or _T.is_fixed_size_list(kind)
        or _T.is_list_view(kind)
        or _T.is_large_list_view(kind)
    )


def _shown_list(kind: pa.DataType, session_types: SessionTypes) -> ShownType:
    child = shown_type(kind.value_type, session_types)
    if session_types == "ticking" and _is_any_list(kind.value_type):
        return ShownType(data_type=pa.string(), apply=text_of)
    data_type = pa.list_(child.data_type)
    java = _array_class(child)
    if kind == data_type and child.apply is None:
        return ShownType(data_type=data_type, java=java)

    def apply(array: pa.Array) -> pa.Array:
        lists = _plain_lists(array)
        values = lists.values if child.apply is None else child.apply(lists.values)
        mask = lists.is_null() if lists.null_count else None
        return pa.ListArray.from_arrays(lists.offsets, values, type=data_type, mask=mask)

    return ShownType(data_type=data_type, java=java, apply=apply, may_fail=child.may_fail)


def _array_class(child: ShownType) -> str | None:
    """Java class of a list of ``child``. A ``byte[]`` travels as binary, so a list of bytes is a
    vector (barrage-wire.md section 12.1)."""
    if child.java_name == "byte":
        return "io.deephaven.vector.ByteVector"
    return f"{child.java_name}[]" if child.java_name else None


def _plain_lists(array: pa.Array) -> pa.ListArray:
    """Lists with 32-bit offsets that start at the array's first row.

    Rows are gathered anew when the array is a slice, because values outside of it must neither be
    converted nor make the conversion fail.
    """
    lists = plain_array(array)
    if _T.is_large_list(lists.type) or _T.is_fixed_size_list(lists.type):
        lists = lists.cast(pa.list_(lists.type.value_field))
    if lists.offset or len(lists.values) != len(lists.flatten()):
        lists = lists.take(pa.array(np.arange(len(lists))))
    return lists
