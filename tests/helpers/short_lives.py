"""Short lives of a journal's processes upon a simulated disk, each of which can be ended at any
call to the disk or meet a call that fails; and the books of what was handed over and acknowledged,
which every start is held against.

A life is a list of deeds. The last of several lives always goes to its end.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TypeAlias

from barrage.errors import JournalFailedError, JournalFullError
from barrage.journal import JournalOptions, JournalStore, TableJournal
from barrage.journal.stores.offline import compact, find_table
from tests.helpers.journal_histories import RandomHistory, content, identity
from tests.helpers.memory_storage import MemoryStorage
from tests.helpers.simulated_disk import Killed, SimulatedDisk
from tests.helpers.virtual_clock import VirtualClock

logger = logging.getLogger("barrage.journal.test")

TICK_NS = 2_000_000_000
"""Between deeds: long enough for upkeep that failed to be tried again."""
ROUNDS_MAX = 20
"""Rounds in which a full disk must have become writable again."""

OPTIONS = JournalOptions(
    reserve_bytes=65536,
    segment_bytes=1500,
    retain_bytes=4000,
    checkpoint_bytes_min=800,
    checkpoint_state_ratio=0.1,
    reserved_steps=16,
)
"""So small that each life begins segments, makes checkpoints, forgets, and sets steps aside."""

Deed: TypeAlias = "tuple[str, str]"
"""What is done, and to which tables, one letter each: ``cycle``, ``create``, ``remember`` (create
in memory), ``drop``, ``compact``, ``damage``, ``mend``, ``close``."""


class Harsh(Random):
    """The luck of a power cut that leaves nothing but what was synced."""

    def random(self) -> float:
        return 1.0

    def choice(self, seq):  # type: ignore[no-untyped-def]
        return seq[0]


class Kind(Random):
    """The luck of a cache that keeps everything."""

    def random(self) -> float:
        return 0.0


@dataclass
class Book:
    """One table on disk: what it went through, and how much of that was acknowledged."""

    history: RandomHistory
    epoch: str
    acknowledged: int
    is_going: bool = False
    """Whether it is being dropped."""


class _Told(logging.Handler):
    """Counts what a journal says went wrong."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.count = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.count += 1


