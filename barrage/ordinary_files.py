"""Opening files that somebody else may replace while a server runs: users, rules, certificates,
keys."""

from __future__ import annotations

import errno
import os
import stat


def ordinary_file(path: str, flags: int) -> int:
    """An ``opener``; OSError, also for what is a pipe or a device: opening one would wait for a
    writer, and nobody can read it again when it has changed."""
    number = os.open(path, flags | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise OSError(errno.EINVAL, "it is not an ordinary file", path)
    return number
