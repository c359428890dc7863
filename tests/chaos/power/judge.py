"""What must be there after a power cut, and whether it is."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from barrage.errors import BarrageError
from barrage.journal.disk.storage import LocalStorage
from barrage.journal.records.options import JournalOptions
from barrage.journal.stores.store import JournalStore
from barrage.journal.stores.table_journal import TableJournal
from tests.chaos.power.disk import Tree, write_tree
from tests.chaos.scripts import BookScript, EventsScript, NotesScript, RingScript

LOCAL = "local"
PAIR = ("left", "right")


@dataclass
class Expected:
    """What clients were told so far."""

    numbers: dict[tuple[str, str], int] = field(default_factory=dict)
    """Of table and producer the last number that was acknowledged; 0 says the table is there."""
    step: int = 0
    problems: list[str] = field(default_factory=list)

    def hear(self, told: dict[str, Any]) -> None:
        if "step" in told:
            self.step = max(self.step, told["step"])
        elif "problem" in told:
            self.problems.append(told["problem"])
        else:
            tables = PAIR if told["table"] == "pair" else (told["table"],)
            for table in tables:
                place = table, told["producer"]
                self.numbers[place] = max(told["number"], self.numbers.get(place, 0))

    def tables(self) -> set[str]:
        return {table for table, _ in self.numbers}

    def rows(self) -> int:
        """Writes that were acknowledged."""
        return sum(self.numbers.values())


def judged(tree: Tree, expected: Expected, where: Path) -> list[str]:
    """What is wrong with a state, opened by the real store."""
    write_tree(tree, where)
    problems: list[str] = []
    store = JournalStore(LocalStorage(where), JournalOptions(reserve_bytes=65536))
    try:
        store.open_all(on_damage=lambda name, error: problems.append(f"{name}: {error}"))
        if not problems:
            problems += _compared(store, expected)
    except (BarrageError, OSError) as error:
        problems.append(f"the directory cannot be opened: {type(error).__name__}: {error}")
    finally:
        store.close()
        shutil.rmtree(where)
    return problems


def _compared(store: JournalStore, expected: Expected) -> list[str]:
    problems = []
    if store.first_step < expected.step:
        problems.append(f"step {expected.step} was told and may come again: {store.first_step}")
    missing = expected.tables() - set(store.journals)
    problems += [f"{table}: it was told to be there and is gone" for table in sorted(missing)]
    for name, journal in store.journals.items():
        problems += _table_problems(name, journal, expected)
    pair = [store.journals[name] for name in PAIR if name in store.journals]
    if len(pair) == 2:
        sizes = [_rows(journal) for journal in pair]
        if sizes[0] != sizes[1]:
            counts = [len(rows) for rows in sizes]
            problems.append(f"half a transaction: {counts[0]} rows and {counts[1]} rows")
    return problems


def _rows(journal: TableJournal) -> list[tuple[Any, ...]]:
    rows = journal.state_at(journal.latest_version).rows
    columns = [column.to_pylist() for column in rows.columns]
    return list(zip(*columns, strict=True))


def _table_problems(name: str, journal: TableJournal, expected: Expected) -> list[str]:
    positions = journal.state_at(journal.latest_version).positions
    problems = [
        f"{name}: {producer} was told of {number}, {positions.get(producer, 0)} is there"
        for (table, producer), number in expected.numbers.items()
        if table == name and positions.get(producer, 0) < number
    ]
    found = _rows(journal)
    due = _due(name, dict(positions))
    found = sorted(found) if name in ("events", "book") else found
    if due is not None and due != found:
        problems.append(f"{name}: {len(due)} rows are due, {len(found)} are there, or others")
    return problems


def _due(name: str, positions: dict[str, int]) -> list[tuple[Any, ...]] | None:
    """The rows of a table that has got that far."""
    if name == "events":
        return sorted(r for n in range(2) for r in _events(n, positions.get(f"events-{n}", 0)))
    if name == "book":
        return sorted(r for n in range(2) for r in _book(n, positions.get(f"book-{n}", 0)))
    if name == "ring":
        return RingScript().expected(positions.get("ring", 0))
    if name == "notes":
        return [(text,) for text in _notes(positions.get(LOCAL, 0))]
    if name in PAIR:
        return [(n,) for n in range(1, positions.get(LOCAL, 0) + 1)]
    return None


@cache
def _events(writer: int, upto: int) -> list[tuple[Any, ...]]:
    return EventsScript(writer).expected(upto)


@cache
def _book(writer: int, upto: int) -> list[tuple[Any, ...]]:
    return list(BookScript(writer).expected(upto).values())


@cache
def _notes(upto: int) -> list[str]:
    return NotesScript.after(upto).texts
