"""Flatbuffers written with the code generated from ``flatbuf_schemas/``: for what is not sent many
thousands of times a second. :mod:`barrage.wire.update_metadata` lays out what is.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from flatbuffers import Builder

from barrage.wire.revision import WireRevision

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

_PACKAGES = {WireRevision.R1_0_0: "r1_0_0", WireRevision.DRAFT_2020: "draft_2020"}
_BYTES = 256
"""Room a buffer begins with; the builder makes more."""


class FlatbufferWriter:
    """One flatbuffer of a revision. Tables and fields have the names of the schema; what a table
    points to is written before it."""

    def __init__(self, revision: WireRevision) -> None:
        self._package = _PACKAGES[revision]
        self._builder = Builder(_BYTES)

    def table(self, name: str, **fields: bytes | int | None) -> int:
        """Write a table and say where it is. Bytes become a vector, a number is a scalar or the
        place of something written before; None, defaults, and fields that the revision's table does
        not have are left out."""
        module, builder = _generated(self._package, name), self._builder
        values = [
            (add, builder.CreateByteVector(value) if isinstance(value, bytes) else value)
            for field, value in fields.items()
            if value is not None and (add := _adder(module, field)) is not None
        ]
        module.Start(builder)
        for add, value in values:
            add(builder, value)
        return int(module.End(builder))

    def tables(self, places: Sequence[int]) -> int:
        """Write a vector of tables and say where it is."""
        self._builder.StartVector(4, len(places), 4)
        for place in reversed(places):
            self._builder.PrependUOffsetTRelative(place)
        return int(self._builder.EndVector())

    def finished(self, root: int) -> bytes:
        """The whole buffer with its root."""
        self._builder.Finish(root)
        return bytes(self._builder.Output())


@cache
def _generated(package: str, name: str) -> ModuleType:
    return import_module(f"barrage.wire._fbs.{package}.{name}")


@cache
def _adder(module: ModuleType, field: str) -> Any:
    """The generated function that adds a field; None when the table has no such field."""
    return getattr(module, "Add" + "".join(map(str.capitalize, field.split("_"))), None)
