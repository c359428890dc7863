"""Runs inside a real Deephaven server: the README's block for Java, then a server for our client.

Arguments: port to listen on, file with the block. Prints one JSON line when both are there.
"""

import json
import pathlib
import sys
import time

from deephaven_server import Server

server = Server(
    port=int(sys.argv[1]),
    jvm_args=[
        "-Xmx700m",
        "-XX:TieredStopAtLevel=1",
        "-DAuthHandlers=io.deephaven.authentication.psk.PskAuthenticationHandler",
        "-Dauthentication.psk=pre-shared-key",
        "-Dhttp.host=127.0.0.1",
    ],
    default_jvm_args=[],
)
server.start()

from deephaven import arrow as dharrow  # noqa: E402
from deephaven.execution_context import get_exec_ctx  # noqa: E402

with get_exec_ctx():
    exec(pathlib.Path(sys.argv[2]).read_text(), globals())
    rows = dharrow.to_arrow(dear).to_pylist()  # noqa: F821
    print(json.dumps({"rows": rows}), flush=True)
    time.sleep(600)
