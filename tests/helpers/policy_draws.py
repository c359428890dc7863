"""Rules drawn at random, for tables such as those of :mod:`tests.helpers.policy_world`."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from barrage import Operation, Rule
from tests.helpers.policy_oracle import CONDITIONS

PLAIN = ("Id", "Owner", "Level", "Note", "Code", "Px", "Tags")
"""Columns all tables have."""

READ, ADMIN = frozenset({Operation.READ}), frozenset({Operation.ADMIN})
MASKS: tuple[dict[str, Any], ...] = ({"Note": "***"}, {"Px": 0.0, "Code": "x"}, {"Tags": None})
ALLOWED = (READ, READ, READ, READ, ADMIN, frozenset({Operation.WRITE}), frozenset[Operation]())
MEANT_FOR: tuple[dict[str, Any], ...] = (
    {},
    {"users": ("bob",)},
    {"users": ("e*",)},
    {"users": ("bob", "eve")},
    {"roles": ("ops",)},
)
ALWAYS = (
    Rule(tables=("_*",), allow=READ),
    # Of names nearly those of tables.
    Rule(tables=("tzz*",), allow=frozenset({Operation.WRITE, Operation.DROP})),
)


def random_rule(draw: random.Random, tables: Sequence[str]) -> Rule:
    """For some of the tables, or all."""
    name = draw.choice(["*", "tzq*", *tables, *tables])
    whom, allow = draw.choice(MEANT_FOR), draw.choice(ALLOWED)
    is_part = allow == READ and draw.random() < 0.8
    return Rule(tables=(name,), allow=allow, **whom, **(random_part(draw) if is_part else {}))


def random_part(draw: random.Random) -> dict[str, Any]:
    """What of a table is shown, as fields of a rule."""
    part: dict[str, Any] = {}
    if draw.random() < 0.7:
        part["rows"] = draw.choice(list(CONDITIONS))
    if draw.random() < 0.4:
        part["mask"] = draw.choice(MASKS)
    free = [each for each in PLAIN if each not in part.get("mask", {})]
    if draw.random() < 0.3:
        part["hash"] = (draw.choice([each for each in free if each != "Tags"]),)
    if draw.random() < 0.4:
        part["hide"] = tuple(
            each for each in free if each not in part.get("hash", ()) and draw.random() < 0.4
        )
    if draw.random() < 0.2:
        part["show"] = tuple(draw.sample(PLAIN, 4))
        if not set(part["show"]) - {*part.get("hide", ())}:
            del part["show"]
    return part
