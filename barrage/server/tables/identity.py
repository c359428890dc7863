"""Which server this is, and through which others its tables come: so that relays do not follow
themselves."""

from __future__ import annotations

import secrets


class ServerIdentity:
    """Written by whoever relays tables into this server, read from any thread."""

    def __init__(self) -> None:
        self.id = secrets.token_hex(8)
        """Another one for every server that is made."""
        self.via: tuple[str, ...] = ()
        """Ids of the servers that tables of this one come through, directly or not."""
