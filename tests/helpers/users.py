"""A users file of three: alice, bob, and carol, who is switched off; one password for all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest
from argon2 import PasswordHasher

from barrage.server.identity import password_hashing
from barrage.server.identity.password_hashing import hashed
from barrage.server.identity.users_file import UserRecord, changing_users

ALICE_PASSWORD = "correct horse"
CHEAP = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)


@cache
def kept_password(number: int, is_dear: bool) -> str:
    """A hash of the password, each with a salt of its own; a cheap one unless it is to be as those
    of users are."""
    return hashed(ALICE_PASSWORD) if is_dear else CHEAP.hash(ALICE_PASSWORD)


def users_file(path: Path, *, is_dear: bool = False) -> Path:
    """Make the file."""
    with changing_users(path) as users:
        for number, (name, roles, is_disabled) in enumerate(
            [("alice", ("reader", "writer"), False), ("bob", (), False), ("carol", (), True)]
        ):
            users[name] = UserRecord(
                name=name,
                password=kept_password(number, is_dear),
                roles=roles,
                is_disabled=is_disabled,
            )
    return path


@contextmanager
def cheap_hashes() -> Iterator[None]:
    """What is compared with for names that are nobody's costs no more than the users' own here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(password_hashing, "_HASHER", CHEAP)
        password_hashing.nobody.cache_clear()
        yield
    password_hashing.nobody.cache_clear()
