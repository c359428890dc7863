"""The example pipelines run, and what they show is what their queries wrote."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

from tests.spark.session import ROOT, java_options

EXAMPLES = ROOT / "examples"
SECONDS_MAX = 240


def run(example: str, *words: str) -> subprocess.CompletedProcess[str]:
    """An example's pipeline, run to its end."""
    return run_python(str(EXAMPLES / example / "pipeline.py"), *words)


def run_python(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        cwd=ROOT,
        env={
            **os.environ,
            "JDK_JAVA_OPTIONS": java_options(),
            "PYTHONPATH": str(ROOT),
            "MPLBACKEND": "agg",
        },
    )


def test_the_pipeline_shows_seconds_of_this_machine():
    done = run("host_metrics_pipeline", "--seconds", "4")
    assert done.returncode == 0, done.stderr[-4000:]
    assert re.search(r"^barrage watch 127\.0\.0\.1:\d+/cpu_by_second", done.stdout, re.M)
    assert {"second", "percent", "highest", "samples"} <= set(done.stdout.split())
    seconds = set(re.findall(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", done.stdout))
    assert len(seconds) >= 2, done.stdout


def test_a_window_and_a_join_are_equal_after_a_kill():
    done = run("spark_pipeline", "--kills", "1")
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    assert "kill 1 of 1" in done.stdout
    assert re.search(r"^equal after 1 kills: \d+ minutes, 378 fills$", done.stdout, re.M)


def test_a_single_fill_that_is_wrong_is_found():
    done = run("spark_pipeline", "--kills", "0", "--spoil")
    assert done.returncode == 1, done.stdout + done.stderr[-4000:]
    assert re.search(r"^not equal: .*, 1 of them wrong$", done.stdout, re.M), done.stdout


def test_the_notebook_draws_how_far_a_query_was_behind(tmp_path):
    pytest.importorskip("matplotlib")
    cells = json.loads((EXAMPLES / "spark_lag.ipynb").read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert not any(cell.get("outputs") for cell in cells), "a notebook is kept without outputs"
    drawn = [
        "line, bars = axes.lines[0], axes.patches",
        "line = [int(value) for value in line.get_ydata()]",
        "bars = [int(bar.get_height()) for bar in bars]",
        "print(json.dumps({'behind': line, 'read': bars}))",
    ]
    path = tmp_path / "spark_lag.py"
    path.write_text("\n".join([*code, *drawn]))
    done = run_python(str(path))
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert sum(found["read"]) == 10_000
    assert max(found["read"]) == 400
    # A burst of ten cycles is not read at once, and is read in the end.
    assert max(found["behind"]) >= 400
    assert found["behind"][-1] == 0