@dataclass
class Lives:
    """One disk, the processes that use it one after the other, and the books."""

    options: JournalOptions = OPTIONS
    disk: SimulatedDisk = field(default_factory=SimulatedDisk)
    clock: VirtualClock = field(default_factory=lambda: VirtualClock(TICK_NS))
    books: dict[str, Book] = field(default_factory=dict)
    coming: tuple[str, str] | None = None
    """Name and epoch of a table that is being created."""
    cycles: list[tuple[int, list[Book]]] = field(default_factory=list)
    """Cycles over several tables on disk that are not found whole or gone yet."""
    damaged: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    """Of a table the damaged file, and what it was."""
    in_memory: dict[str, RandomHistory] = field(default_factory=dict)
    step: int = 0
    calls: int = 0
    """Calls to the disk in the last life."""
    failed: list[str] = field(default_factory=list)
    """Calls that failed."""
    untold: int = 0
    """Failed calls after which nothing was raised nor logged."""
    epochs: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    # --- lives ------------------------------------------------------------------------------------

    def live(
        self, deeds: Sequence[Deed], *, stop: int = -1, fail: tuple[int, int] = (-1, 0)
    ) -> bool:
        """One process; False when it ended before its deeds were done: at its ``stop``-th call, or
        since the call of the number ``fail[0]`` failed with the error ``fail[1]``."""
        numbers = itertools.count()

        def on_call(_name: str, _path: str) -> None:
            self.calls = next(numbers)
            if self.calls == stop:
                raise Killed

        def failing(name: str, path: str) -> int:
            if self.calls != fail[0]:
                return 0
            self.failed.append(f"{name} {path}")
            return fail[1]

        self.calls = 0
        self.disk.on_call, self.disk.fail = on_call, failing
        told = _Told()
        log = logging.getLogger("barrage.journal")
        log.addHandler(told)
        failures = len(self.failed)
        try:
            self._live(deeds)
        except Killed:
            return False
        except (JournalFailedError, OSError):
            if len(self.failed) == failures:
                raise
            told.count += 1
            return False
        finally:
            log.removeHandler(told)
            self.disk.on_call = self.disk.fail = None
            self.untold += len(self.failed) > failures and not told.count
        return True

    def end(self, how: str, seed: int = 0) -> None:
        """Whatever lives is gone: by ``kill``, or a power cut that leaves ``only what was synced``,
        ``everything`` or what ``luck`` leaves."""
        if how == "kill":
            self.disk.kill()
            return
        luck = {"only what was synced": Harsh(), "everything": Kind()}
        honest, self.disk.random = self.disk.random, luck.get(how) or Random(seed)
        self.disk.cut()
        self.disk.random = honest

    def _live(self, deeds: Sequence[Deed]) -> None:
        if deeds and deeds[0][0] in _WITHOUT_A_STORE:
            for what, name in deeds:
                getattr(self, f"_{what}")(name)
            return
        store = JournalStore(
            MemoryStorage(disk=self.disk),
            self.options,
            clock=self.clock,
            new_epoch=lambda: f"{next(self.epochs):016x}",
        )
        unread: list[str] = []
        store.open_all(on_damage=lambda name, _: unread.append(name))
        self.check(store, unread)
        self._wait_for_room(store)
        for what, names in deeds:
            getattr(self, f"_{what}")(store, names)

    # --- deeds ------------------------------------------------------------------------------------

    def _create(self, store: JournalStore, name: str) -> None:
        epochs_before = next(self.epochs)
        self.coming = name, f"{epochs_before + 1:016x}"
        try:
            journal = store.create(identity(name), step=self.step)
        except JournalFullError:
            # It may not come back as an empty table later.
            logger.warning("table %s was refused", name)
        else:
            self._begin_book(name, journal)
        self.coming = None

    def _begin_book(self, name: str, journal: TableJournal) -> None:
        version = journal.latest_version
        self.books[name] = Book(RandomHistory(Random(3), version), journal.epoch, version)

    def _remember(self, store: JournalStore, name: str) -> None:
        store.create(identity(name, journal_class="memory"), step=self.step)
        self.in_memory[name] = RandomHistory(Random(1), self.step)

    def _drop(self, store: JournalStore, name: str) -> None:
        if name not in store.journals:
            return
        self.books[name].is_going = True
        try:
            store.drop(name)
        except OSError as error:
            # With threads a drop that fails fails the store, as one does that cannot be written.
            raise JournalFailedError(str(error)) from error
        del self.books[name]

    def _cycle(self, store: JournalStore, names: str) -> None:
        self.step += 1
        there = [name for name in names if name in store.journals]
        durable = [self.books[name] for name in there if store.journals[name].is_durable]
        if len(durable) > 1:
            self.cycles.append((self.step, durable))
        for name in there:
            journal = store.journals[name]
            history = self.books[name].history if journal.is_durable else self.in_memory[name]
            change, positions = history.next_change(self.step)
            journal.append(
                change, step=self.step, wall_ns=self.clock.wall_ns(), positions=positions
            )
        store.step_committed(self.step)
        self._pump(store)
        # What was taken is kept, also by a disk that has got full meanwhile.
        with contextlib.suppress(JournalFullError):
            store.check_writable()
        for book, name in ((self.books[name], name) for name in there if name in self.books):
            durable_version = store.journals[name].durable_version
            book.acknowledged = durable_version
            assert durable_version == self.step, "what was taken is not on the disk"
        self._wait_for_room(store)

    def _pump(self, store: JournalStore) -> None:
        self.clock.advance(TICK_NS)
        store.pump(self.clock.monotonic_ns())

    def _wait_for_room(self, store: JournalStore) -> None:
        for _ in range(ROUNDS_MAX):
            try:
                store.check_writable()
            except JournalFullError:
                logger.warning("writes are refused")
                self._pump(store)
            else:
                return
        raise AssertionError("writes are refused although there is room again")

    def _close(self, store: JournalStore, _: str) -> None:
        store.close()

    # --- what is done without a store -------------------------------------------------------------

    def _compact(self, name: str) -> None:
        if name not in self.books:
            return
        storage = MemoryStorage(disk=self.disk)
        storage.lock()
        compact(storage, find_table(storage, name))
        storage.unlock()

    def _damage(self, name: str) -> None:
        """Go past the disk's calls and change a byte of a table's record."""
        if name not in self.books or self.books[name].is_going:
            return
        path = f"tables/{name}/table.json"
        file = MemoryStorage(disk=self.disk).files[path]
        self.damaged[name] = path, bytes(file.content)
        file.content[9] ^= 1
        file.platter[:] = file.content

    def _mend(self, name: str) -> None:
        """Put back the copy of what was damaged."""
        if name in self.damaged:
            path, whole = self.damaged.pop(name)
            file = MemoryStorage(disk=self.disk).files[path]
            file.content[:], file.platter[:] = whole, whole

    # --- books ------------------------------------------------------------------------------------

    def check(self, store: JournalStore, unread: Sequence[str]) -> None:
        """What a start has read back is what must be there."""
        assert set(unread) == set(self.damaged), f"damaged: {unread}"
        self._settle_names(store)
        versions = {name: journal.latest_version for name, journal in store.journals.items()}
        of_book = {id(book): versions[n] for n, book in self.books.items() if n in versions}
        for step, books in self.cycles:
            there = {of_book[id(book)] >= step for book in books if id(book) in of_book}
            assert len(there) < 2, f"half of cycle {step} is there"
        self.cycles.clear()
        assert store.first_step >= self.step, "steps used twice"
        self.step = store.first_step
        for name, journal in store.journals.items():
            self._check_table(self.books[name], journal)

    def _settle_names(self, store: JournalStore) -> None:
        if self.coming is not None and self.coming[0] in store.journals:
            name, _ = self.coming
            self._begin_book(name, store.journals[name])
        self.coming = None
        for name in [each for each, book in self.books.items() if book.is_going]:
            self.books[name].is_going = False
            if name not in store.journals:
                del self.books[name]
        due = set(self.books) - set(self.damaged)
        assert set(store.journals) == due, f"{set(store.journals)} are there, {due} are due"

    def _check_table(self, book: Book, journal: TableJournal) -> None:
        version = journal.latest_version
        assert journal.epoch == book.epoch, "another epoch"
        assert version >= book.acknowledged, "what was acknowledged is gone"
        book.history.go_back_to(version)
        newest = book.history.snapshots[-1]
        assert newest.version == version, "a version that was never handed over"
        found = journal.state_at(version)
        assert content(found) == newest.rows
        assert dict(found.positions) == newest.positions
        self._check_history(book, journal)
        # What a server has told of stays.
        book.acknowledged = version

    def _check_history(self, book: Book, journal: TableJournal) -> None:
        """What is kept is every version from the earliest on."""
        earliest = journal.earliest_version
        known = {each.version: each for each in book.history.snapshots}
        assert content(journal.state_at(earliest)) == known[earliest].rows
        steps = [entry.step for entry in journal.entries(earliest, journal.latest_version)]
        assert steps == [step for step in sorted(known) if step > earliest]


