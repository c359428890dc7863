"""Subscribers with random wishes, which they change, and with random patience."""

from __future__ import annotations

import random
import threading
from dataclasses import dataclass

from barrage.client import Session, State
from barrage.client.synchronous.sync_ticking import TickingTable
from barrage.rowset import RowSet
from tests.end_to_end.random_tables import World
from tests.helpers.server_process import wait_until


@dataclass
class Wish:
    """What one subscriber asked for last."""

    table: str
    columns: list[str] | None
    positions: list[int] | None
    reverse: bool
    interval_ms: int
    can_reverse: bool


def random_wish(rng: random.Random, world: World, *, can_reverse: bool) -> Wish:
    name = rng.choice(list(world.tables))
    wish = Wish(
        table=name,
        columns=None,
        positions=None,
        reverse=False,
        interval_ms=rng.choice([1, 5, 20, 100]),
        can_reverse=can_reverse and name != "blink",
    )
    if rng.random() < 0.65:
        change_viewport(rng, wish)
    change_columns(rng, wish, world.tables[name].schema.names)
    return wish


def change_viewport(rng: random.Random, wish: Wish) -> None:
    start, size = rng.randint(0, 60), rng.choice([0, 1, 3, 10, 40, 10**6])
    positions = set(range(start, start + min(size, 5000)))
    if rng.random() < 0.3:
        positions |= set(range(start + 70, start + 75))
    wish.positions = sorted(positions)
    wish.reverse = wish.can_reverse and rng.random() < 0.4


def change_columns(rng: random.Random, wish: Wish, names: list[str]) -> None:
    if rng.random() < 0.5:
        wish.columns = None
    else:
        wish.columns = rng.sample(names, rng.randint(1, len(names)))


class Subscriber:
    """One subscription and a thread that sometimes follows its updates, slowly."""

    def __init__(
        self, rng: random.Random, world: World, session: Session, *, can_reverse: bool = True
    ) -> None:
        self.rng = rng
        self.world = world
        self.wish = random_wish(rng, world, can_reverse=can_reverse)
        wish = self.wish
        viewport = None if wish.positions is None else RowSet(wish.positions)
        self.live: TickingTable = session.table(wish.table).subscribe(
            columns=wish.columns,
            viewport=viewport,
            reverse=wish.reverse,
            interval_ms=wish.interval_ms,
        )
        self._may_read = threading.Event()
        self._may_read.set()
        self.follower: Follower | None = None
        if rng.random() < 0.5:
            self.follower = Follower(self.live, self._may_read)

    def act(self) -> None:
        """Change the wish, or stop reading for a while, or go on."""
        choice = self.rng.random()
        if choice < 0.3 and self.wish.positions is not None:
            change_viewport(self.rng, self.wish)
            self.live.set_viewport(RowSet(self.wish.positions), reverse=self.wish.reverse)
        elif choice < 0.5 and self.wish.positions is not None:
            change_columns(self.rng, self.wish, self.world.tables[self.wish.table].schema.names)
            self.live.set_columns(self.wish.columns)
        elif choice < 0.6:
            self._may_read.clear()
        else:
            self._may_read.set()

    def check(self) -> None:
        """Wait until everything asked for is there and equals the server's own rows."""
        self._may_read.set()
        self.live.wait_ready(60)
        try:
            wait_until(lambda: self.difference() is None)
        except AssertionError:
            raise AssertionError(f"{self.difference()}: {self.wish}, {self.live!r}") from None
        self.live.to_arrow().validate(full=True)

    def difference(self) -> str | None:
        """What differs from the server now; None when nothing does."""
        wish = self.wish
        expected = self.world.expected(wish.table, wish.positions, wish.columns, wish.reverse)
        shown = self.live.to_arrow()
        rows = expected.to_pylist()
        if self.live.state is not State.LIVE:
            return f"the subscription is not live: {self.live.error}"
        if self.live.table_size != len(self.world.tables[wish.table]):
            return f"the size of the table, {self.live.table_size}"
        if not shown.schema.equals(expected.schema):
            return f"the schema, {shown.schema}"
        if shown.to_pylist() != rows:
            return f"the rows, {shown.to_pylist()} instead of {rows}"
        if self.follower is not None and self.follower.rows() != rows:
            return f"the rows gathered from updates, {self.follower.rows()} instead of {rows}"
        return None

    def close(self) -> None:
        self._may_read.set()
        self.live.close()
        if self.follower is not None:
            self.follower.join()


class Follower:
    """Keeps rows of its own from the updates alone: no read of the table is used."""

    def __init__(self, live: TickingTable, may_read: threading.Event) -> None:
        self._lock = threading.Lock()
        self._keys: list[int] = []
        self._rows: dict[int, dict] = {}
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._follow, args=(live, may_read), daemon=True)
        self._thread.start()

    def rows(self) -> list[dict]:
        with self._lock:
            if self.error is not None:
                raise self.error
            return [self._rows[key] for key in sorted(self._rows)]

    def join(self) -> None:
        self._thread.join(60)
        assert not self._thread.is_alive()

    def _follow(self, live: TickingTable, may_read: threading.Event) -> None:
        try:
            for update in live.updates():
                may_read.wait()
                with self._lock:
                    self._apply(update)
        except BaseException as error:
            self.error = error

    def _apply(self, update) -> None:
        if update.is_replacement:
            self._rows = {}
        removed = set(update.removed_rows)
        assert removed <= set(self._rows)
        if not update.is_replacement:
            assert update.removed.num_rows == len(removed)
            old = [self._rows[key] for key in sorted(removed)]
            assert update.removed.to_pylist() == old
        kept = {key: row for key, row in self._rows.items() if key not in removed}
        added = list(update.added_rows)
        if update.is_view:
            free = (p for p in range(len(kept) + len(added)) if p not in set(added))
            kept = dict(zip(free, (kept[key] for key in sorted(kept)), strict=False))
        elif update.shifts:
            kept = {shifted(update.shifts, key): row for key, row in kept.items()}
        assert not set(added) & set(kept)
        kept |= dict(zip(added, update.added.to_pylist(), strict=True))
        for name, values in update.modified.items():
            rows = list(update.modified_rows[name])
            for key, value in zip(rows, values.to_pylist(), strict=True):
                kept[key] = kept[key] | {name: value}
        self._rows = kept


def shifted(shifts, key: int) -> int:
    for shift in shifts:
        if shift.first <= key <= shift.last:
            return key + shift.delta
    return key
