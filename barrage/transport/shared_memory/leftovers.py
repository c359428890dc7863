"""Files that servers left behind when they were killed.

Every file of an arena is locked by its creator (``flock``) as long as that lives. A file that
looks like ours, belongs to us and is locked by nobody is taken away; those of living servers, of
other users and of other programs never are.
"""

from __future__ import annotations

import logging
import os
import stat
from contextlib import suppress
from pathlib import Path

from barrage.transport.shared_memory import locks
from barrage.transport.shared_memory.layout import FILE_NAME

logger = logging.getLogger(__name__)

_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


def remove_stale(directory: str) -> int:
    """Take away what dead servers of this user left in ``directory``; how many files that were.
    OSError when the directory cannot be read."""
    removed = 0
    with os.scandir(directory) as entries:
        names = [entry.name for entry in entries if FILE_NAME.fullmatch(entry.name)]
    for name in names:
        # Somebody else may be cleaning up as well, or the file may be another user's.
        with suppress(OSError):
            removed += _remove_if_stale(Path(directory) / name)
    if removed:
        logger.info("removed %d files of shared memory that dead servers left behind", removed)
    return removed


def _remove_if_stale(path: Path) -> bool:
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
        return False
    fd = os.open(path, _OPEN)
    try:
        # Locked and still under this name: its creator is dead, and nobody else is at it.
        if not locks.own_file(fd) or not os.path.samestat(os.fstat(fd), path.lstat()):
            return False
        path.unlink()
    finally:
        os.close(fd)
    return True
