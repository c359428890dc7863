"""Runs a real pydeephaven through the table operations of a server, ours or a real one.

``python pydeephaven_operations.py PORT`` does every case and prints one JSON object per line:
``{"case": name, "result": ...}`` with the columns, rows and kind of the table the server made, or
``{"case": name, "status": code, "text": details}`` when it refused. The cases know nothing about
the server, so two servers can be compared. Started by
:mod:`tests.interop.test_pydeephaven_operations` with an interpreter that has pydeephaven.
"""

from __future__ import annotations

import gc
import json
import os
import pathlib
import sys

import grpc
from pydeephaven.table import Table

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

from tests.interop import operation_calls, operation_cases
from tests.interop.operation_bench import CASES, Bench, shown

__all__ = ["operation_calls", "operation_cases"]
"""Imported for the cases they define."""


def status_of(error: BaseException) -> grpc.RpcError | None:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, grpc.RpcError):
            return cause
        cause = cause.__cause__
    return None


def told(name: str, function, b: Bench) -> dict:
    try:
        result = function(b)
        if isinstance(result, tuple):  # The rest is kept alive until the result is read.
            result, *_ = result
        return {"case": name, "result": shown(result) if isinstance(result, Table) else result}
    except Exception as error:
        refusal = status_of(error)
        if refusal is None:
            return {"case": name, "error": repr(error)}
        return {"case": name, "status": refusal.code().name, "text": refusal.details()}


def main() -> None:
    # A collection on a thread of gRPC's would release tables there, and wait for itself for ever.
    gc.disable()
    b = Bench(int(sys.argv[1]))
    for name, function in CASES.items():
        print(json.dumps(told(name, function, b)), flush=True)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
