"""What rules mean, said a second time and naively: row by row, rule by rule, with Python values.
Cells and names carry marks, so that they can be found in whatever is sent."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import pyarrow as pa

from barrage import Operation, Rule
from barrage.server.policy.keyed_hash import hashed_cells

Row = dict[str, Any]
Condition = Callable[[Row, "Person"], bool | None]

INT_MARK = 0x7EED_5EC0_0000_0000
FLOAT_MARK = 0x3FE5_EC0D_0000_0000
_TEXTS = re.compile(rb"~\d{6}~|tzq\d{3}|czq\d{3}")
_INTS = re.compile(rb"(?s)(?=(.{4}\xc0\x5e\xed\x7e))")
_FLOATS = re.compile(rb"(?s)(?=(.{4}\x0d\xec\xe5\x3f))")


@dataclass(frozen=True)
class Person:
    name: str
    roles: frozenset[str] = frozenset()

    @property
    def header(self) -> str:
        return f"Bearer {self.name}"


@dataclass
class OracleTable:
    """A table as rows by key."""

    name: str
    schema: pa.Schema
    rows: dict[int, Row] = field(default_factory=dict)
    codes: dict[str, str] = field(default_factory=dict)
    """The cells of its dictionary column, by owner."""
    is_keyed: bool = True
    """Rows change and go; else they are added only."""
    ever: set[str] = field(default_factory=set)
    """Marks of all cells there have been."""


CONDITIONS: Mapping[str, Condition] = {
    "Owner = caller()": lambda row, who: row["Owner"] == who.name,
    "Level < 3": lambda row, _: row["Level"] < 3,
    "has_role('ops') or Owner = caller()": (
        lambda row, who: "ops" in who.roles or row["Owner"] == who.name
    ),
    "Level = 1 and not (Owner in ('eve'))": (
        lambda row, _: row["Level"] == 1 and row["Owner"] != "eve"
    ),
    "isnotnull(Note) and Level > 1": lambda row, _: row["Note"] is not None and row["Level"] > 1,
}


def marks_in(sent: bytes) -> set[str]:
    """The marks that stand in bytes."""
    texts = {found.decode() for found in _TEXTS.findall(sent)}
    ints = {f"i{struct.unpack('<Q', found)[0] - INT_MARK}" for found in _INTS.findall(sent)}
    floats = {f"f{struct.unpack('<Q', found)[0] - FLOAT_MARK}" for found in _FLOATS.findall(sent)}
    return texts | ints | floats


def mark_of_int(number: int) -> int:
    return INT_MARK + number


def mark_of_float(number: int) -> float:
    return float(struct.unpack("<d", struct.pack("<Q", FLOAT_MARK + number))[0])


def marks_of(value: Any) -> set[str]:
    """Those of a cell."""
    if isinstance(value, list):
        return {mark for each in value for mark in marks_of(each)}
    if isinstance(value, str):
        return marks_in(value.encode())
    if isinstance(value, float):
        return marks_in(struct.pack("<d", value))
    if isinstance(value, int):
        return marks_in(struct.pack("<q", value))
    return set()


def deciding_rule(rules: Sequence[Rule], who: Person, table: str) -> Rule | None:
    """The first that is meant for both."""
    for rule in rules:
        tables = [each for each in rule.tables if each[0] == "_" or table[0] != "_"]
        is_meant = (not rule.users and not rule.roles) or any(
            fnmatchcase(name, pattern)
            for name, patterns in [(who.name, rule.users), *((r, rule.roles) for r in who.roles)]
            for pattern in patterns
        )
        if is_meant and any(fnmatchcase(table, pattern) for pattern in tables):
            return rule
    return None


def may(rules: Sequence[Rule], who: Person, table: str, operation: Operation) -> bool:
    rule = deciding_rule(rules, who, table)
    return rule is not None and bool(rule.allow & {operation, Operation.ADMIN})


def is_part(rule: Rule) -> bool:
    """Whether it shows a part of a table."""
    return bool(rule.rows or rule.show or rule.hide or rule.mask or rule.hash)


def shown(
    rules: Sequence[Rule], who: Person, table: OracleTable, *, key: bytes
) -> list[Row] | None:
    """The rows somebody sees, in order of the key; None when there is no such table for them."""
    if not may(rules, who, table.name, Operation.READ):
        return None
    rule = deciding_rule(rules, who, table.name)
    assert rule is not None
    condition = CONDITIONS[rule.rows] if rule.rows else lambda _row, _who: True
    return [
        dict(_cells(rule, row, table.schema, key=key))
        for _, row in sorted(table.rows.items())
        if condition(row, who)
    ]


def _cells(rule: Rule, row: Row, schema: pa.Schema, *, key: bytes) -> Iterable[tuple[str, Any]]:
    for name in schema.names:
        if name in rule.hide or (rule.show and name not in rule.show):
            continue
        if name in rule.mask:
            yield name, rule.mask[name]
        elif name in rule.hash:
            cell = pa.array([row[name]], schema.field(name).type)
            yield name, hashed_cells(cell, key)[0].as_py()
        else:
            yield name, row[name]
