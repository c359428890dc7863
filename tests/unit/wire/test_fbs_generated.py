"""The generated flatbuffers code matches the schemas, with or without flatc at hand."""

from __future__ import annotations

import ast
import filecmp
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SCHEMAS = ROOT / "flatbuf_schemas"
_PACKAGES = {
    "barrage_1_0_0": Path("barrage/wire/_fbs/r1_0_0"),
    "barrage_2020": Path("barrage/wire/_fbs/draft_2020"),
    "arrow_ipc": Path("tests/helpers/_fbs/arrow_ipc"),
}


def _tables(schema: str) -> dict[str, list[str]]:
    """Field names of every table, in field-number order."""
    text = re.sub(r"//.*", "", (SCHEMAS / f"{schema}.fbs").read_text())
    return {
        name: re.findall(r"(\w+)\s*:", body)
        for name, body in re.findall(r"\btable (\w+) \{(.*?)\}", text, re.DOTALL)
    }


def _accessor_slots(path: Path) -> dict[str, int]:
    """Slot each accessor of a generated class reads, by accessor name."""
    slots = {}
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.FunctionDef):
            continue
        found = re.search(r"self\._tab\.Offset\((\d+)\)", ast.unparse(node))
        if found:
            slots[node.name] = int(found[1])
    return slots


@pytest.mark.parametrize("schema", sorted(_PACKAGES))
def test_slots_follow_the_field_order_of_the_schema(schema):
    tables = _tables(schema)
    assert tables
    for table, fields in tables.items():
        slots = _accessor_slots(ROOT / _PACKAGES[schema] / f"{table}.py")
        for number, field in enumerate(fields):
            accessor = "".join(part.capitalize() for part in field.split("_"))
            assert slots[accessor] == 4 + 2 * number, f"{table}.{field}"
        assert max(slots.values()) == 2 + 2 * len(fields), f"{table} has other fields"


def test_1_0_0_has_the_field_numbers_of_the_reference():
    """barrage-wire.md sections 2.2 to 2.4, as slots; spot checks of fields that moved."""
    slots = _accessor_slots(ROOT / _PACKAGES["barrage_1_0_0"] / "BarrageUpdateMetadata.py")
    assert (slots["FirstSeq"], slots["AddedRows"], slots["TableSize"]) == (4, 16, 26)
    slots = _accessor_slots(ROOT / _PACKAGES["barrage_2020"] / "BarrageUpdateMetadata.py")
    assert (slots["FirstSeq"], slots["AddedRows"], slots["ModColumnNodes"]) == (8, 18, 26)
    slots = _accessor_slots(ROOT / _PACKAGES["barrage_1_0_0"] / "BarrageSnapshotOptions.py")
    assert (slots["BatchSize"], slots["PreviewListLengthLimit"]) == (8, 12)


@pytest.mark.skipif(shutil.which("flatc") is None, reason="flatc is not installed")
def test_generating_again_changes_nothing(tmp_path):
    subprocess.run(["sh", SCHEMAS / "generate.sh", tmp_path], check=True, capture_output=True)
    for package in _PACKAGES.values():
        fresh = sorted(path.name for path in (tmp_path / package).glob("*.py"))
        kept = sorted(path.name for path in (ROOT / package).glob("*.py"))
        assert fresh == kept
        _same, different, missing = filecmp.cmpfiles(
            tmp_path / package, ROOT / package, fresh, shallow=False
        )
        assert not different
        assert not missing
