"""A whole engine with its journal's threads upon a simulated disk that is slow, gets full and
fails; callers beside each other that number, fence, stage, make and drop; processes that are
killed, and power that is cut. The books say what each caller was told.

The threads are real, so a seed does not repeat a run; what is held against the books does not
depend on who comes first.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any
from unittest import mock

import pyarrow as pa

from barrage.errors import BarrageError, JournalFailedError, TableExistsError
from barrage.journal.disk.storage import SystemCalls
from barrage.journal.stores.offline import compact, find_tables
from barrage.limits import DEFAULT_LIMITS
from barrage.server import Server, ServerConfig
from barrage.server.api.publish_tables import PublishedTable
from barrage.server.ingest import portions
from barrage.server.ingest.stage_commit import CommitRequest, StageCommitter
from barrage.server.ingest.staging import BatchName, StagedLostError, StagingArea
from barrage.server.journaling import journal_opening
from barrage.server.journaling.producer_positions import ProducerPosition
from barrage.server.tables.table_service import Change, source_of
from tests.helpers.memory_storage import MemoryStorage
from tests.helpers.simulated_disk import NO_LIMIT, SimulatedDisk

HANG_SECONDS = 180
COLUMNS = {"producer": pa.string(), "number": pa.int64(), "part": pa.int64(), "nonce": pa.int64()}
SCHEMA = pa.schema(COLUMNS)
PARTS = 3
TABLES = ("events", "other", "staged", "keyed")
STAGED: dict[str, dict[str, Any]] = {
    "staged": {"mode": "append"},
    "keyed": {"mode": "upsert", "key": ("producer", "number", "part")},
}
"""Tables of staged batches. With a key they come in portions, of one row each."""


def rows(producer: str, number: int, nonce: int) -> pa.Table:
    columns = [[producer] * PARTS, [number] * PARTS, list(range(PARTS)), [nonce] * PARTS]
    return pa.table(dict(zip(COLUMNS, columns, strict=True)), schema=SCHEMA)


class Process(SystemCalls):
    """What one process asks of the disk, one call at a time, until it is killed."""

    def __init__(self, disk: SimulatedDisk, *, calls: int, failing: dict[int, int]) -> None:
        self._disk = disk
        self._left = calls
        self._failing = failing
        self._made = 0
        self._lock = threading.RLock()
        self.ended = threading.Event()
        self.failed: list[str] = []
        disk.on_call, disk.fail = self._count, self._fail

    def _count(self, _name: str, _path: str) -> None:
        self._made += 1
        if self._made > self._left:
            self.end()
            raise OSError(errno.EIO, "the process is gone")

    def _fail(self, name: str, path: str) -> int:
        error = self._failing.pop(self._made, 0)
        if error:
            self.failed.append(f"{name} {path}")
        return error

    def end(self) -> None:
        """From now on nothing it does has an effect."""
        with self._lock:
            self.ended.set()

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("_") or not hasattr(SystemCalls, name):
            return object.__getattribute__(self, name)
        return lambda *arguments: self._ask(name, *arguments)

    def _ask(self, name: str, *arguments: Any) -> Any:
        with self._lock:
            if self.ended.is_set():
                if name == "close":
                    return None
                raise OSError(errno.EIO, "the process is gone")
            return getattr(self._disk, name)(*arguments)


@dataclass
class Books:
    """What callers were told."""

    numbered: Counter[str] = field(default_factory=Counter)
    """Producer to the last number it was told is there."""
    fenced: dict[int, int] = field(default_factory=dict)
    """Number of the producer that two share, to who was told that it is there."""
    batches: Counter[str] = field(default_factory=Counter)
    """Table to how many staged batches were told to be committed."""
    passing: dict[str, bool] = field(default_factory=dict)
    """Whether a table that comes and goes is there; absent while nobody knows."""
    problems: list[str] = field(default_factory=list)
    acknowledged: int = 0
    refused: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


class Caller:
    """Calls of one kind, until the server ends or enough were made."""

    def __init__(self, scene: Scene, server: Server, seed: int) -> None:
        self.scene, self.server, self.books = scene, server, scene.books
        self.random = Random(seed)

    def result(self, future: Future[Any]) -> Any:
        answer = future.result(HANG_SECONDS)
        with self.books.lock:
            self.books.acknowledged += 1
        return answer

    def table(self, name: str) -> PublishedTable:
        found = self.server.table(name)
        assert isinstance(found, PublishedTable)
        return found


def write_numbered(caller: Caller, producer: str) -> None:
    """Send again what was not answered, then go on."""
    number = caller.books.numbered[producer] + 1
    future = caller.table("events").add(
        rows(producer, number, 0), wait=False, producer=producer, sequence=number
    )
    if caller.random.random() < 0.3:
        again = caller.table("events").add(
            rows(producer, number, 0), wait=False, producer=producer, sequence=number
        )
        caller.result(again)
    caller.result(future)
    caller.books.numbered[producer] = number


def write_two_tables(caller: Caller) -> None:
    number = caller.books.numbered["pair"] + 1
    with caller.server.transaction(producer="pair", sequence=number) as transaction:
        for name in ("events", "other"):
            transaction.add(caller.table(name), rows("pair", number, 0))
    with caller.books.lock:
        caller.books.acknowledged += 1
    caller.books.numbered["pair"] = number


def write_fenced(caller: Caller, nonce: int) -> None:
    """One of two writers under one name: what it is told is there is what it wrote."""
    service = caller.server._parts.tables
    table = source_of(caller.table("events")._table, "events")
    last, epoch = caller.result(service.begin_producer(table, "shared", None))
    number = -1 if last is None else last
    for _ in range(caller.random.randint(1, 3)):
        number += 1
        change = Change(table, "stage_add", (rows("shared", number, nonce),))
        caller.result(service.change([change], ProducerPosition("shared", number, epoch)))
        with caller.books.lock:
            before = caller.books.fenced.setdefault(number, nonce)
            if before != nonce:
                caller.books.problems.append(f"two were told that {number} is theirs")


def commit_staged(caller: Caller, nonce: int) -> None:
    """Two attempts at the same batch, at the same time; one of them counts."""
    parts = caller.server._parts
    table = caller.random.choice(tuple(STAGED))
    number = caller.books.batches[table]
    name = BatchName(table=table, writer="job", batch=number)
    limits = replace(DEFAULT_LIMITS, whole_batch_rows_max=PARTS - 1)

    async def both() -> None:
        staging = StagingArea(DEFAULT_LIMITS, parts.clock)
        with ThreadPoolExecutor(2) as pool:
            committer = StageCommitter(
                parts.tables, parts.catalog, staging, pool=pool, limits=limits
            )
            attempts = [attempt(staging, committer, nonce + each) for each in range(2)]
            told = await asyncio.gather(*attempts, return_exceptions=True)
        errors = [each for each in told if isinstance(each, BaseException)]
        # The other attempt may have been committed and its parts forgotten.
        wrong = [each for each in errors if not isinstance(each, StagedLostError)]
        if wrong:
            raise wrong[0]
        assert len(errors) < 2, "neither attempt was committed"

    async def attempt(staging: StagingArea, committer: StageCommitter, own: int) -> None:
        part = staging.open(name, 0, own)
        for batch in rows("job", number, own).to_batches():
            staging.add(part, batch, batch.nbytes)
        staging.complete(part, SCHEMA)
        request = CommitRequest(name=name, staged=((0, own),), is_created=True, **STAGED[table])
        await asyncio.wait_for(committer.commit(request), HANG_SECONDS)

    asyncio.run(both())
    with caller.books.lock:
        caller.books.acknowledged += 1
    caller.books.batches[table] = number + 1


def make_and_drop(caller: Caller, name: str) -> None:
    """What is answered that it is there, or is not, tells of no disk."""
    is_there = caller.books.passing.pop(name, None)
    if is_there or (is_there is None and caller.random.random() < 0.5):
        caller.server.drop_table(name)
        caller.books.passing[name] = False
    else:
        caller.server.create_table(name, SCHEMA, data=rows(name, 1, 0))
        caller.books.passing[name] = True


class Scene:
    """One disk, and the servers that use it one after the other."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.disk = SimulatedDisk(Random(seed + 1))
        self.books = Books()
        self.lives = self.kills = self.cuts = 0
        self.failed_calls: list[str] = []

    # --- one life ---------------------------------------------------------------------------------

    def live(self, calls_of_each: int = 12) -> None:
        """One process from its start to its end, then what the end leaves."""
        random = self.random
        self.lives += 1
        will_end = random.random() < 0.8
        failing = {
            random.randrange(10, 300): random.choice((errno.EIO, errno.ENOSPC, errno.ENOSPC))
            for _ in range(random.choice((0, 0, 1, 3)))
        }
        calls = random.randrange(1, 400) if will_end else NO_LIMIT
        process = Process(self.disk, calls=calls, failing=failing)
        self.disk.room = NO_LIMIT
        with self._upon(process):
            server = self._started(process)
            if server is not None:
                self._call(server, process, calls_of_each)
                if random.random() < 0.5:
                    process.end()
                server.stop()
        process.end()
        self.disk.on_call = self.disk.fail = None
        self.failed_calls += process.failed
        self._after(random.random() < 0.5)

    def _after(self, is_cut: bool) -> None:
        if is_cut:
            self.cuts += 1
            self.disk.cut()
        else:
            self.kills += 1
            self.disk.kill()

    @contextmanager
    def _upon(self, process: Process) -> Iterator[None]:
        honest = journal_opening.journal_options

        def options(config: ServerConfig) -> Any:
            return replace(
                honest(config),
                segment_bytes=4096,
                retain_bytes=16384,
                checkpoint_bytes_min=3000,
                checkpoint_state_ratio=0.2,
                reserved_steps=40,
                upkeep_bytes=2000,
            )

        def made(_: object) -> MemoryStorage:
            storage = MemoryStorage(disk=self.disk)
            storage._system = process
            return storage

        with (
            mock.patch.object(journal_opening, "LocalStorage", made),
            mock.patch.object(journal_opening, "journal_options", options),
            mock.patch.object(portions, "PORTION_ROWS_MAX", 1),
        ):
            yield

    def _started(self, process: Process) -> Server | None:
        config = ServerConfig(
            data="/data",
            journal_reserve_bytes=65536,
            journal_group_ms=1,
        )
        try:
            server = Server(config=config)
        except OSError:
            assert process.ended.is_set() or process.failed
            return None
        try:
            self.check(server)
        except AssertionError:
            server.stop()
            raise
        return server

    def _call(self, server: Server, process: Process, count: int) -> None:
        works: list[Callable[[Caller], None]] = [
            lambda caller: write_numbered(caller, "a"),
            lambda caller: write_numbered(caller, "b"),
            lambda caller: write_fenced(caller, 10 * self.lives + 1),
            lambda caller: write_fenced(caller, 10 * self.lives + 2),
            write_two_tables,
            lambda caller: commit_staged(caller, 10 * caller.random.randrange(1 << 30)),
            lambda caller: make_and_drop(caller, "passing"),
        ]
        threads = [
            threading.Thread(
                target=self._repeat, args=(work, Caller(self, server, number), process, count)
            )
            for number, work in enumerate(works, 100 * self.lives)
        ]
        if not self._has_tables(server):
            return
        for thread in threads:
            thread.start()
        if self.random.random() < 0.3:
            self.disk.room = self.disk.used_bytes() + self.random.randrange(100_000)
        for thread in threads:
            thread.join()

    def _has_tables(self, server: Server) -> bool:
        try:
            for name in ("events", "other"):
                with contextlib.suppress(TableExistsError):
                    server.create_table(name, SCHEMA)
        except BarrageError:
            return False
        return True

    def _repeat(
        self, work: Callable[[Caller], None], caller: Caller, process: Process, count: int
    ) -> None:
        """Make the call so often; refusals are allowed, while the disk is as it is."""
        for _ in range(count):
            try:
                work(caller)
            except BarrageError:
                with self.books.lock:
                    self.books.refused += 1
                if process.ended.is_set():
                    return
            except BaseException as error:
                with self.books.lock:
                    self.books.problems.append(f"{type(error).__name__}: {error}")
                return

    # --- without a server -------------------------------------------------------------------------

    def compact(self) -> None:
        """Compact every table, with the trouble that a server has."""
        process = Process(self.disk, calls=self.random.randrange(1, 120), failing={})
        storage = MemoryStorage(disk=self.disk)
        storage._system = process
        with contextlib.suppress(OSError, JournalFailedError):
            storage.lock()
            for table in find_tables(storage):
                compact(storage, table)
        process.end()
        self.disk.on_call = self.disk.fail = None
        self._after(self.random.random() < 0.5)

    # --- books ------------------------------------------------------------------------------------

    def check(self, server: Server) -> None:
        """What a start has read back is what the callers were told, and nothing half."""
        assert not self.books.problems, self.books.problems
        assert server.damaged_tables() == {}
        names = set(server.table_names())
        found = {name: self._found(server, name) for name in TABLES if name in names}
        events, other = found.get("events", {}), found.get("other", {})
        for producer in ("a", "b", "pair"):
            self._check_numbered(events, producer)
        assert {n: c for (p, n), c in events.items() if p == "pair"} == {
            n: c for (p, n), c in other.items() if p == "pair"
        }, "half a transaction"
        for number, nonce in self.books.fenced.items():
            assert events.get(("shared", number)) == [nonce] * PARTS, "a fenced write is gone"
        staged, keyed = found.get("staged", {}), found.get("keyed", {})
        for table, batches in (("staged", staged), ("keyed", keyed)):
            for number in range(self.books.batches[table]):
                assert ("job", number) in batches, f"batch {number} of {table} is gone"
        numbers = sorted(number for _, number in staged)
        assert numbers == list(range(len(numbers)))
        self.books.batches["staged"] = len(numbers)
        told = self.books.batches["keyed"]
        # What was not told may be there in part, until it is committed again.
        unknown = keyed.pop(("job", told), [])
        assert len(unknown) <= PARTS
        assert len(keyed) == told, "a batch has come before the one in front of it"
        for place, nonces in [*events.items(), *staged.items(), *keyed.items()]:
            assert len(nonces) == PARTS, f"{place} is there {len(nonces)} times or in part"
            assert len(set(nonces)) == 1, f"{place} is of two callers"
        is_there = self.books.passing.get("passing")
        assert is_there is None or is_there == ("passing" in names), "a table came or went"
        self.books.passing["passing"] = "passing" in names

    def _check_numbered(self, events: dict[tuple[str, int], list[int]], producer: str) -> None:
        numbers = sorted(number for who, number in events if who == producer)
        assert numbers == list(range(1, len(numbers) + 1)), f"{producer}: {numbers}"
        assert len(numbers) >= self.books.numbered[producer], f"{producer} has lost rows"
        # What a server has told of stays.
        self.books.numbered[producer] = len(numbers)

    def _found(self, server: Server, name: str) -> dict[tuple[str, int], list[int]]:
        """By producer and number who wrote the rows that are there."""
        found: dict[tuple[str, int], list[int]] = {}
        for row in server.table(name).to_arrow().to_pylist():
            found.setdefault((row["producer"], row["number"]), []).append(row["nonce"])
        return found

    def go_through(self, lives: int) -> None:
        """So many lives, some tables compacted between them, and a last one that is undisturbed."""
        for _ in range(lives):
            self.live()
            if self.random.random() < 0.3:
                self.compact()
        self.finish()

    def finish(self) -> None:
        """A start that nothing disturbs finds all of it."""
        process = Process(self.disk, calls=NO_LIMIT, failing={})
        self.disk.room = NO_LIMIT
        with self._upon(process):
            server = self._started(process)
            assert server is not None
            server.stop()
        process.end()
        self.disk.on_call = self.disk.fail = None
        assert not self.books.problems, self.books.problems
