"""What the cases of ``pydeephaven_operations.py`` stand on: a session with tables, and what is told
of a result. Needs pydeephaven."""

from __future__ import annotations

import time

import grpc
import pyarrow as pa
from deephaven_core.proto import table_pb2 as messages
from pydeephaven.table import Table
from pydeephaven.ticket import ExportTicket

from tests.interop.operation_tables import NUMBERS, SECTORS, TRADES, TWICE
from tests.interop.peer_session import new_session

CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


class Bench:
    """A session, and the tables of ``operation_tables`` in it."""

    def __init__(self, port: int) -> None:
        self.session = new_session(port)
        self.kept: list[Table] = []
        self.stub = self.session.table_service._grpc_table_stub
        self.trades = self.session.import_table(TRADES)
        self.sectors = self.session.import_table(SECTORS)
        self.twice = self.session.import_table(TWICE)
        self.numbers = self.session.import_table(NUMBERS)

    def ticket(self):
        return self.session.make_export_ticket().pb_ticket

    def call(self, method: str, request):
        """The table of a call pydeephaven has no function for."""
        answer = self.session.wrap_rpc(getattr(self.stub, method), request)
        return Table(
            self.session,
            ticket=ExportTicket(answer.result_id.ticket.ticket),
            schema_header=answer.schema_header,
            size=answer.size,
            is_static=answer.is_static,
        )

    def one(self, method: str, request_type, table, **fields):
        """:meth:`call` with a request of one source."""
        request = request_type(result_id=self.ticket(), source_id=reference(table), **fields)
        return self.call(method, request)

    def batch(self, *operations):
        """Every answer of a batch in short form, and the status it ended with."""
        found = []
        try:
            request = messages.BatchTableRequest(ops=operations)
            for answer in self.stub.Batch(request, metadata=self.session.grpc_metadata):
                kind = answer.result_id.WhichOneof("ref")
                place = answer.result_id.batch_offset if kind == "batch_offset" else "ticket"
                has_schema = bool(answer.schema_header)
                found.append([place, answer.success, bool(answer.error_info), has_schema])
        except grpc.RpcError as error:
            return {"answers": sorted(found, key=str), "status": error.code().name}
        return {"answers": sorted(found, key=str), "status": "OK"}


def reference(table):
    return messages.TableReference(ticket=table.pb_ticket)


def plain(value):
    """A cell as JSON can hold it; floats in full and NaN as text."""
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, list):
        return [plain(each) for each in value]
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def shown(table) -> dict:
    """What a client sees of a table."""
    rows = table.to_arrow()
    told = table.schema
    assert told.names == rows.schema.names
    assert [field.type for field in told] == [field.type for field in rows.schema]
    return {
        "types": [[field.name, kind_of(field)] for field in rows.schema],
        "rows": [[plain(cell) for cell in row.values()] for row in rows.to_pylist()],
        "count": len(rows),
        "is_static": table.is_static is not False,
    }


def kind_of(field: pa.Field) -> str:
    java = (field.metadata or {}).get(b"deephaven:type", b"").decode()
    kind = f"list of {field.type.value_type}" if pa.types.is_list(field.type) else str(field.type)
    return f"{kind} {java}"


def until(holds) -> None:
    deadline = time.monotonic() + 15
    while not holds():
        assert time.monotonic() < deadline, "the server does not get there"
        time.sleep(0.02)
