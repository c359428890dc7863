"""The users file: one user in a line of JSON, with roles and the argon2 hash of a password.

It is replaced as a whole, by a file of mode 0600, and who changes it holds a lock, so that of two
who add a user at the same time neither is lost and a reader never sees half of it. Everything here
blocks.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from barrage.errors import ConfigError
from barrage.ordinary_files import ordinary_file
from barrage.server.identity.names import checked_name, checked_roles

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

FILE_BYTES_MAX = 16 * 1024 * 1024
USERS_MAX = 100_000
HASH_LENGTH_MAX = 1024
_ARGON2 = "$argon2"
_MODE = 0o600


@dataclass(frozen=True, slots=True, kw_only=True)
class UserRecord:
    """One user. Two that are equal may be told apart by nobody."""

    name: str
    password: str = field(repr=False)
    """Hash in the form of argon2, with its salt and costs."""
    roles: tuple[str, ...] = ()
    is_disabled: bool = False


Users: TypeAlias = "Mapping[str, UserRecord]"
Stamp: TypeAlias = "tuple[int, int, int]"
"""Changes when the file does: its number, its time, its length."""


def read_users(path: Path) -> tuple[Users, Stamp]:
    """All users by name. ConfigError names the line and never what is in it."""
    try:
        with open(path, "rb", opener=ordinary_file) as file:
            found = os.fstat(file.fileno())
            text = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"cannot read the users file {path}: {error.strerror}") from error
    if len(text) > FILE_BYTES_MAX:
        raise ConfigError(f"the users file {path} is longer than {FILE_BYTES_MAX} bytes")
    users: dict[str, UserRecord] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            record = _record(line, f"users file {path}, line {number}")
            if record.name in users:
                raise ConfigError(f"users file {path}, line {number}: the name is there twice")
            users[record.name] = record
    if len(users) > USERS_MAX:
        raise ConfigError(f"the users file {path} has more than {USERS_MAX} users")
    return MappingProxyType(users), _stamp(found)


def stamp_of(path: Path) -> Stamp | None:
    """That of the file now; None when there is none."""
    try:
        return _stamp(path.stat())
    except OSError:
        return None


def _stamp(found: os.stat_result) -> Stamp:
    return found.st_ino, found.st_mtime_ns, found.st_size


def _record(line: bytes, where: str) -> UserRecord:
    try:
        record = msgspec.json.decode(line, type=UserRecord, strict=True)
        checked_user(record.name)
        checked_roles(record.roles)
    except (msgspec.DecodeError, UnicodeDecodeError):
        # What msgspec says may have a piece of the line in it.
        raise ConfigError(
            f'{where}: must be JSON of a user: {{"name", "password", "roles", "is_disabled"}}'
        ) from None
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from None
    if not record.password.startswith(_ARGON2) or len(record.password) > HASH_LENGTH_MAX:
        raise ConfigError(f"{where}: password must be a hash of argon2 (see barrage user add)")
    return record


def checked_user(name: str) -> str:
    """A name that can stand before a password; ValueError."""
    if ":" in name:
        raise ValueError("name must not have ':' in it")
    return checked_name(name)


@contextlib.contextmanager
def changing_users(path: Path) -> Iterator[dict[str, UserRecord]]:
    """The users, to be changed in the block and written when it ends without an error; nobody else
    changes them meanwhile. A file that is missing is made."""
    try:
        with _locked(path):
            users = dict(read_users(path)[0]) if path.exists() else {}
            before = dict(users)
            yield users
            if users != before or not path.exists():
                _write(path, users)
    except OSError as error:
        raise ConfigError(f"cannot write the users file {path}: {error.strerror}") from error


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    target = path.resolve()  # Whoever comes by another name of the file waits, too.
    lock = target.with_name(f".{target.name}.lock")
    number = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _MODE)
    try:
        fcntl.flock(number, fcntl.LOCK_EX)
        yield
    finally:
        os.close(number)


def _write(path: Path, users: Users) -> None:
    target = path.resolve()
    partial = target.with_name(f".{target.name}.{os.getpid()}.new")
    with contextlib.suppress(FileNotFoundError):
        partial.unlink()  # That of a process that was killed.
    number = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _MODE)
    try:
        with os.fdopen(number, "wb") as file:
            file.writelines(msgspec.json.encode(users[name]) + b"\n" for name in sorted(users))
            file.flush()
            os.fsync(file.fileno())
        partial.replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise
    directory = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
