"""What pages and docstrings name is there: modules, classes and functions of ours, and files."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

ROOT = next(
    place
    for place in (*Path(__file__).resolve().parents, Path.cwd())
    if (place / "ARCHITECTURE.md").is_file()
)

PACKAGES = ("barrage", "spark_sink", "pyspark_barrage")
CODE = ("barrage", "spark_sink", "pyspark_barrage", "scripts", "tests", "benchmarks", "examples")

_DOTTED = re.compile(r"(?<![\w./@-])((?:barrage|spark_sink|pyspark_barrage)(?:\.[A-Za-z_]\w*)+)")
_ROLE = re.compile(
    r":(?:mod|class|func|meth|attr|data|exc):`~?((?:barrage|spark_sink|tests|benchmarks|scripts)\.[\w.\s]+)`"
)
_FILE = re.compile(
    r"(?<![\w./-])((?:barrage|spark_sink|pyspark_barrage|tests|docs|scripts|benchmarks|examples"
    r"|flatbuf_schemas|proto_schemas)/[\w./-]*\w)"
)
_LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)")

EXERCISE = {"barrage.echo", "barrage/engine/operators/every_nth.py"}
"""What CONTRIBUTING.md lets the newcomer write."""

_NOT_OURS = re.compile(
    r"barrage\.(?:flatbuf\b.*|tables|create_table|drop_table|describe|boards?|save_board|drop_board|versions|set_cells|add_row|remove_row|toml|sock|bodies|decoders|transports|service|proto|fbs|log|md|py|json)"
)
"""Entry point groups, actions, names of files and of Deephaven's packages."""


def newest(text: str) -> str:
    """The newest section of the changelog: older ones tell how things were called then."""
    return text.split("\n## ")[1]


def pages() -> list[Path]:
    return [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]


def sources() -> list[Path]:
    return sorted(
        file
        for top in CODE
        for file in (ROOT / top).rglob("*.py")
        if not {"_fbs", "_proto"} & set(file.parts)
    )


def resolves(name: str) -> bool:
    """Whether the dotted name is a module, or what one of them has."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        module = ".".join(parts[:length])
        try:
            found: object = importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name is not None and not module.startswith(error.name):
                return True  # what an extra brings is not installed
            continue
        for part in parts[length:]:
            declared = getattr(found, "__annotations__", {})
            if not hasattr(found, part):
                return part in declared
            found = getattr(found, part)
        return True
    return False


def actions() -> set[str]:
    """Names of what peers may have done, which look like modules."""
    declared = re.compile(r'^[A-Z_]+(?:: Final)? = "(barrage\.[a-z_]+)"', re.MULTILINE)
    files = (ROOT / "barrage" / "server").rglob("*.py")
    return {name for file in files for name in declared.findall(file.read_text())}


def dead_names(text: str) -> list[str]:
    told = {match.group(1) for match in _DOTTED.finditer(text)}
    told |= {re.sub(r"\s", "", match.group(1)) for match in _ROLE.finditer(text)}
    told -= actions()
    return sorted(
        name for name in told if not _NOT_OURS.fullmatch(name) and not resolves(name.rstrip("."))
    )


def dead_files(text: str, beside: Path) -> list[str]:
    dead = {
        name
        for name in (match.group(1) for match in _FILE.finditer(text))
        if not (ROOT / name).exists() and not list(ROOT.glob(name + ".*"))
    }
    dead |= {
        link
        for link in (match.group(1) for match in _LINK.finditer(text))
        if not (beside / link).exists()
    }
    return sorted(dead)


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_what_a_page_names_is_there(page):
    text = page.read_text(encoding="utf-8")
    if page.name == "CHANGELOG.md":
        text = newest(text)
    assert {*dead_names(text), *dead_files(text, page.parent)} <= EXERCISE


def test_what_docstrings_and_comments_name_is_there():
    dead = {}
    for file in sources():
        text = file.read_text(encoding="utf-8")
        names = {re.sub(r"\s", "", match.group(1)) for match in _ROLE.finditer(text)}
        found = sorted(name for name in names if not resolves(name))
        if found:
            dead[str(file.relative_to(ROOT))] = found
    assert dead == {}
