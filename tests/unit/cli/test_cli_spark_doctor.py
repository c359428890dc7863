"""``barrage spark doctor``: each check well and unwell, and a real row there and back."""

from __future__ import annotations

import json
import sys

import pytest
from typer.testing import CliRunner

import barrage
from barrage.cli.main import app

pytest.importorskip("pyspark")

from barrage.cli.spark_checks import spark_health
from barrage.transport.findings import CheckStatus
from spark_sink.java_runtime import JavaNotFoundError


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    """A machine that is as it should be."""
    monkeypatch.setattr(spark_health, "java_home", lambda: None)
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)


def doctor(*words: str) -> tuple[int, dict]:
    result = CliRunner().invoke(app, ["spark", "doctor", *words, "--json"])
    return result.exit_code, json.loads(result.stdout) if result.stdout else {}


def test_a_row_goes_there_and_back_and_leaves_nothing():
    with barrage.Server(journal="memory") as server:
        code, told = doctor(server.uri)
        # A slow machine has come to tell about itself.
        assert [name for name in server.table_names() if not name.startswith("_")] == []
    assert (code, told["status"]) == (0, "ok")
    assert [check["name"] for check in told["checks"]] == [
        "java",
        "pyspark",
        "worker python",
        server.uri,
        "round trip",
    ]


def test_a_server_without_journals_is_told_what_to_do():
    with barrage.Server(journal="none") as server:
        code, told = doctor(server.uri)
        assert server.table_names() == []
    assert code == 1
    assert "--data DIR" in told["checks"][-1]["advice"]


def test_a_server_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setattr(spark_health, "RECONNECT_MS", "0")
    code, told = doctor("127.0.0.1:1")
    assert code == 1
    assert told["checks"][-1]["name"] == "grpc://127.0.0.1:1"
    assert "option uri" in told["checks"][-1]["text"]


@pytest.mark.parametrize(
    ("name", "broken", "words"),
    [
        ("java", "java", "Java 17"),
        ("pyspark", "pyspark", "barrage[spark]"),
        ("worker python", "worker", "PYSPARK_PYTHON"),
    ],
)
def test_what_is_missing_is_named_with_its_remedy(monkeypatch, tmp_path, name, broken, words):
    def no_java():
        raise JavaNotFoundError("install Java 17")

    if broken == "java":
        monkeypatch.setattr(spark_health, "java_home", no_java)
    elif broken == "pyspark":
        monkeypatch.setattr(spark_health.metadata, "version", lambda _: "4.1.9")
    else:
        script = tmp_path / "python3"
        script.write_text(
            "#!/bin/sh\necho \"ModuleNotFoundError: No module named 'x'\" >&2\nexit 1\n"
        )
        script.chmod(0o755)
        monkeypatch.setenv("PYSPARK_PYTHON", str(script))
    code, told = doctor()
    (found,) = [check for check in told["checks"] if check["name"] == name]
    assert (code, found["status"]) == (1, CheckStatus.PROBLEM.value)
    assert words in found["advice"]


def test_wrong_words_are_refused():
    for words, told in (
        (("-o", "a=b"), "name it"),
        (("x:1", "-o", "ab"), "NAME=VALUE"),
        (("x:1", "-o", "fetchTimeoutMs=soon"), "fetchTimeoutMs"),
    ):
        result = CliRunner().invoke(app, ["spark", "doctor", *words])
        assert result.exit_code == 2
        assert told in result.output
