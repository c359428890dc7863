"""A real pydeephaven uploads tables, writes input tables, binds names and shares tables here.

Its scenarios are in ``pydeephaven_inputs.py``, which runs once per module in a process of its own
with an interpreter that has pydeephaven.
"""

from __future__ import annotations

import json
import pathlib
import subprocess

import pytest

import barrage
from barrage.server.settings.config import ServerConfig
from tests.helpers.secured import IS_SECURED, Secured, rules
from tests.interop.processes import ROOT, deephaven_python, environment_with

pytestmark = pytest.mark.interop

SCRIPT = pathlib.Path(__file__).with_name("pydeephaven_inputs.py")
SESSION_SECONDS = 4
TIMEOUT_SECONDS = 180


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> dict[str, dict]:
    """What every scenario told."""
    python = deephaven_python("pydeephaven")
    if python is None:
        pytest.skip("pydeephaven is not installed (extra: interop)")
    secured = Secured.made(tmp_path_factory.mktemp("secured")) if IS_SECURED else None
    settings = {} if secured is None else secured.settings()
    config = ServerConfig(session_lifetime_ms=SESSION_SECONDS * 1000, **settings)
    with barrage.Server(config=config, policy=rules() if IS_SECURED else None) as server:
        served = {"K": "int32", "S": "string"}
        server.create_table("served", served)
        server.create_table("served_read_only", served, is_read_only=True)
        login = {} if secured is None else secured.login(f"localhost:{server.port}")
        ended = subprocess.run(
            [python, str(SCRIPT), str(server.port)],
            cwd=ROOT,
            env={**environment_with(login), "BARRAGE_SESSION_SECONDS": str(SESSION_SECONDS)},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
    told = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]
    assert told, ended.stderr
    assert "Close() failed" not in ended.stderr
    return {entry["scenario"]: entry for entry in told}


@pytest.fixture
def result(results, request) -> object:
    """The result of the scenario a test is named after."""
    entry = results[request.node.name.removeprefix("test_")]
    assert "error" not in entry, entry["error"]
    return entry["result"]


def test_import_table_of_every_type(result):
    failed = {name: found["error"] for name, found in result.items() if "error" in found}
    assert failed == {}
    assert all(found["size"] == 2 for found in result.values())
    for name in ("bool", "int8", "int64", "double", "string", "list", "list_of_strings"):
        assert result[name]["values"][1] == "None", name
    assert result["string"]["values"][0] == "'a'"
    assert result["list_of_strings"]["values"][0] == "['a', None]"
    assert result["uint16"] == {"size": 2, "type": "uint16", "values": ["7", "None"]}
    assert result["date32"]["values"][0] == "datetime.date(2024, 2, 29)"


def test_import_table_in_many_batches(result):
    assert result == {"rows": 300_000, "is_equal": True}


def test_import_table_without_rows(result):
    assert result == {"rows": [], "names": ["K", "S"]}


def test_import_table_and_derive(result):
    assert result == [{"K": 3}, {"K": 2}]


def test_append_only_input_table(result):
    assert result["rows"] == [{"K": 1, "S": "a"}, {"K": 1, "S": "b"}, {"K": 2, "S": "c"}]
    assert "INVALID_ARGUMENT" in result["unknown"]
    assert "unknown column" in result["unknown"]
    assert "'S' is missing" in result["missing"]
    assert "does not fit int32" in result["value"]
    assert result["after"] == 3


def test_keyed_input_table(result):
    assert result["added"] == [{"K": 1, "S": "a"}, {"K": 2, "S": "c"}]
    assert result["upserted"] == [{"K": 1, "S": "z"}, {"K": 2, "S": "c"}, {"K": 3, "S": "d"}]
    assert result["deleted"] == [{"K": 1, "S": "z"}, {"K": 3, "S": "d"}]
    assert result["metadata"] == ["deephaven:inputtable.isKey"]


def test_blink_input_table(result):
    assert result == {"names": ["K", "S"]}


def test_input_table_like_another(result):
    assert result == [{"K": 1, "S": "a"}]


def test_not_an_input_table(result):
    assert result["add"] == ["INVALID_ARGUMENT", "the table can't be used as an input table"]
    code, text = result["delete"]
    assert code == "INVALID_ARGUMENT"
    assert "no key columns" in text


def test_tables_of_the_server(result):
    assert result["served"] == [{"K": 5, "S": "e"}]
    assert "can't be used as an input table" in result["read_only"]


def test_bind_and_rebind(result):
    assert result["names"]
    assert (result["old"], result["new"]) == ([{"K": 1}], [{"K": 2}])
    assert "invalid table and/or variable_name" in result["refused"]


def test_bound_input_table(result):
    """The name keeps the table when the session lets go of it."""
    assert result == {"rows": [{"K": 1, "S": "a"}]}


def test_shared_tickets(result):
    """What is fetched keeps the shared ticket, which is gone with the publisher's export."""
    assert result["rows"] == [{"K": 1}, {"K": 2}]
    assert "ALREADY_EXISTS" in result["taken"]
    assert "nothing is shared under it" in result["after"]
    assert "NOT_FOUND" in result["gone"]


def test_names(result):
    tables = [name for name in result["tables"] if not name.startswith("_")]
    assert tables == ["bound", "bound_input", "served", "served_read_only"]
    assert result["types"] == ["Table"]


def test_scripts(result):
    assert "this server runs no scripts" in result["refused"]


def test_closing(result):
    assert result["is_alive"] is False


def test_keep_alive(result):
    assert result == {"rows": [{"K": 1}]}
