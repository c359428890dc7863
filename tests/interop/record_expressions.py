"""Asks a real Deephaven server what its filters, formulas and conditions give, and writes it down.

    python -m tests.interop.record_expressions

must run with an interpreter that has ``deephaven-server`` and ``pydeephaven`` (extra ``interop``)
and Java 17. The result replaces ``tests/vectors/deephaven_expressions.json``, which the default
test suite compares with our own evaluation.
"""

from __future__ import annotations

import argparse
import base64
import json
import pathlib

import pyarrow as pa

from tests.interop.expression_cases import CONDITIONS, DATA, FILTERS, FORMULAS

VECTORS = pathlib.Path(__file__).parents[1] / "vectors" / "deephaven_expressions.json"


class Recorder:
    """One session with the server and the table that is asked about."""

    def __init__(self, port: int) -> None:
        from pydeephaven import Session

        self._session = Session("127.0.0.1", port)
        self._table = self._session.import_table(DATA)

    def close(self) -> None:
        self._session.close()

    def filter(self, texts: list[str]) -> dict:
        return self._rows(lambda: self._table.where(texts))

    def condition(self, condition: dict) -> dict:
        return self._rows(lambda: self._filtered(condition))

    def formula(self, text: str) -> dict:
        from pydeephaven.dherror import DHError

        try:
            column = self._table.view([text]).to_arrow()
        except (DHError, pa.ArrowException):
            return {"refused": True}
        field = column.schema.field(0)
        values = column.column(0).combine_chunks()
        return {"type": field.metadata[b"deephaven:type"].decode(), "values": shown(values)}

    def _rows(self, ask) -> dict:
        from pydeephaven.dherror import DHError

        try:
            return {"rows": ask().to_arrow()["Row"].to_pylist()}
        except (DHError, pa.ArrowException):
            return {"refused": True}

    def _filtered(self, condition: dict):
        from deephaven_core.proto import table_pb2
        from google.protobuf import json_format
        from pydeephaven._table_ops import TableOp
        from pydeephaven.table import Table

        message = json_format.ParseDict(condition, table_pb2.Condition())

        class FilterOp(TableOp):
            @classmethod
            def get_stub_func(cls, stub):
                return stub.Filter

            def make_grpc_request(self, result_id, source_id):
                return table_pb2.FilterTableRequest(
                    result_id=result_id, source_id=source_id, filters=[message]
                )

            def make_grpc_request_for_batch(self, result_id, source_id):
                raise NotImplementedError

        return self._session.table_service.grpc_table_op(self._table, FilterOp(), Table)


def shown(values: pa.Array) -> list:
    """Values as JSON keeps them: fractions as text, times as numbers."""
    kind = values.type
    if pa.types.is_floating(kind):
        return [None if value is None else repr(value) for value in values.to_pylist()]
    if pa.types.is_temporal(kind):
        values = values.cast(pa.int64())
    return [str(value) if isinstance(value, bytes) else value for value in values.to_pylist()]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--port", type=int, help="a server that runs already")
    port = options.parse_args().port
    if port is not None:
        record(port)
        return
    from deephaven_server import Server

    server = Server(
        port=0,
        jvm_args=[
            "-Xmx1g",
            "-DAuthHandlers=io.deephaven.auth.AnonymousAuthenticationHandler",
            "-Dhttp.host=127.0.0.1",
        ],
        default_jvm_args=[],
    )
    server.start()
    record(server.port)


def record(port: int) -> None:
    recorder = Recorder(port)
    try:
        answers = {
            "origin": "answers of a Deephaven 42.7 server, see tests/interop/record_expressions.py",
            "data": base64.b64encode(_stream(DATA)).decode(),
            "filters": [{"texts": texts, **recorder.filter(texts)} for texts in FILTERS],
            "formulas": [{"text": text, **recorder.formula(text)} for text in FORMULAS],
            "conditions": [{"condition": c, **recorder.condition(c)} for c in CONDITIONS],
        }
    finally:
        recorder.close()
    VECTORS.write_text(_lines(answers), encoding="utf-8")


def _stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def _lines(answers: dict) -> str:
    """JSON with one case per line, so that differences show."""
    parts = []
    for key, value in answers.items():
        if isinstance(value, list):
            cases = ",\n  ".join(json.dumps(case, ensure_ascii=False) for case in value)
            parts.append(f'"{key}": [\n  {cases}\n ]')
        else:
            parts.append(f'"{key}": {json.dumps(value)}')
    return "{\n " + ",\n ".join(parts) + "\n}\n"


if __name__ == "__main__":
    main()
