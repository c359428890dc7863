"""A Flight client in JavaScript, made of gRPC's library, our .proto and Arrow's library: it reads,
writes, polls, cancels and exchanges."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

import barrage
from barrage.limits import DEFAULT_LIMITS
from barrage.server import ServerConfig

pytestmark = pytest.mark.npm

HERE = Path(__file__).parent
PROTO = HERE.parents[1] / "proto_schemas" / "flight.proto"
ROWS = 2500


@pytest.fixture(scope="module")
def server() -> Iterator[barrage.Server]:
    config = ServerConfig(limits=replace(DEFAULT_LIMITS, endpoint_rows=1000))
    with barrage.Server("127.0.0.1", config=config) as running:
        yield running


def told(server: barrage.Server, *words: object) -> dict[str, Any]:
    """What the client answers to a command."""
    done = subprocess.run(
        ["node", "client.mjs", server.address, str(PROTO), *map(str, words)],
        cwd=HERE,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_it_writes_and_reads_every_row(server: barrage.Server) -> None:
    answers = told(server, "write", "t", ROWS)["answers"]
    assert answers[0] == {"rows": 0}
    assert answers[-1]["rows"] == ROWS
    read = told(server, "read", "t")
    assert (read["rows"], read["total"], read["endpoints"]) == (ROWS, ROWS, 3)
    assert read["columns"] == ["x", "y", "name"]
    assert read["sum"] == sum(range(ROWS))
    assert json.loads(read["last"]) == {"x": 2499, "y": 1249.5, "name": "row 2499"}
    assert told(server, "list") == {"names": ["t"]}


def test_it_polls_a_query_to_its_end_and_gives_it_up(server: barrage.Server) -> None:
    server.create_table("p", data={"x": list(range(ROWS))})
    polled = told(server, "poll", 'q/{"table": "p", "ops": [["sort", ["-x"]]]}')
    assert polled["polls"] >= 1
    assert polled["progress"] == 1
    assert polled["ordered"] is True
    assert polled["rows"] == ROWS
    assert json.loads(polled["last"]) == {"x": 0}
    assert polled["cancelled"] == 1
    app = server._app
    assert app is not None
    assert app.results.running_count == 0


def test_it_exchanges_rows(server: barrage.Server) -> None:
    command = json.dumps({"transform": {"ops": [["where", "x > 5"], ["select", ["x"]]]}})
    got = told(server, "exchange", command, 100)
    assert (got["rows"], got["columns"], got["sum"]) == (94, ["x"], sum(range(6, 100)))


def test_it_is_told_what_is_wrong(server: barrage.Server) -> None:
    missing = told(server, "read", "nope")
    assert missing["code"] == grpc.StatusCode.NOT_FOUND.value[0]
    assert "not found" in missing["details"]
    unknown = told(server, "poll", "zzz")
    assert unknown["code"] == grpc.StatusCode.FAILED_PRECONDITION.value[0]


def test_it_knows_the_actions(server: barrage.Server) -> None:
    names = told(server, "actions")["names"]
    assert {"CancelFlightInfo", "RenewFlightEndpoint", "CloseSession"} <= set(names)
