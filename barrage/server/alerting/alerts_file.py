"""The file form of alerts: TOML.

hosts = ["hooks.example.org"]      # where messages may go; addresses and networks, too

[[alert]]
name = "expensive"
table = "quotes"
where = "price > 100"
key = ["sym"]
url = { file = "hook.url" }        # or a text, or { env = "HOOK_URL" }
secret = { env = "HOOK_SECRET" }
for_ms = 60000
resolved = true

[alert.headers]
Authorization = { file = "hook.token" }
"""

from __future__ import annotations

import os
import tomllib
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from barrage.errors import ConfigError, near_miss
from barrage.server.alerting.alert import Alert, AlertError
from barrage.server.alerting.receiver_hosts import ReceiverHosts
from barrage.server.settings.declared import declarations

ALERTS_BYTES_MAX = 4 * 1024 * 1024

_SECRET_BYTES_MAX = 8 * 1024


_ELSEWHERE = '{ file = "FILE" } or { env = "VARIABLE" }'
_FIELDS = declarations(Alert)


class _AlertsForm(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    alert: Annotated[list[dict[str, Any]], Meta(min_length=1)]
    hosts: tuple[str, ...] = ()


def read_alerts(path: Path) -> tuple[tuple[Alert, ...], ReceiverHosts]:
    """The alerts of a file, in its order, and the hosts it names; ConfigError names what is wrong
    and where."""
    try:
        with path.open("rb") as file:
            data = file.read(ALERTS_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"cannot read alerts {path}: {error.strerror or error}") from None
    if len(data) > ALERTS_BYTES_MAX:
        raise ConfigError(f"alerts {path} have more than {ALERTS_BYTES_MAX} bytes")
    try:
        return parse_alerts(data.decode("utf-8"), path.parent)
    except (ConfigError, UnicodeDecodeError) as error:
        raise ConfigError(f"alerts {path}: {error}") from None


def parse_alerts(text: str, folder: Path = Path()) -> tuple[tuple[Alert, ...], ReceiverHosts]:
    """The alerts of a text, and the hosts it names; files are looked for in ``folder``.
    ConfigError."""
    try:
        form = msgspec.convert(tomllib.loads(text), _AlertsForm)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"this is no TOML: {error}") from None
    except msgspec.ValidationError as error:
        raise ConfigError(str(error)) from None
    alerts = tuple(_alert(number, each, folder) for number, each in enumerate(form.alert, start=1))
    return alerts, ReceiverHosts.parse(form.hosts)


def _alert(number: int, fields: dict[str, Any], folder: Path) -> Alert:
    name = fields.get("name")
    shown = name if isinstance(name, str) and name else f"number {number}"
    unknown = fields.keys() - _FIELDS.keys()
    if unknown:
        first = min(unknown)
        raise ConfigError(f"alert {shown!r}: unknown field {first!r}{near_miss(first, _FIELDS)}")
    missing = [each for each in ("name", "where", "url") if each not in fields]
    if missing:
        raise AlertError(shown, missing[0], "there")
    read = partial(_read, name=shown, folder=folder)
    told = dict(fields)
    told["url"] = read(fields["url"], "url")
    headers = fields.get("headers", {})
    if not isinstance(headers, dict):
        raise AlertError(shown, "headers", "texts by their names")
    told["headers"] = {each: read(value, f"headers.{each}") for each, value in headers.items()}
    if "secret" in fields:
        if isinstance(fields["secret"], str):
            raise AlertError(shown, "secret", _ELSEWHERE)
        told["secret"] = read(fields["secret"], "secret")
    return Alert(**told)


def _read(value: Any, what: str, *, name: str, folder: Path) -> str:
    """A text as it stands there, in a file, or in a variable of the environment."""
    if isinstance(value, str):
        return value
    ways = list(value.items()) if isinstance(value, dict) else []
    if len(ways) != 1 or ways[0][0] not in ("file", "env") or not isinstance(ways[0][1], str):
        raise AlertError(name, what, f"a text, {_ELSEWHERE}")
    way, place = str(ways[0][0]), str(ways[0][1])
    if way == "env":
        found = os.environ.get(place)
        if not found:
            raise AlertError(name, what, f"in the variable {place}, which is not set")
        return found.strip()
    path = folder / place
    try:
        with path.open("rb") as file:
            data = file.read(_SECRET_BYTES_MAX + 1)
        if len(data) > _SECRET_BYTES_MAX:
            raise AlertError(name, what, f"in a file of at most {_SECRET_BYTES_MAX} bytes")
        return data.decode("utf-8").strip()
    except OSError as error:
        reason = f"in the file {path}, which cannot be read: {error.strerror or error}"
        raise AlertError(name, what, reason) from None
    except UnicodeDecodeError:
        raise AlertError(name, what, f"in the file {path} as UTF-8") from None
