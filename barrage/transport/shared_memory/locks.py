"""Locks on parts of a file that belong to one opening of it, not to a process (OFD locks).

A client holds a read lock on every body it borrows; the server asks whether anybody does before it
uses the memory again. The kernel keeps the locks, so they end with the process that held them,
however it ends. Locks of two openings meet also within one process.

Who reads, and who wants to write, cannot miss each other: the reader locks first and then compares
the generation in the region's header, the writer first changes the generation and then looks for
locks. Either the writer sees the lock or the reader sees another generation.

The interpreter's lock is kept during these calls, which never wait: beside the threads of a gRPC
stream, giving it away and getting it back cost several times the call (35 us per body).

The kernel searches the locks of a file one by one. Neighbouring locks of one opening are one, so
there are few, but bodies that many clients hold in pieces make it slow: 10 us with a thousand
separate locks, half a millisecond with six thousand.

Source: Linux, fcntl(2), "Open file description locks".
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct

# short l_type, short l_whence, off_t l_start, off_t l_len, pid_t l_pid, padded to its alignment.
_FLOCK = struct.Struct("@hhqqi0q")
_TYPE = struct.Struct("@h")
_Request = ctypes.c_char * _FLOCK.size
_fcntl = ctypes.PyDLL(None, use_errno=True).fcntl
_fcntl.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_void_p)


def lock_shared(fd: int, start: int, length: int) -> None:
    """Lock a part of the file against writers. At once; BlockingIOError when one has it."""
    _call(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, start, length, 0))


def unlock(fd: int, start: int, length: int) -> None:
    """Give back what this opening has locked of a part of the file."""
    _call(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, start, length, 0))


def is_locked(fd: int, start: int, length: int) -> bool:
    """Whether another opening of the file has locked any byte of a part of it."""
    request = _Request.from_buffer_copy(_FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, start, length, 0))
    _call(fd, fcntl.F_OFD_GETLK, request)
    kind: int = _TYPE.unpack_from(request)[0]
    return kind != fcntl.F_UNLCK


def own_file(fd: int) -> bool:
    """Mark a file as one whose creator lives. False when somebody else holds the mark."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _call(fd: int, command: int, request: bytes | ctypes.Array[ctypes.c_char]) -> None:
    """OSError when the kernel refuses; what it answers it writes into the request."""
    if _fcntl(fd, command, request):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
