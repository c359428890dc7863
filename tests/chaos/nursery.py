"""Starts servers quickly: a process that has loaded everything and begins each life by a fork.

``python -m tests.chaos.nursery`` with a socket as stdin. A message is a life's arguments as JSON,
with the files that are to be its stdin and stdout; the answer is its process id. The life before
has ended completely when the answer comes. Loading the modules takes most of a start, and a
crash test starts hundreds; nothing but modules is loaded here, so a life begins like any process.
"""

from __future__ import annotations

import json
import os
import socket
import sys

MESSAGE_BYTES_MAX = 65536


def main() -> None:
    from tests.chaos import server
    from tests.helpers import held_up

    held_up.install()
    orders = socket.socket(fileno=os.dup(0))
    child = 0
    while True:
        message, files, _, _ = socket.recv_fds(orders, MESSAGE_BYTES_MAX, 2)
        if not message:
            return
        if child:
            os.waitpid(child, 0)
        child = os.fork()
        if child == 0:
            orders.close()
            for target, file in enumerate(files):
                os.dup2(file, target)
                os.close(file)
            sys.stdin = os.fdopen(0, closefd=False)
            try:
                server.run(*json.loads(message))
            finally:
                os._exit(0)
        for file in files:
            os.close(file)
        orders.sendall(f"{child}\n".encode())


if __name__ == "__main__":
    main()
