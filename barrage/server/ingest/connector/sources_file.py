"""The file form of sources of the connector protocol: TOML, a table for each.

[sources.trades]
program = "trade-feed"
table = "trades"
format = "json"
columns = { order_id = "int64", symbol = "string", price = "double" }
key = ["order_id"]
"""

from __future__ import annotations

import json
import tomllib
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from barrage.errors import ConfigError, SchemaError
from barrage.wire.payloads.source_mapping import (
    BadPayload,
    PayloadFormat,
    SourceMapping,
    TimeUnit,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

SOURCES_BYTES_MAX = 4 * 1024 * 1024
SOURCES_MAX = 1000

DECODERS_GROUP = "barrage.decoders"
"""Entry points of functions from bytes to rows."""


class _SourceForm(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    program: str
    table: str = "{program}"
    instance: str = "*"
    streams: str = "*"
    format: PayloadFormat = "json"
    columns: dict[str, str] | None = None
    key: list[str] = []
    stream_column: str | None = None
    id_column: str | None = None
    key_column: str | None = None
    time_column: str | None = None
    time_unit: TimeUnit | None = None
    delete_column: str | None = None
    delete_value: bool | int | str = True
    on_bad_payload: BadPayload = "dead-letter"
    ignores_unknown: bool = True
    delimiter: str = ","
    avro_schema: str | None = None
    avro_registry: bool = False
    protobuf_descriptors: str | None = None
    protobuf_message: str | None = None
    function: str | None = None


class _SourcesForm(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    sources: Annotated[dict[str, _SourceForm], Meta(max_length=SOURCES_MAX, min_length=1)]


def read_sources(path: Path) -> tuple[SourceMapping, ...]:
    """The sources of a file, in its order; ConfigError names what is wrong and where."""
    try:
        return parse_sources(_bytes_of(path).decode(), path.parent)
    except (ConfigError, UnicodeDecodeError) as error:
        raise ConfigError(f"sources of connectors, {path}: {error}") from None


def parse_sources(text: str, folder: Path = Path()) -> tuple[SourceMapping, ...]:
    """The sources of a text; files that it names are looked for in ``folder``. ConfigError."""
    try:
        form = msgspec.convert(tomllib.loads(text), _SourcesForm)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"this is no TOML: {error}") from None
    except msgspec.ValidationError as error:
        raise ConfigError(str(error)) from None
    found = []
    for name, each in form.sources.items():
        try:
            found.append(_mapping(each, folder))
        except (ConfigError, SchemaError) as error:
            raise ConfigError(f"source {name!r}: {error}") from None
    return tuple(found)


def _mapping(form: _SourceForm, folder: Path) -> SourceMapping:
    fields: dict[str, Any] = msgspec.structs.asdict(form)
    fields["key"] = tuple(form.key)
    fields["avro_schema"] = _avro(form.avro_schema, folder)
    if form.protobuf_descriptors is not None:
        fields["protobuf_descriptors"] = _bytes_of(folder / form.protobuf_descriptors)
    if form.function is not None:
        fields["function"] = load_function(form.function)
    mapping = SourceMapping(**fields)
    if mapping.columns is not None or mapping.format in ("avro", "protobuf"):
        # What is wrong is told when the server starts, not when the first source comes.
        mapping.new_schema()
    return mapping


def _avro(file: str | None, folder: Path) -> Mapping[str, Any] | None:
    if file is None:
        return None
    try:
        schema = json.loads(_bytes_of(folder / file))
    except ValueError as error:
        raise ConfigError(f"the Avro schema {file} is no JSON: {error}") from None
    if not isinstance(schema, dict):
        raise ConfigError(f"the Avro schema {file} is no record")
    return schema


def _bytes_of(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(SOURCES_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from None
    if len(data) > SOURCES_BYTES_MAX:
        raise ConfigError(f"{path} has more than {SOURCES_BYTES_MAX} bytes")
    return data


def load_function(name: str) -> Any:
    """The decoder of that name: an entry point of :data:`DECODERS_GROUP`, or ``module:function``.
    ConfigError."""
    try:
        if ":" in name:
            module, _, attribute = name.partition(":")
            found: Any = getattr(import_module(module), attribute)
        else:
            (point,) = entry_points(group=DECODERS_GROUP, name=name)
            found = point.load()
    except Exception as error:
        raise ConfigError(f"function {name!r} cannot be loaded: {error}") from None
    if not callable(found):
        raise ConfigError(f"function {name!r} is none")
    return found
