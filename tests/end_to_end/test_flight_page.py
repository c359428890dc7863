"""docs/flight.md: every test it names is there, every row names one, and its examples run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import barrage
from tests.unit.cli.test_examples import python_blocks

PAGE = "docs/flight.md"
ROOT = Path(__file__).parents[2]
TEST = re.compile(r"`(test_\w+)`")


def named() -> set[str]:
    return set(TEST.findall((ROOT / PAGE).read_text()))


def there() -> set[str]:
    """Every test function of the suite."""
    found: set[str] = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        found |= set(re.findall(r"^\s*(?:async )?def (test_\w+)", path.read_text(), re.M))
    return found


def test_every_test_the_page_names_is_there() -> None:
    assert len(named()) > 50
    assert named() - there() == set()


def test_every_row_names_a_test() -> None:
    text = (ROOT / PAGE).read_text()
    rows = [line for line in text.splitlines() if line.startswith("|")]
    told = [row for row in rows if not row.startswith("|---")]
    headers = {rows[index - 1] for index, row in enumerate(rows) if row.startswith("|---")}
    assert len(told) > 40
    assert [row for row in told if row not in headers and not TEST.search(row)] == []


def test_the_examples_run(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, object] = {}
    with barrage.Server("127.0.0.1") as server:
        for block in python_blocks(PAGE):
            exec(block.replace("localhost:10000", server.address), names)
        names["client"].close()  # type: ignore[attr-defined]
    assert capsys.readouterr().out == "[2.0, 3.0] 2 True\n['A']\n"
