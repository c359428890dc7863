"""Every benchmark can at least be begun: what it imports is there."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

import benchmarks

FOLDER = Path(benchmarks.__path__[0])
NAMES = sorted(
    ".".join(path.relative_to(FOLDER.parent).with_suffix("").parts)
    for path in FOLDER.rglob("*.py")
    # Scripts do their work when they are imported.
    if path.stem not in ("__init__", "__main__") and not path.stem.endswith("_script")
)


def test_there_is_something_to_import() -> None:
    assert "benchmarks.row_set_ops" in NAMES
    assert len(NAMES) > 20


@pytest.mark.parametrize("name", NAMES)
def test_a_benchmark_finds_what_it_imports(name: str) -> None:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in ("barrage", "benchmarks", "spark_sink", "tests"):
            raise
        pytest.skip(f"{missing} is not installed")
