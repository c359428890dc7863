"""The tree keeps its own rules: file and function size, words that do not belong, names of
modules."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 70
GENERATED = ("_fbs", "_proto")
FORBIDDEN_MODULE_NAMES = {"utils.py", "util.py", "common.py", "helpers.py", "misc.py"}


def python_files(*tops: str) -> list[Path]:
    return [
        path
        for top in tops
        for path in sorted((ROOT / top).rglob("*.py"))
        if not set(path.relative_to(ROOT).parts) & set(GENERATED)
    ]


PRODUCT = python_files("barrage", "spark_sink")
EVERYTHING = PRODUCT + python_files("tests", "benchmarks", "examples")


def label(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_there_is_something_to_check() -> None:
    assert len(PRODUCT) > 20


def test_files_stay_under_their_line_cap() -> None:
    lengths = {label(path): len(path.read_text().splitlines()) for path in EVERYTHING}
    assert not {name: lines for name, lines in lengths.items() if lines > FILE_LINES_MAX}


@pytest.fixture(scope="module")
def product_nodes() -> list[tuple[str, ast.AST]]:
    """Every node of the product's syntax trees with the name of its file."""
    return [
        (label(path), node) for path in PRODUCT for node in ast.walk(ast.parse(path.read_text()))
    ]


def test_functions_stay_under_their_line_cap(product_nodes: list[tuple[str, ast.AST]]) -> None:
    long = [
        f"{name} {node.name}: {node.end_lineno - node.lineno + 1}"
        for name, node in product_nodes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno >= FUNCTION_LINES_MAX
    ]
    assert not long


def test_no_catch_all_module_names() -> None:
    assert not [label(path) for path in PRODUCT if path.name in FORBIDDEN_MODULE_NAMES]


@pytest.mark.parametrize(
    ("word", "allowed"),
    [
        (r"\btime\.time\(", "barrage/clock.py"),
        (r"\bTODO\b(?!.*#\d)", ""),
        (r"except(\s+\w+)?:\s*pass\b", ""),
    ],
)
def test_words_that_do_not_belong(word: str, allowed: str) -> None:
    found = [
        f"{label(path)}:{number}"
        for path in PRODUCT
        if not (allowed and label(path).startswith(allowed))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(word, line.split("#", 1)[0] if "TODO" not in word else line)
    ]
    assert not found


def test_only_commands_print(product_nodes: list[tuple[str, ast.AST]]) -> None:
    found = [
        f"{name}:{node.lineno}"
        for name, node in product_nodes
        if not name.startswith("barrage/cli/")
        and isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "print"
    ]
    assert not found


def test_architecture_fits_on_its_pages() -> None:
    assert len((ROOT / "ARCHITECTURE.md").read_text().splitlines()) <= 200
