"""A users file of three: alice, bob, and carol, who is switched off; one password for all."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from barrage.server.identity.password_hashing import hashed
from barrage.server.identity.users_file import UserRecord, changing_users

ALICE_PASSWORD = "correct horse"


@cache
def kept_password(number: int) -> str:
    """A hash of the password, each with a salt of its own; made once, it takes its time."""
    return hashed(ALICE_PASSWORD)


def users_file(path: Path) -> Path:
    """Make the file."""
    with changing_users(path) as users:
        for number, (name, roles, is_disabled) in enumerate(
            [("alice", ("reader", "writer"), False), ("bob", (), False), ("carol", (), True)]
        ):
            users[name] = UserRecord(
                name=name, password=kept_password(number), roles=roles, is_disabled=is_disabled
            )
    return path
