"""A JSON object from a peer, read field by field, each checked as it is read.

Whatever has not been asked for when :meth:`Fields.finish` is called is a field nobody knows, and
refused: a misspelt option must not be ignored.
"""

from __future__ import annotations

from typing import Annotated, Any

import pyarrow as pa
from msgspec import Meta

from barrage.errors import LimitExceededError, RemoteProtocolError, near_miss
from barrage.json_text import DeepJsonError, JsonTextError, read_json
from barrage.model.cursor import EPOCH_CHARS
from barrage.model.schema_message import read_schema_message
from barrage.server.settings.declared import NUMBER_MAX, Number, converted, expected

NAME_CHARS_MAX = 200
"""Longest name a peer may give itself."""

Epoch = Annotated[
    str,
    Meta(
        pattern=f"^[0-9a-f]{{{EPOCH_CHARS}}}\\Z",
        description=f"an epoch, {EPOCH_CHARS} hexadecimal digits",
    ),
]
Pair = Annotated[tuple[Number, Number], Meta(description="two whole numbers")]

_Name = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=NAME_CHARS_MAX,
        description=f"a text of 1 to {NAME_CHARS_MAX} characters",
    ),
]
_Texts = Annotated[list[str], Meta(description="a list of texts")]
_SchemaMessage = Annotated[bytes, Meta(description="base64 of an Arrow IPC schema message")]
_Object = Annotated[dict[str, Any], Meta(description="an object")]
_REQUIRED: Any = object()


class Fields:
    """The fields of one object. ``what`` names it in errors, which are RemoteProtocolError."""

    def __init__(self, fields: dict[str, Any], what: str) -> None:
        self._fields = fields
        self._what = what
        self._asked: set[str] = set()

    @classmethod
    def parse(cls, text: bytes | memoryview, what: str, *, bytes_max: int = NUMBER_MAX) -> Fields:
        """LimitExceededError for a text that is longer than ``bytes_max``."""
        if len(text) > bytes_max:
            raise LimitExceededError(what, actual=len(text), maximum=bytes_max, unit="bytes")
        try:
            parsed = read_json(text)
        except DeepJsonError as error:
            raise RemoteProtocolError(f"{what} cannot be read: {error}") from None
        except JsonTextError as error:
            raise RemoteProtocolError(f"{what} is not JSON") from error
        if not isinstance(parsed, dict):
            raise RemoteProtocolError(f"{what} is not a JSON object")
        return cls(parsed, what)

    def finish(self) -> None:
        """Refuse fields that nobody has asked for."""
        unknown = sorted(self._fields.keys() - self._asked)
        if unknown:
            hint = near_miss(unknown[0], sorted(self._asked))
            raise RemoteProtocolError(f"unknown field {unknown[0][:60]!r} in {self._what}{hint}")

    def fail(self, name: str, wanted: str) -> RemoteProtocolError:
        """The error for a field that is not what it must be."""
        shown = repr(self._fields.get(name))
        shown = shown if len(shown) <= 60 else shown[:57] + "..."
        return RemoteProtocolError(f"{name!r} in {self._what} must be {wanted}, not {shown}")

    def value(self, name: str, default: Any = None) -> Any:
        """The field as it is; ``default`` when it is missing."""
        self._asked.add(name)
        return self._fields.get(name, default)

    def get(self, name: str, declared: Any, default: Any = _REQUIRED) -> Any:
        """The field, which must be as ``declared`` (see :mod:`barrage.server.settings.declared`);
        ``default`` when it is missing or null, which without one it must not be."""
        value = self.value(name)
        if value is None and default is not _REQUIRED:
            return default
        try:
            return converted(value, declared)
        except ValueError as error:
            raise self.fail(name, str(error)) from None

    def name(self, name: str, default: Any = _REQUIRED) -> Any:
        """A short printable text."""
        value = self.get(name, _Name, default)
        if value is not None and not value.isprintable():
            raise self.fail(name, "printable text")
        return value

    def text(self, name: str, *, bytes_max: int) -> str | None:
        """A text, or None."""
        value: str | None = self.get(name, str, None)
        if value is not None and len(value.encode()) > bytes_max:
            raise self.fail(name, f"a text of at most {bytes_max} bytes")
        return value

    def texts(self, name: str, *, count_max: int = NUMBER_MAX) -> tuple[str, ...] | None:
        """A list of different texts (or one text), or None."""
        value = self.value(name)
        values = [value] if isinstance(value, str) else self.get(name, _Texts, None)
        if values is None:
            return None
        if len(values) > count_max:
            raise LimitExceededError(
                f"{name!r} in {self._what}", actual=len(values), maximum=count_max, unit="texts"
            )
        if len(set(values)) != len(values):
            raise self.fail(name, "a list of different texts")
        return tuple(values)

    def schema(self, name: str) -> pa.Schema | None:
        """An Arrow schema, or None."""
        message = self.get(name, _SchemaMessage, None)
        if message is None:
            return None
        try:
            return read_schema_message(message)
        except (ValueError, pa.ArrowException, OSError) as error:
            raise self.fail(name, expected(_SchemaMessage)) from error

    def part(self, name: str, what: str) -> Fields:
        """The object in a field, whose fields are read in turn."""
        return Fields(self.get(name, _Object), what)
