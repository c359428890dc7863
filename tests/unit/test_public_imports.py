"""What is written on top of Barrage uses what anybody can use: ``spark_sink`` could be a package of
its own, by other people."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

ON_TOP = ("spark_sink", "pyspark_barrage")

PUBLIC = {
    "barrage",
    "barrage.client",
    "barrage.clock",
    "barrage.conditions",
    "barrage.errors",
    "barrage.journal",
    "barrage.rowset",
    "barrage.supervision",
}
"""Packages stand for the names they give out, modules for the names they define."""

FILES = [path for top in ON_TOP for path in sorted((ROOT / top).rglob("*.py"))]


def imports_of(text: str) -> Iterator[tuple[int, str, str]]:
    """Line, module and name of each import; the name is empty for a module as such."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, node.module or "", alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name, "") for alias in node.names)


def is_public(module: str, name: str) -> bool:
    """Whether anybody may import ``name`` of ``module``."""
    if module not in PUBLIC or name.startswith("_"):
        return False
    if not name:
        return True
    found = import_module(module)
    names = getattr(found, "__all__", None)
    if names is not None:
        return name in names
    return getattr(getattr(found, name), "__module__", module) == module


def foreign(text: str) -> list[str]:
    """The imports of Barrage's inside."""
    return [
        f"{line}: {module}{name and '.'}{name}"
        for line, module, name in imports_of(text)
        if module.split(".")[0] == "barrage" and not is_public(module, name)
    ]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_is_on_top_uses_the_public_names(path: Path) -> None:
    assert foreign(path.read_text()) == []


@pytest.mark.parametrize(
    ("line", "is_foreign"),
    [
        ("import barrage", False),
        ("from barrage import connect", False),
        ("from barrage.client import Session, Update", False),
        ("from barrage.errors import ConfigError", False),
        ("from barrage.supervision import start_thread", False),
        ("from barrage import engine", True),
        ("from barrage.client.session import AsyncSession", True),
        ("from barrage.client import session", True),
        ("import barrage.engine", True),
        ("from barrage.errors import Enum", True),
        ("from barrage.supervision import _told", True),
        ("def later():\n    from barrage.engine.tables.table import Table", True),
    ],
)
def test_what_is_public(line: str, is_foreign: bool) -> None:
    assert bool(foreign(line)) is is_foreign
