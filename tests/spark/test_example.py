"""The example pipelines run, and what they show is what their queries wrote."""

from __future__ import annotations

import os
import re
import subprocess
import sys

from tests.spark.session import ROOT, java_options

EXAMPLES = ROOT / "examples"
SECONDS_MAX = 240


def run(example: str, *words: str) -> subprocess.CompletedProcess[str]:
    """An example's pipeline, run to its end."""
    return subprocess.run(
        [sys.executable, str(EXAMPLES / example / "pipeline.py"), *words],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        cwd=ROOT,
        env={**os.environ, "JDK_JAVA_OPTIONS": java_options(), "PYTHONPATH": str(ROOT)},
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
