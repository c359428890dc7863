"""Names of users and roles: short, printable, without what logs and lists cannot show."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

NAME_LENGTH_MAX = 128
ROLES_MAX = 64


def checked_name(name: object) -> str:
    """``name`` if it can be one of a user or a role; ValueError that begins with "name"."""
    if not isinstance(name, str) or not 0 < len(name) <= NAME_LENGTH_MAX:
        raise ValueError(f"name must be text of 1 to {NAME_LENGTH_MAX} characters")
    if not name.isprintable() or name != name.strip():
        raise ValueError("name must be printable, without spaces around it")
    return name


def checked_roles(roles: Iterable[object]) -> frozenset[str]:
    """The same for several roles; ValueError that begins with "roles"."""
    told = () if isinstance(roles, str) else tuple(roles)
    if isinstance(roles, str) or len(told) > ROLES_MAX:
        raise ValueError(f"roles must be a list of at most {ROLES_MAX}")
    try:
        return frozenset(map(checked_name, told))
    except ValueError as error:
        raise ValueError(f"roles are wrong: {error}") from None
