"""Calls of TableService as a client makes them, below the socket."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from barrage.clock import SystemClock
from barrage.server.deephaven.table_calls import TableCalls
from barrage.server.tables.tickets import export_ticket
from barrage.transport.deephaven_messages import MESSAGES
from tests.unit.server.deephaven.conftest import Bench, WrittenContext, run

RIGHT = pa.table({"k": ["a", "b"], "w": [10, 20]})
TWICE = pa.table({"k": ["a", "a", "b"], "w": [10, 11, 20]})
ROWS = pa.table(
    {
        "k": ["a", "b", "a", None],
        "n": pa.array([1, 2, None, 4], pa.int32()),
        "x": [0.5, -2.0, 1.5, None],
    }
)


def ticket(raw: bytes) -> Any:
    return MESSAGES.new("Ticket", ticket=raw)


def reference(raw: bytes) -> Any:
    return MESSAGES.new("TableReference", ticket=ticket(raw))


def place(offset: int) -> Any:
    return MESSAGES.new("TableReference", batch_offset=offset)


def schema_of(answer: Any) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(answer.schema_header))


class Client:
    """Makes calls in the session of a bench; results get the export ids from 100 on."""

    def __init__(self, bench: Bench, **limits: Any) -> None:
        self.bench = bench
        self.calls = TableCalls(
            bench.resolver, bench.tables, limits=bench.limits, clock=SystemClock()
        )
        self.methods = self.calls.methods()
        self.next_id = 100

    def new_ticket(self) -> bytes:
        self.next_id += 1
        return export_ticket(self.next_id)

    def ask(self, method: str, request: bytes) -> bytes:
        """One unary call; raises what the guard would turn into a status."""
        behavior = self.methods[method].behavior
        return bytes(run(behavior(request, WrittenContext(), self.bench.session)))

    def make(self, method: str, request: str, **fields: Any) -> Any:
        """The engine table a call makes, which must be the one it tells of."""
        result = self.new_ticket()
        return self.made(result, method, request, **fields)

    def made(self, result: bytes, method: str, request: str, **fields: Any) -> Any:
        message = MESSAGES.encode(request, result_id=ticket(result), **fields)
        answer = MESSAGES.decode("ExportedTableCreationResponse", self.ask(method, message))
        assert answer.success
        assert answer.result_id.ticket.ticket == result
        lease = self.lease(result)
        assert answer.size == lease.table.size
        assert answer.is_static == lease.table.is_static
        assert schema_of(answer).names == lease.schema.names
        return lease.table

    def lease(self, result: bytes) -> Any:
        return run(self.bench.resolver.resolve(result, self.bench.session))

    def of(self, source: bytes, method: str, request: str, **fields: Any) -> list[tuple[Any, ...]]:
        """The rows of a call with one source."""
        table = self.make(method, request, source_id=reference(source), **fields)
        return self.rows(table)

    def rows(self, table: Any) -> list[tuple[Any, ...]]:
        return [tuple(row.values()) for row in self.bench.rows(table)]

    def batch(self, *operations: Any) -> list[Any]:
        """The answers of a batch; raises what it ends with."""
        context = WrittenContext()
        self.answers: list[Any] = []
        request = MESSAGES.encode("BatchTableRequest", ops=operations)
        try:
            run(self.methods["Batch"].behavior(request, context, self.bench.session))
        finally:
            self.answers += [
                MESSAGES.decode("ExportedTableCreationResponse", each) for each in context.messages
            ]
        return self.answers


def operation(name: str, request: str, **fields: Any) -> Any:
    message = MESSAGES.new(request, **fields)
    return MESSAGES.new("BatchTableRequest.Operation", **{name: message})


def sorts(*descriptors: tuple[str, int, bool]) -> dict[str, Any]:
    made = [
        MESSAGES.new("SortDescriptor", column_name=name, direction=direction, is_absolute=absolute)
        for name, direction, absolute in descriptors
    ]
    return {"sorts": made}


def columns(spec: str, *pairs: str, **fields: Any) -> Any:
    function = MESSAGES.new("AggSpec", **{spec: MESSAGES.new(f"AggSpec.{_SPECS[spec]}", **fields)})
    inner = MESSAGES.new("Aggregation.AggregationColumns", spec=function, match_pairs=pairs)
    return MESSAGES.new("Aggregation", columns=inner)


_SPECS = {
    "sum": "AggSpecSum",
    "avg": "AggSpecAvg",
    "first": "AggSpecFirst",
    "last": "AggSpecLast",
    "min": "AggSpecMin",
    "max": "AggSpecMax",
    "std": "AggSpecStd",
    "var": "AggSpecVar",
    "abs_sum": "AggSpecAbsSum",
    "weighted_avg": "AggSpecWeighted",
    "weighted_sum": "AggSpecWeighted",
    "count_distinct": "AggSpecCountDistinct",
}


def count(name: str) -> Any:
    inner = MESSAGES.new("Aggregation.AggregationCount", column_name=name)
    return MESSAGES.new("Aggregation", count=inner)


def kind(name: str, **fields: Any) -> Any:
    nested = {
        "in_memory_append_only": "InMemoryAppendOnly",
        "in_memory_key_backed": "InMemoryKeyBacked",
        "blink": "Blink",
    }[name]
    inner = MESSAGES.new(f"CreateInputTableRequest.InputTableKind.{nested}", **fields)
    return MESSAGES.new("CreateInputTableRequest.InputTableKind", **{name: inner})


def join(left: bytes, right: bytes, *match: str, **fields: Any) -> dict[str, Any]:
    return {
        "left_id": reference(left),
        "right_id": reference(right),
        "columns_to_match": match,
        **fields,
    }


def combo(kind: int, *pairs: str, **fields: Any) -> Any:
    return MESSAGES.new("ComboAggregateRequest.Aggregate", type=kind, match_pairs=pairs, **fields)
