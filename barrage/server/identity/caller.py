"""Who calls: a name, roles, how that was proven, and until when it holds."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

ANONYMOUS_NAME = "anonymous"
KEY_NAME = "key"


class Proof(Enum):
    """How a caller has shown who it is. A token this server gave out is as good as what it was
    given for, and is told as that."""

    ANONYMOUS = "anonymous"
    KEY = "key"
    """The server's pre-shared key."""
    PASSWORD = "password"
    """A name and a password of the users file."""
    JWT = "jwt"
    """A signed token of somebody the server trusts."""
    CERTIFICATE = "certificate"
    """A client certificate, checked by TLS."""
    UNIX = "unix"
    """The user of the process on the other end of a socket of the file system."""
    HOOK = "hook"
    """A function of the program the server runs in."""


Owner: TypeAlias = tuple[str, Proof]


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Never changes: a call and a session have one from their beginning to their end."""

    name: str
    roles: frozenset[str] = frozenset()
    proof: Proof
    expires_ns: int | None = None
    """Wall clock, from when on it holds no more; None while nothing else ends it."""
    certificate: bytes | None = field(default=None, repr=False, compare=False)
    """What lists of revoked certificates would name the one by that was shown; None for any other
    proof."""

    @property
    def owner(self) -> Owner:
        """What is kept for a caller belongs to this, whichever token it comes with."""
        return self.name, self.proof

    def is_like(self, other: Caller) -> bool:
        """Whether the other one is the same, and has the same roles: one may be there with several
        tokens, which do not all give the same ones."""
        return self.owner == other.owner and self.roles == other.roles

    def has_expired(self, wall_ns: int) -> bool:
        return self.expires_ns is not None and wall_ns >= self.expires_ns


ANYBODY = Caller(name=ANONYMOUS_NAME, proof=Proof.ANONYMOUS)
"""Who says nothing, where nothing need be said."""
