"""Rows of static tables are stored beside the engine thread and the event loop."""

from __future__ import annotations

import json
import threading

import pyarrow as pa
import pytest
from pyarrow import flight

import barrage
from barrage.engine.tables.source import StoredRows
from barrage.server.settings.config import ServerConfig

ROWS = pa.table({"d": pa.array(["a", "b", "a"]).dictionary_encode()})


@pytest.fixture
def storing_threads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The threads on which rows are stored."""
    names: list[str] = []
    plain = StoredRows.__init__

    def noted(self, rows, limits):
        names.append(threading.current_thread().name)
        plain(self, rows, limits)

    monkeypatch.setattr(StoredRows, "__init__", noted)
    return names


def test_an_upload_is_stored_beside(storing_threads: list[str]) -> None:
    with barrage.Server(config=ServerConfig(port=0)) as server:
        command = json.dumps({"table": "t", "mode": "create", "kind": "static"})
        with flight.connect(f"grpc://{server.address}") as client:
            writer, _ = client.do_put(flight.FlightDescriptor.for_command(command), ROWS.schema)
            with writer:
                writer.write_table(ROWS)
        assert server.table("t").to_arrow().to_pylist() == ROWS.to_pylist()
    assert [name.partition("_")[0] for name in storing_threads] == ["asyncio"]


def test_rows_of_the_program_are_stored_on_its_thread(storing_threads: list[str]) -> None:
    with barrage.Server(config=ServerConfig(port=0)) as server:
        server.create_table("t", data=ROWS, kind="static")
    assert storing_threads == [threading.current_thread().name]
