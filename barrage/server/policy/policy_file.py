"""The file form of a policy: TOML.

hash_key_file = "mask.key"        # 16 bytes in hexadecimal digits; beside this file

[[rule]]
roles = ["ops"]
tables = ["*", "_*"]
allow = ["admin"]

[[rule]]
users = ["alice", "desk-*"]
tables = ["trades*"]
allow = ["read"]
rows = "Desk = caller()"
hide = ["Account"]
hash = ["Trader"]
mask = { Note = "***" }
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from barrage.errors import ConfigError
from barrage.ordinary_files import ordinary_file
from barrage.server.policy.rules import RULES_MAX, Operation, Policy, Rule

POLICY_BYTES_MAX = 4 * 1024 * 1024

_KEY_FILE_BYTES_MAX = 256

_Texts = Annotated[tuple[str, ...], Meta(max_length=1000)]


class _RuleForm(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    tables: Annotated[_Texts, Meta(min_length=1)]
    allow: tuple[Operation, ...] = ()
    users: _Texts = ()
    roles: _Texts = ()
    rows: str | None = None
    show: _Texts = ()
    hide: _Texts = ()
    mask: dict[str, bool | int | float | str] = {}
    hash: _Texts = ()


class _PolicyForm(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    rule: Annotated[list[_RuleForm], Meta(max_length=RULES_MAX)] = []
    hash_key_file: str | None = None


def read_policy(path: Path) -> Policy:
    """The policy of a file; ConfigError names what is wrong, and which rule of how many."""
    return read_policy_and_files(path)[0]


def read_policy_and_files(path: Path) -> tuple[Policy, tuple[Path, ...]]:
    """The policy of a file, and the files it stands in: that one first. ConfigError."""
    try:
        with open(path, "rb", opener=ordinary_file) as file:
            data = file.read(POLICY_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"cannot read policy {path}: {error.strerror or error}") from None
    if len(data) > POLICY_BYTES_MAX:
        raise ConfigError(f"policy {path} has more than {POLICY_BYTES_MAX} bytes")
    try:
        form = _parsed(data.decode("utf-8"))
        return _policy(form, path.parent), _files(form, path)
    except (ConfigError, UnicodeDecodeError) as error:
        raise ConfigError(f"policy {path}: {error}") from None


def parse_policy(text: str, folder: Path = Path()) -> Policy:
    """The policy of a text; a file it names is looked for in ``folder``. ConfigError."""
    return _policy(_parsed(text), folder)


def _parsed(text: str) -> _PolicyForm:
    try:
        return msgspec.convert(tomllib.loads(text), type=_PolicyForm)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError, RecursionError) as error:
        raise ConfigError(str(error)) from None


def _files(form: _PolicyForm, path: Path) -> tuple[Path, ...]:
    return (path,) if form.hash_key_file is None else (path, path.parent / form.hash_key_file)


def _policy(form: _PolicyForm, folder: Path) -> Policy:
    rules = tuple(_rule(number, told) for number, told in enumerate(form.rule, start=1))
    key = b"" if form.hash_key_file is None else _hash_key(folder / form.hash_key_file)
    return Policy(rules, key)


def _rule(number: int, told: _RuleForm) -> Rule:
    try:
        return Rule(
            tables=told.tables,
            users=told.users,
            roles=told.roles,
            allow=frozenset(told.allow),
            rows=told.rows,
            show=told.show,
            hide=told.hide,
            mask=told.mask,
            hash=told.hash,
        )
    except ConfigError as error:
        raise ConfigError(f"rule {number}: {error}") from None


def _hash_key(path: Path) -> bytes:
    try:
        with open(path, "rb", opener=ordinary_file) as file:
            key = bytes.fromhex(file.read(_KEY_FILE_BYTES_MAX).decode("ascii").strip())
    except OSError as error:
        raise ConfigError(f"cannot read hash_key_file {path}: {error.strerror}") from None
    except ValueError:
        raise ConfigError(f"hash_key_file {path} must have 32 hexadecimal digits") from None
    if len(key) != 16:
        raise ConfigError(f"hash_key_file {path} must have 32 hexadecimal digits")
    return key
