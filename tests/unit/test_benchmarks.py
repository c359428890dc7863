"""Every benchmark can at least be begun: what it imports is there."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

import benchmarks
from benchmarks.report import TABLE_BEGIN, TABLE_END, update_table

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


def answer(name: str, value: float) -> dict:
    row = {"line": "all of it", "value": value, "unit": "ms", "goal": "", "met": None}
    unmeasured = {"baseline": "", "baseline_value": None, "ratio": None}
    return {"benchmark": name, "measurements": [row | unmeasured], "machine": {"cores": 2}}


def test_a_page_keeps_the_lines_of_benchmarks_that_did_not_run(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{TABLE_BEGIN}\n{TABLE_END}\nafter\n")
    names = ("first", "second", "third")
    update_table(page, [answer("first", 1), answer("third", 3)], names)
    update_table(page, [answer("second", 2), answer("third", 4)], names)
    text = page.read_text()
    cells = [line.split("|")[1:4:2] for line in text.splitlines() if "all of it" in line]
    assert cells == [[" first ", " 1 ms "], [" second ", " 2 ms "], [" third ", " 4 ms "]]
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert text.count("Measured on") == 1
