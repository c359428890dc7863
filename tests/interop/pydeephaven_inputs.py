"""Runs a real pydeephaven against our server: uploads, input tables, names and shared tickets.

``python pydeephaven_inputs.py PORT`` runs every scenario and prints one JSON object per line:
``{"scenario": ..., "result": ...}`` or ``{"scenario": ..., "error": text}``. Started by
:mod:`tests.interop.test_pydeephaven_inputs` with an interpreter that has pydeephaven.
"""

from __future__ import annotations

import gc
import json
import os
import pathlib
import sys
import time
import traceback

import pyarrow as pa
from pydeephaven import Session
from pydeephaven.dherror import DHError
from pydeephaven.ticket import SharedTicket

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

from tests.interop.peer_session import new_session
from tests.unit.server.deephaven.arrow_samples import sample_columns

PORT = int(sys.argv[1])
SCHEMA = pa.schema([("K", pa.int32()), ("S", pa.string())])


def refused(call) -> str:
    """The text of the error a call ends with, causes included."""
    try:
        call()
    except DHError as error:
        texts = []
        cause: BaseException | None = error
        while cause is not None:
            texts.append(str(cause))
            cause = cause.__cause__
        return " | ".join(texts)
    raise AssertionError("the call was not refused")


def rows(table) -> list[dict]:
    return table.to_arrow().to_pylist()


def import_table_of_every_type(session: Session) -> dict:
    """Per type: the type and the values that came back, as text."""
    found = {}
    for name, values in sample_columns().items():
        try:
            table = session.import_table(pa.table({"C": values}))
            back = table.to_arrow()
            found[name] = {
                "size": table.size,
                "type": str(back.schema.field("C").type),
                "values": [repr(value) for value in back.column("C").to_pylist()],
            }
        except Exception as error:
            found[name] = {"error": refused_text(error)}
    return found


def refused_text(error: BaseException) -> str:
    return f"{error} | {error.__cause__}"


def import_table_in_many_batches(session: Session) -> dict:
    data = pa.table({"N": range(300_000), "T": [f"row {n}" for n in range(300_000)]})
    batches = pa.Table.from_batches(data.to_batches(max_chunksize=1000))
    back = session.import_table(batches).to_arrow()
    return {"rows": back.num_rows, "is_equal": back.cast(data.schema).equals(data)}


def import_table_without_rows(session: Session) -> dict:
    table = session.import_table(SCHEMA.empty_table())
    return {"rows": rows(table), "names": table.to_arrow().column_names}


def import_table_and_derive(session: Session) -> list:
    table = session.import_table(pa.table({"K": [1, 2, 3]}))
    return rows(table.where("K > 1").sort_descending("K"))


def append_only_input_table(session: Session) -> dict:
    table = session.input_table(schema=SCHEMA)
    table.add(session.import_table(pa.table({"K": pa.array([1, 1], pa.int32()), "S": ["a", "b"]})))
    table.add(session.import_table(pa.table({"S": ["c"], "K": pa.array([2], pa.int64())})))
    return {
        "rows": rows(table),
        "unknown": refused(
            lambda: table.add(session.import_table(pa.table({"K": [1], "S": ["a"], "Z": [1]})))
        ),
        "missing": refused(lambda: table.add(session.import_table(pa.table({"K": [1]})))),
        "value": refused(
            lambda: table.add(session.import_table(pa.table({"K": [2**40], "S": ["a"]})))
        ),
        "after": len(rows(table)),
    }


def keyed_input_table(session: Session) -> dict:
    table = session.input_table(schema=SCHEMA, key_cols="K")
    table.add(session.import_table(pa.table({"K": [1, 2, 2], "S": ["a", "b", "c"]})))
    added = rows(table)
    table.add(session.import_table(pa.table({"K": [1, 3], "S": ["z", "d"]})))
    upserted = rows(table)
    keys = session.import_table(pa.table({"K": [2, 9]}))
    table.delete(keys)
    return {
        "added": added,
        "upserted": upserted,
        "deleted": rows(table),
        "metadata": sorted(
            key.decode() for key in (table.schema.field("K").metadata or {}) if b"input" in key
        ),
    }


def blink_input_table(session: Session) -> dict:
    table = session.input_table(schema=SCHEMA, blink_table=True)
    table.add(session.import_table(pa.table({"K": [1], "S": ["a"]})))
    return {"names": table.to_arrow().column_names}


def input_table_like_another(session: Session) -> list:
    first = session.import_table(pa.table({"K": [1], "S": ["a"]}))
    table = session.input_table(init_table=first, key_cols=["K"])
    # Deephaven copies the rows of the first table; adding them again changes nothing.
    table.add(first)
    return rows(table)


