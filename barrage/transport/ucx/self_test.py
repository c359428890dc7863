"""What UCX can do on this machine, found out in a process of its own:
``python -m barrage.transport.ucx.self_test [PID ADDRESS LENGTH]``.

Prints one JSON object a line, each as soon as it is known, since a library that does not fit may
end the process: whether memory of process PID can be read (cross-memory attach), which library
there is, and whether two ends connect and pass a message.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from barrage.errors import BarrageError, TransportError
from barrage.transport.ucx.connection import UcxConnection
from barrage.transport.ucx.context import UcxContext
from barrage.transport.ucx.library import UcxLibrary, load_library
from barrage.transport.ucx.listener import UcxListener
from barrage.transport.ucx.settings import UcxSettings

if TYPE_CHECKING:
    from collections.abc import Sequence

MESSAGE_BYTES: Final = 1_000_000
SECONDS_MAX: Final = 10.0


class _Range(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def read_other_memory(pid: int, address: int, length: int) -> str:
    """Read memory of another process; the name of the error, or nothing when it worked."""
    function = getattr(ctypes.CDLL(None, use_errno=True), "process_vm_readv", None)
    if function is None:
        return "no process_vm_readv in this system"
    function.restype = ctypes.c_ssize_t
    function.argtypes = [
        ctypes.c_int,
        ctypes.POINTER(_Range),
        ctypes.c_ulong,
        ctypes.POINTER(_Range),
        ctypes.c_ulong,
        ctypes.c_ulong,
    ]
    target = ctypes.create_string_buffer(length)
    ours = _Range(ctypes.addressof(target), length)
    theirs = _Range(address, length)
    count = function(pid, ctypes.byref(ours), 1, ctypes.byref(theirs), 1, 0)
    return "" if count == length else os.strerror(ctypes.get_errno())


async def pass_message(library: UcxLibrary, settings: UcxSettings) -> float:
    """Connect to ourselves and pass one message; milliseconds it took."""
    context = UcxContext(library, settings)
    try:
        started_ns = time.monotonic_ns()
        accepted: asyncio.Queue[UcxConnection] = asyncio.Queue()
        listener = UcxListener(context, "127.0.0.1", 0, on_connection=accepted.put_nowait)
        client = await UcxConnection.connect(
            context, "127.0.0.1", listener.port, timeout=SECONDS_MAX
        )
        async with asyncio.timeout(SECONDS_MAX):
            server = await accepted.get()
            into = pa.allocate_buffer(MESSAGE_BYTES)
            receiving = server.receive_posted(1, 1, into)
            content = os.urandom(MESSAGE_BYTES)
            await client.send_tagged(1, content)
            await receiving
        if into.to_pybytes() != content:
            raise TransportError("a message did not arrive as it was sent")
        await client.close()
        await server.close()
        return (time.monotonic_ns() - started_ns) / 1e6
    finally:
        context.close()


def main(arguments: Sequence[str]) -> int:
    """Print what is found; always 0 when it gets that far."""
    if arguments:
        pid, address, length = map(int, arguments)
        _say({"about": "cma", "error": read_other_memory(pid, address, length)})
    try:
        library = load_library()
    except BarrageError as error:
        _say({"about": "library", "error": str(error)})
        return 0
    facts = {"path": library.path, "release": library.release, "warnings": library.warnings}
    _say({"about": "library", "error": "", **facts})
    try:
        took_ms = asyncio.run(pass_message(library, UcxSettings()))
    except (BarrageError, TimeoutError) as error:
        _say({"about": "connection", "error": str(error) or type(error).__name__})
    else:
        _say({"about": "connection", "error": "", "took_ms": round(took_ms, 1)})
    return 0


def _say(fact: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(fact) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