_WITHOUT_A_STORE = ("compact", "damage", "mend")


@dataclass(frozen=True)
class Trouble:
    """What happens in one of several lives: an end at a call, or a call that fails."""

    life: int
    call: int
    error: int = 0
    """With which the call fails; 0: the process ends there."""


def go_through(
    lives: Sequence[Sequence[Deed]],
    *troubles: Trouble,
    how: Sequence[str] = ("kill",),
    seed: int = 0,
) -> Lives:
    """Let one life follow the other on one disk. ``how`` says in which ways they end, in turn. In
    the end a life without trouble changes the tables once more, and another finds that."""
    scene = Lives()
    scene.disk.random = Random(seed)
    by_life = {trouble.life: trouble for trouble in troubles}
    ends = itertools.cycle(how)
    for number, deeds in enumerate(lives):
        trouble = by_life.get(number)
        if trouble is None:
            assert scene.live(deeds)
        elif trouble.error:
            scene.live(deeds, fail=(trouble.call, trouble.error))
        else:
            scene.live(deeds, stop=trouble.call)
        scene.end(next(ends), seed)
    assert scene.live([("cycle", "ab")])
    scene.end("only what was synced")
    assert scene.live([])
    return scene


def calls_of(lives: Sequence[Sequence[Deed]]) -> list[int]:
    """How many calls to the disk each of several lives makes that has no trouble."""
    scene, counts = Lives(), []
    for deeds in lives:
        assert scene.live(deeds)
        counts.append(scene.calls + 1)
        scene.end("kill")
    return counts
