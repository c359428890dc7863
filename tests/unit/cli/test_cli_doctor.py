"""``barrage doctor``: every check well and unwell, and that it never loads UCX itself."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from barrage.cli import health
from barrage.cli.main import app
from barrage.transport.findings import CheckStatus, Finding
from barrage.transport.ucx import examination
from barrage.transport.ucx.library import mapped_libraries

GOOD: dict[str, Any] = {
    "cma": {"error": ""},
    "library": {"error": "", "path": "/x/libucp.so.0", "release": "1.22.0", "warnings": []},
    "connection": {"error": "", "took_ms": 20.5},
}


def doctor(monkeypatch: pytest.MonkeyPatch, said: dict[str, Any], end: str = "") -> Any:
    monkeypatch.setattr(examination, "run_self_test", lambda: (said, end))
    return CliRunner().invoke(app, ["doctor", "--json"])


def finding(result: Any, name: str) -> dict[str, str]:
    return next(each for each in json.loads(result.stdout)["checks"] if each["name"] == name)


def only(findings: list[Finding]) -> Finding:
    (found,) = findings
    return found


def test_a_good_machine_has_nothing_to_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (10_000, 10_000))
    result = doctor(monkeypatch, GOOD)
    assert result.exit_code == 0
    assert finding(result, "ucx")["text"] == "1.22.0, /x/libucp.so.0"
    assert finding(result, "ucx over tcp")["status"] == "ok"
    assert finding(result, "shared memory")["text"] == "usable"
    for name in ("barrage", "python", "pyarrow", "grpcio", "/dev/shm", "open files"):
        assert finding(result, name)["text"]


def test_lines_for_people_say_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    said = {**GOOD, "connection": {"error": "no way to the peer"}}
    monkeypatch.setattr(examination, "run_self_test", lambda: (said, ""))
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    at = next(index for index, line in enumerate(lines) if line.startswith("problem"))
    assert lines[at].split(None, 4)[1:] == ["ucx", "over", "tcp", "no way to the peer"]
    assert lines[at + 1].strip() == "-> serve without `ucx`"


def test_an_old_release_is_a_warning_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    warnings = ["UCX 1.13.1 ends the process; use 1.22"]
    said = {**GOOD, "library": {**GOOD["library"], "release": "1.13.1", "warnings": warnings}}
    result = doctor(monkeypatch, said)
    assert result.exit_code == 0
    assert finding(result, "ucx") == {
        "name": "ucx",
        "status": "warning",
        "text": "1.13.1, /x/libucp.so.0: UCX 1.13.1 ends the process",
        "advice": "use 1.22",
    }


def test_no_library_is_a_warning_and_a_problem_for_who_asks_for_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = {"library": {"error": "no UCX library"}, "cma": {"error": ""}}
    monkeypatch.delenv("BARRAGE_UCX_LIBRARY", raising=False)
    result = doctor(monkeypatch, said)
    assert (result.exit_code, finding(result, "ucx")["status"]) == (0, "warning")
    assert "no UCX library" in finding(result, "ucx")["text"]
    monkeypatch.setenv("BARRAGE_UCX_LIBRARY", "wheel")
    result = doctor(monkeypatch, said)
    assert (result.exit_code, finding(result, "ucx")["status"]) == (1, "problem")
    assert "BARRAGE_UCX_LIBRARY" in finding(result, "ucx")["advice"]


def test_a_library_that_ends_the_process_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    result = doctor(monkeypatch, {"library": GOOD["library"]}, "ended with SIGABRT")
    assert result.exit_code == 1
    problems = [each for each in json.loads(result.stdout)["checks"] if each["status"] == "problem"]
    assert [each["text"] for each in problems] == ["trying it ended with SIGABRT"]


def test_memory_that_cannot_be_read_across_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    result = doctor(monkeypatch, {**GOOD, "cma": {"error": "Operation not permitted"}})
    assert result.exit_code == 0
    found = finding(result, "cross-memory attach")
    assert found["status"] == "warning"
    assert "Operation not permitted" in found["text"]
    assert "tcp" in found["advice"]


@pytest.mark.parametrize(
    ("limits", "status"),
    [
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), CheckStatus.OK),
        ((4096, 4096), CheckStatus.OK),
        ((4095, resource.RLIM_INFINITY), CheckStatus.WARNING),
        ((256, 1024), CheckStatus.WARNING),
        ((255, 1024), CheckStatus.PROBLEM),
    ],
)
def test_few_open_files_are_reported(
    monkeypatch: pytest.MonkeyPatch, limits: tuple[int, int], status: CheckStatus
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    found = only(health.check_descriptors())
    assert found.status is status
    assert bool(found.advice) == (status is not CheckStatus.OK)
    if status is not CheckStatus.OK:
        assert f"ulimit -n {65536 if limits[1] < 0 else limits[1]}`" in found.advice


def test_a_small_or_missing_shared_memory_is_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert only(health.check_shared_memory_room(tmp_path / "none")).status is CheckStatus.PROBLEM
    sizes = namedtuple("sizes", "f_blocks f_bavail f_frsize")
    monkeypatch.setattr(os, "statvfs", lambda _: sizes(64 * 256, 60 * 256, 4096))
    found = only(health.check_shared_memory_room())
    assert found.status is CheckStatus.WARNING
    assert found.text.startswith("64 MiB, 60 MiB free; a server may use 512 MiB")
    assert "--shm-size" in found.advice


def test_shared_memory_is_really_tried(tmp_path: Path) -> None:
    assert only(health.check_shared_memory(tmp_path)).status is CheckStatus.OK
    assert list(tmp_path.iterdir()) == []
    found = only(health.check_shared_memory(tmp_path / "none"))
    assert found.status is CheckStatus.PROBLEM
    assert "none" in found.text


def test_a_python_or_package_that_is_too_old_or_missing_is_a_problem(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(health, "PYTHON_MIN", (99, 0))

    def missing(name: str) -> str:
        raise health.PackageNotFoundError(name)

    monkeypatch.setattr(health, "version", missing)
    statuses = {each.name: each.status for each in health.check_versions()}
    assert statuses == {
        "barrage": CheckStatus.OK,
        "python": CheckStatus.PROBLEM,
        "pyarrow": CheckStatus.PROBLEM,
        "grpcio": CheckStatus.PROBLEM,
    }


def test_ucx_is_tried_in_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BARRAGE_UCX_LIBRARY", "/no/such/libucp.so.0")
    before = mapped_libraries()
    said, end = examination.run_self_test()
    assert end == ""
    assert "/no/such/libucp.so.0" in said["library"]["error"] or "cffi" in said["library"]["error"]
    assert set(said["cma"]) == {"about", "error"}
    assert "connection" not in said
    assert mapped_libraries() == before


def test_a_process_that_ends_or_hangs_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examination, "SELF_TEST_SECONDS_MAX", 0.01)
    assert examination.run_self_test()[1] == "took longer than 0.01 s"
    real = subprocess.run

    def ends(code: str) -> None:
        monkeypatch.setattr(
            subprocess,
            "run",
            lambda _, **options: real([sys.executable, "-c", code], **{**options, "timeout": 30}),
        )

    ends("import os; os.abort()")
    assert examination.run_self_test() == ({}, "ended with SIGABRT")
    ends('print(\'noise\'); print(\'{"about": "cma", "error": ""}\'); raise SystemExit(3)')
    assert examination.run_self_test() == (
        {"cma": {"about": "cma", "error": ""}},
        "ended with code 3",
    )