def not_an_input_table(session: Session) -> dict:
    from deephaven_core.proto import inputtable_pb2, inputtable_pb2_grpc

    stub = inputtable_pb2_grpc.InputTableServiceStub(session.grpc_channel)
    static = session.import_table(pa.table({"K": [1]}))
    appended = session.input_table(schema=SCHEMA)

    def add() -> None:
        session.wrap_rpc(
            stub.AddTableToInputTable,
            inputtable_pb2.AddTableRequest(
                input_table=static.pb_ticket, table_to_add=static.pb_ticket
            ),
        )

    def delete() -> None:
        session.wrap_rpc(
            stub.DeleteTableFromInputTable,
            inputtable_pb2.DeleteTableRequest(
                input_table=appended.pb_ticket, table_to_remove=static.pb_ticket
            ),
        )

    return {"add": grpc_error(add), "delete": grpc_error(delete)}


def grpc_error(call) -> list[str]:
    import grpc

    try:
        call()
    except grpc.RpcError as error:
        return [error.code().name, error.details()]
    raise AssertionError("the call was not refused")


def tables_of_the_server(session: Session) -> dict:
    """Append to tables the server's own API made."""
    from pydeephaven.table import InputTable

    def as_input(name: str) -> InputTable:
        table = session.open_table(name)
        table.__class__ = InputTable  # pydeephaven opens every table as a plain one.
        return table

    more = session.import_table(pa.table({"K": [5], "S": ["e"]}))
    as_input("served").add(more)
    return {
        "served": rows(session.open_table("served")),
        "read_only": refused(lambda: as_input("served_read_only").add(more)),
    }


def bind_and_rebind(session: Session) -> dict:
    first = session.import_table(pa.table({"K": [1]}))
    session.bind_table("bound", first)
    names = session.tables
    opened = session.open_table("bound")
    session.bind_table("bound", session.import_table(pa.table({"K": [2]})))
    return {
        "names": "bound" in names,
        "old": rows(opened),
        "new": rows(session.open_table("bound")),
        "refused": refused(lambda: session.bind_table("", first)),
    }


def bound_input_table(session: Session) -> dict:
    table = session.input_table(schema=SCHEMA)
    session.bind_table("bound_input", table)
    table.add(session.import_table(pa.table({"K": [1], "S": ["a"]})))
    table.close()
    return {"rows": rows(session.open_table("bound_input"))}


def shared_tickets(session: Session) -> dict:
    ticket = SharedTicket.random_ticket()
    table = session.import_table(pa.table({"K": [1, 2]}))
    session.publish_table(ticket, table)
    other = new_session(PORT)
    try:
        fetched = other.fetch_table(ticket)
        found = rows(fetched)
        taken = refused(lambda: session.publish_table(ticket, table))
        table.close()
        after = refused(lambda: rows(fetched))
        gone = refused(lambda: other.fetch_table(ticket))
    finally:
        other.close()
    return {"rows": found, "taken": taken, "after": after, "gone": gone}


def names(session: Session) -> dict:
    return {
        "tables": sorted(session.tables),
        "types": sorted({o.type for o in session.exportable_objects.values()}),
    }


def scripts(session: Session) -> dict:
    return {"refused": refused(lambda: session.run_script("x = 1"))}


def closing(_session: Session) -> dict:
    session = new_session(PORT)
    table = session.import_table(pa.table({"K": [1]}))
    table.close()
    session.close()
    return {"is_alive": session.is_alive, "refused": refused(lambda: table.to_arrow())}


def keep_alive(_session: Session) -> dict:
    """The server's sessions live for some seconds only; pydeephaven keeps its own alive."""
    session = new_session(PORT)
    table = session.import_table(pa.table({"K": [1]}))
    time.sleep(float(os.environ["BARRAGE_SESSION_SECONDS"]) * 1.5)
    found = rows(table)
    session.close()
    return {"rows": found}


SCENARIOS = (
    import_table_of_every_type,
    import_table_in_many_batches,
    import_table_without_rows,
    import_table_and_derive,
    append_only_input_table,
    keyed_input_table,
    blink_input_table,
    input_table_like_another,
    not_an_input_table,
    tables_of_the_server,
    bind_and_rebind,
    bound_input_table,
    shared_tickets,
    names,
    scripts,
    closing,
    keep_alive,
)


def main() -> None:
    # A table that the cyclic collector finds calls the server from whatever thread it runs in; in
    # one of gRPC's own it would wait for itself. So it runs here and nowhere else.
    gc.disable()
    session = new_session(PORT)
    for scenario in SCENARIOS:
        told: dict[str, object] = {"scenario": scenario.__name__}
        try:
            told["result"] = scenario(session)
        except Exception:
            told["error"] = traceback.format_exc()
        print(json.dumps(told), flush=True)
        gc.collect()
    session.close()


main()
