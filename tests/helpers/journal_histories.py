"""Random histories of a table for tests of journals: changes as an engine would hand them over,
beside a naive model of rows and their ids."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import pyarrow as pa

from barrage.journal import TableIdentity, TableState
from barrage.model.table_change import TableChange
from barrage.model.update import TableUpdate
from barrage.rowset import RowSet, RowSetShiftData

SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string())])
KEY_STOP = 400

Cells = tuple[int | None, str | None]
ModelRow = tuple[int, Cells]


def identity(name: str = "t", kind: str = "list", **more: object) -> TableIdentity:
    """A table of :data:`SCHEMA`."""
    return TableIdentity(name=name, kind=kind, schema=SCHEMA, **more)


def columns(rows: list[Cells]) -> tuple[pa.Array, ...]:
    """Rows as arrays, one per column."""
    return tuple(
        pa.array([row[index] for row in rows], SCHEMA.field(index).type) for index in range(2)
    )


@dataclass
class Snapshot:
    """What a state must be: (key, id, cells) in key order."""

    version: int
    rows: list[tuple[int, int, Cells]]
    next_offset: int
    positions: dict[str, int]


def content(state: TableState) -> list[tuple[int, int, Cells]]:
    """A state in the form of :class:`Snapshot`."""
    cells = zip(*(column.to_pylist() for column in state.rows.columns), strict=True)
    return list(zip(state.keys, state.row_ids.tolist(), cells, strict=True))


@dataclass
class RandomHistory:
    """Makes changes and remembers every state there ever was."""

    random: Random
    step: int = 0
    is_append_only: bool = False
    rows: dict[int, ModelRow] = field(default_factory=dict)
    next_offset: int = 0
    positions: dict[str, int] = field(default_factory=dict)
    snapshots: list[Snapshot] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._remember()

    def _remember(self) -> None:
        rows = [(key, *self.rows[key]) for key in sorted(self.rows)]
        self.snapshots.append(Snapshot(self.step, rows, self.next_offset, dict(self.positions)))

    def go_back_to(self, version: int) -> None:
        """A crash took what came after this state."""
        while self.snapshots[-1].version > version:
            self.snapshots.pop()
        kept = self.snapshots[-1]
        self.step, self.next_offset = kept.version, kept.next_offset
        self.positions = dict(kept.positions)
        self.rows = {key: (row_id, cells) for key, row_id, cells in kept.rows}

    def _cells(self) -> Cells:
        number = self.random.choice([None, self.random.randrange(1000)])
        return number, self.random.choice([None, "", "ä" * self.random.randrange(4), "text"])

    def next_change(self, step: int | None = None) -> tuple[TableChange, dict[str, int]]:
        """The next cycle, and the positions of producers that moved in it."""
        random = self.random
        self.step = self.step + random.choice([1, 1, 1, 5]) if step is None else step
        if self.is_append_only:
            removed, shifts, modified = [], [], []
            first = len(self.rows)
            added = list(range(first, first + random.randint(1, 5)))
        else:
            keys = sorted(self.rows)
            removed = sorted(random.sample(keys, min(len(keys), random.choice([0, 0, 1, 3]))))
            kept = [key for key in keys if key not in removed]
            shifts = self._shifts(kept)
            moved = {key: key + delta for key, delta in shifts}
            kept_post = sorted(moved.get(key, key) for key in kept)
            count = min(len(kept_post), random.choice([0, 0, 1, 4]))
            modified = sorted(random.sample(kept_post, count))
            free = [key for key in range(KEY_STOP) if key not in set(kept_post)]
            added = sorted(random.sample(free, random.choice([0, 1, 2, 6])))
        change = self._apply(removed, shifts, modified, added)
        moved_positions = (
            {random.choice(["a", "b", "c"]): self.step} if random.random() < 0.3 else {}
        )
        self.positions.update(moved_positions)
        self._remember()
        return change, moved_positions

    def _shifts(self, kept: list[int]) -> list[tuple[int, int]]:
        """(key, delta) of rows that move, order kept: some rows packed to the front or back."""
        if len(kept) < 2 or self.random.random() < 0.6:
            return []
        start = self.random.randrange(len(kept))
        run = kept[start:]
        if self.random.random() < 0.5:
            lowest = kept[start - 1] + 1 if start else 0
            return [(key, lowest + i - key) for i, key in enumerate(run) if lowest + i != key]
        top = KEY_STOP - len(run)
        return [(key, top + i - key) for i, key in enumerate(run) if top + i != key]

    def _apply(
        self,
        removed: list[int],
        shifts: list[tuple[int, int]],
        modified: list[int],
        added: list[int],
    ) -> TableChange:
        removed_cells = [self.rows.pop(key)[1] for key in removed]
        deltas = dict(shifts)
        self.rows = {key + deltas.get(key, 0): row for key, row in self.rows.items()}
        before = [self.rows[key][1] for key in modified]
        column_of = {key: self.random.randrange(3) for key in modified}
        for key in modified:
            row_id, cells = self.rows[key]
            new = self._cells()
            column = column_of[key]
            if column < 2:
                new = (new[0], cells[1]) if column == 0 else (cells[0], new[1])
            self.rows[key] = (row_id, new)
        after = [self.rows[key][1] for key in modified]
        first_added = self.next_offset + len(removed) + 2 * len(modified)
        added_cells = [self._cells() for _ in added]
        for index, key in enumerate(added):
            self.rows[key] = (first_added + index, added_cells[index])
        self.next_offset = first_added + len(added)
        update = TableUpdate(
            first_step=self.step,
            last_step=self.step,
            removed_keys_pre=RowSet(removed),
            shifts=RowSetShiftData.from_shifts([(key, key, delta) for key, delta in shifts]),
            added_keys_post=RowSet(added),
            modified_keys_post=tuple(
                RowSet([key for key in modified if column_of[key] in (column, 2)])
                for column in range(2)
            ),
        )
        return TableChange(
            update=update,
            removed=columns(removed_cells),
            modified_keys_post=RowSet(modified),
            before=columns(before),
            after=columns(after),
            added=columns(added_cells),
        )
