"""A journal in plain Python, as naive as it can be: every version's state is kept."""

from __future__ import annotations

import random
from collections.abc import Sequence

from spark_sink.planning import Amount, Bound, Facts, Head

Change = tuple[str, int, int, int]
"""Type, version, row id, value."""


class HistoryGoneError(Exception):
    """What a server answers for a range it cannot serve; ``is_epoch`` when the epoch differs."""

    def __init__(self, *, is_epoch: bool) -> None:
        super().__init__("another epoch" if is_epoch else "truncated")
        self.is_epoch = is_epoch


class JournalModel:
    """One table. ``states`` has the rows (id to value) of every version of this epoch."""

    def __init__(self, prng: random.Random) -> None:
        self._prng = prng
        self._epochs = 0
        self._now = 0
        self.begin_epoch(rows=0)

    def begin_epoch(self, rows: int | None = None) -> None:
        """History breaks: the same table under another epoch, perhaps with smaller versions."""
        self._epochs += 1
        self.epoch = f"{self._epochs:016x}"
        count = self._prng.randrange(30) if rows is None else rows
        self._next_id = count
        first = self._prng.randrange(5)
        values = {row: self._prng.randrange(1000) for row in range(count)}
        self.states: dict[int, dict[int, int]] = {first: values}
        self.entries: dict[int, list[Change]] = {}
        self.times = {first: self._tick()}
        self.version = self.earliest = first

    def _tick(self) -> int:
        self._now += 1000
        return self._now

    @property
    def head(self) -> Head:
        return Head(self.epoch, self.version)

    def commit(self) -> None:
        """One cycle: some rows removed, modified and added; steps of other tables in between."""
        before = self.states[self.version]
        self.version += self._prng.randrange(1, 4)
        rows = dict(before)
        changes: list[Change] = []
        for row in self._prng.sample(sorted(rows), min(len(rows), self._prng.randrange(4))):
            if self._prng.random() < 0.5:
                changes.append(("delete", self.version, row, rows.pop(row)))
            else:
                rows[row] = self._prng.randrange(1000)
                changes.append(("update_postimage", self.version, row, rows[row]))
        for _ in range(self._prng.randrange(5)):
            rows[self._next_id] = self._prng.randrange(1000)
            changes.append(("insert", self.version, self._next_id, rows[self._next_id]))
            self._next_id += 1
        self.states[self.version] = rows
        self.entries[self.version] = changes
        self.times[self.version] = self._tick()

    def truncate(self) -> None:
        """Retention forgets versions below a random one, which may be the newest."""
        self.earliest = self._prng.choice([v for v in self.states if v >= self.earliest])
        for version in [v for v in self.states if v < self.earliest]:
            del self.states[version]

    # --- what the rules ask ---

    def facts(self) -> Facts:
        return Facts(epoch=self.epoch, version=self.version, earliest=self.earliest)

    def bound(
        self, epoch: str, after: int, cap: int, *, rows_max: int | None, bytes_max: int | None
    ) -> Bound:
        self._check(epoch, after)
        found, rows = after, 0
        for version in sorted(v for v in self.entries if after < v <= cap):
            count = len(self.entries[version])
            if found > after and (
                (rows_max is not None and rows + count > rows_max)
                or (bytes_max is not None and 10 * (rows + count) > bytes_max)
            ):
                break
            found, rows = version, rows + count
        return Bound(found, rows, 10 * rows)

    def amount(self, epoch: str, version: int) -> Amount:
        rows = len(self.state(epoch, version))
        return Amount(rows, 10 * rows)

    def id_bounds(self, epoch: str, version: int, parts: int) -> Sequence[int]:
        ids = sorted(self.state(epoch, version))
        return sorted({ids[len(ids) * part // parts] for part in range(1, parts) if ids})

    def version_before(self, time_us: int) -> int:
        before = [v for v, at in self.times.items() if at < time_us]
        return max(before, default=-1)

    # --- what a task fetches ---

    def state(self, epoch: str, version: int) -> dict[int, int]:
        self._check(epoch, version)
        return self.states[max(v for v in self.states if v <= version)]

    def fetch(self, ticket: dict) -> list[Change]:
        """The rows of one ticket."""
        if ticket["mode"] == "snapshot":
            low, high = ticket["ids"]
            rows = self.state(ticket["epoch"], ticket["version"])
            return [
                ("insert", ticket["version"], row, value)
                for row, value in rows.items()
                if low <= row < high
            ]
        self._check(ticket["epoch"], ticket["from"])
        stripe, stripes = ticket["stripe"]
        return [
            change
            for version in sorted(self.entries)
            if ticket["from"] < version <= ticket["to"]
            for change in self.entries[version]
            if change[2] % stripes == stripe
        ]

    def _check(self, epoch: str, version: int) -> None:
        if epoch != self.epoch:
            raise HistoryGoneError(is_epoch=True)
        if not self.earliest <= version <= self.version:
            raise HistoryGoneError(is_epoch=False)
