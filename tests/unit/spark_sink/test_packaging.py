"""What is imported when: Spark loads these modules in many processes, and may not be there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


def python(script: str) -> str:
    """Run a script in a fresh interpreter in this tree; what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


NO_SPARK = "import sys; sys.modules['pyspark'] = None; sys.modules['pyspark.sql'] = None\n"


def test_everything_imports_without_spark():
    script = NO_SPARK + (
        "import barrage, barrage.spark, spark_sink, pyspark_barrage\n"
        "import spark_sink.options, spark_sink.planning, spark_sink.connection\n"
        "print(hasattr(pyspark_barrage, 'DefaultSource'))"
    )
    assert python(script) == "False"


def test_barrage_does_not_import_spark():
    assert python("import barrage, barrage.spark, sys\nprint('pyspark' in sys.modules)") == "False"


def test_a_broken_spark_is_not_an_error_of_this_module():
    script = (
        "import sys, types\n"
        "class Broken(types.ModuleType):\n"
        "    def __getattr__(self, name): raise RuntimeError('broken')\n"
        "sys.modules['pyspark'] = types.ModuleType('pyspark')\n"
        "sys.modules['pyspark.sql'] = types.ModuleType('pyspark.sql')\n"
        "sys.modules['pyspark.sql.datasource'] = Broken('pyspark.sql.datasource')\n"
        "import pyspark_barrage\n"
        "print('fine')"
    )
    assert python(script) == "fine"


def test_discovery_imports_nothing_heavy():
    pytest.importorskip("pyspark")
    script = (
        "import pyspark.sql.datasource, sys\n"
        "before = set(sys.modules)\n"
        "import pyspark_barrage\n"
        "pyspark_barrage.DefaultSource({}).name()\n"
        "print(sorted(set(sys.modules) - before))"
    )
    assert python(script) == "['pyspark_barrage']"


def test_names_for_users():
    pytest.importorskip("pyspark")
    import barrage.spark

    for name in barrage.spark.__all__:
        assert callable(getattr(barrage.spark, name)), name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        barrage.spark.nothing  # noqa: B018
