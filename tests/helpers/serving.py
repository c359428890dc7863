"""Where the servers of end-to-end tests listen that need no socket.

By default nowhere: they serve ``inproc://``. With ``BARRAGE_TEST_SOCKETS=1`` they listen on a port,
so that the same tests run over gRPC. Tests of raw clients, of cut connections and of other
processes always have sockets, and so does one test of each kind of call
(``tests/unit/transport/test_contract.py``).
"""

from __future__ import annotations

import os

HOST = "127.0.0.1" if os.environ.get("BARRAGE_TEST_SOCKETS") else "inproc://"
