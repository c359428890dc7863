"""What tells two processes that they may share memory: the same boot of one system, one user."""

from __future__ import annotations

import os
from pathlib import Path

from barrage.errors import TransportUnavailableError
from barrage.wire.dissociated.negotiation import HostIdentity

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def host_identity() -> HostIdentity:
    """Of this process. Containers of one host look alike here; whether they really share memory
    is what the arena's proof is for.

    Raises TransportUnavailableError where the system does not say.
    """
    try:
        boot_id = BOOT_ID.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise TransportUnavailableError(
            f"this system does not name its boot ({BOOT_ID}), so no host can be recognised"
        ) from error
    return HostIdentity(boot_id=boot_id, user_id=os.geteuid())
