"""The example pipeline runs, and what it shows is what its query wrote."""

from __future__ import annotations

import os
import re
import subprocess
import sys

from tests.spark.session import ROOT, java_options

EXAMPLE = ROOT / "examples" / "host_metrics_pipeline" / "pipeline.py"
SECONDS_MAX = 240


def test_the_pipeline_shows_seconds_of_this_machine():
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), "--seconds", "4"],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        cwd=ROOT,
        env={**os.environ, "JDK_JAVA_OPTIONS": java_options(), "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert re.search(r"^barrage watch 127\.0\.0\.1:\d+/cpu_by_second", done.stdout, re.M)
    assert {"second", "percent", "highest", "samples"} <= set(done.stdout.split())
    seconds = set(re.findall(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", done.stdout))
    assert len(seconds) >= 2, done.stdout
