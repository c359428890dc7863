"""Staged batches of one job that come into a table in portions, while attempts are cancelled, sent
again before the first has ended and refused, and others write to the same table.

Once an attempt was told that its batch is committed, the table has the rows of one attempt and all
of them, whatever others had left, and no attempt that still goes on changes anything."""

from __future__ import annotations

import asyncio
import sys
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import pyarrow as pa

from barrage.errors import JournalFullError
from barrage.limits import DEFAULT_LIMITS, Limits
from barrage.server import ServerConfig
from barrage.server.ingest import commit_portions, portions, stage_commit
from barrage.server.ingest.commit_portions import CommitAttempt
from barrage.server.ingest.stage_commit import CommitRequest, Committed, StageCommitter
from barrage.server.ingest.staging import BatchName, StagingArea
from barrage.server.journaling.journal_service import JournalService
from barrage.server.tables.table_service import Change
from tests.interleaving.whole import Whole, run_whole

BATCHES = 3
ATTEMPTS_MAX = 8
PORTION = 2
SCHEMA = pa.schema([("k", pa.int64()), ("batch", pa.int64()), ("attempt", pa.int64())])
OTHERS = 1000
"""Keys from here on are of others."""


def explore(seed: int) -> None:
    with mock.patch.object(portions, "PORTION_ROWS_MAX", PORTION):
        run_whole(
            lambda whole: Scene(whole).run(),
            seed,
            modules=[commit_portions, stage_commit, sys.modules[__name__]],
        )


class Scene:
    """A driver that commits batch after batch, each until it is told that it is there."""

    def __init__(self, whole: Whole) -> None:
        self.whole, self.random = whole, whole.random
        limits = Limits(ingest_rows_pending_max=self.random.choice((PORTION, 5, 100)))
        self.server = whole.server(
            config=ServerConfig(limits=limits), journal=self.random.choice(("none", "memory"))
        )
        self.refusals = self.random.choice((0.0, 0.1))
        self.rows: dict[int, tuple[int, int]] = {}
        """Key to the batch and the attempt that the row is of."""
        self.others: set[int] = set()
        """Keys of others whose rows are there."""
        self.attempts = self.replacements = 0

    def run(self) -> None:
        honest = JournalService.check_writable

        def refusing(journals: JournalService, *arguments: Any, **named: Any) -> int:
            if self.random.random() < self.refusals:
                raise JournalFullError("no room")
            return honest(journals, *arguments, **named)

        with self.server, mock.patch.object(JournalService, "check_writable", refusing):
            self.tables = self.server._parts.tables
            self.whole.run_async(self.drive)

    async def drive(self) -> None:
        self.staging = StagingArea(DEFAULT_LIMITS, self.server._parts.clock)
        self.committer = StageCommitter(
            self.tables,
            self.server._parts.catalog,
            self.staging,
            pool=None,  # type: ignore[arg-type]  # The loop does such work itself.
            limits=Limits(whole_batch_rows_max=self.random.choice((1, 5))),
        )
        begun: list[asyncio.Task[Any]] = []
        for batch in range(BATCHES):
            mode = self.random.choice(("upsert", "changes", "replace"))
            keys = self.random.sample(range(12), self.random.randint(1, 9))
            if batch:
                begun.append(asyncio.create_task(self.write_as_another(OTHERS + batch)))
            before = set(self.others)
            begun += await self.commit(batch, mode, keys)
            await self.note(batch, mode, keys, before)
        told = await asyncio.gather(*begun, return_exceptions=True)
        errors = [each for each in told if isinstance(each, BaseException)]
        assert all(isinstance(each, JournalFullError | asyncio.CancelledError) for each in errors)
        await self.check()
        assert self.tables.write_room.rows_pending == 0
        assert not self.committer._turns

    async def commit(self, batch: int, mode: str, keys: list[int]) -> list[asyncio.Task[Any]]:
        """Until one attempt is told that the batch is there; all of them, some of which go on."""
        begun: list[asyncio.Task[Committed]] = []
        while True:
            self.attempts += 1
            task = asyncio.create_task(self.attempt(batch, mode, keys, self.attempts))
            begun.append(task)
            await self.whole.pause_async()
            fate = self.random.random() if len(begun) < ATTEMPTS_MAX else 1
            if fate < 0.4:
                await asyncio.wait([task], timeout=self.random.choice((0, 0.01, 0.05)))
                task.cancel()
            elif fate > 0.6 and await self.is_told(task):
                return begun

    async def is_told(self, task: asyncio.Task[Committed]) -> bool:
        try:
            await task
        except JournalFullError:
            return False
        return True

    async def attempt(self, batch: int, mode: str, keys: list[int], number: int) -> Committed:
        name = BatchName(table="t", writer="job", batch=batch)
        part = self.staging.open(name, 0, number)
        rows = pa.table([keys, [batch] * len(keys), [number] * len(keys)], schema=SCHEMA)
        if mode == "changes":
            kinds = ["insert" if is_coming(key, mode) else "delete" for key in keys]
            rows = rows.append_column("_change_type", pa.array(kinds))
        for each in rows.to_batches():
            self.staging.add(part, each, each.nbytes)
        self.staging.complete(part, rows.schema)
        request = CommitRequest(
            name=name,
            staged=((0, number),),
            mode=mode,
            key=("k",),
            is_created=True,
            schema=SCHEMA,
        )
        return await self.committer.commit(request)

    async def write_as_another(self, key: int) -> None:
        await self.whole.pause_async()
        replacements = self.replacements
        table = (await asyncio.wrap_future(self.tables.look_up("t"))).table
        row = pa.table([[key], [-1], [-1]], schema=SCHEMA)
        change = Change(table, "stage_upsert", (row,))  # type: ignore[arg-type]
        try:
            await asyncio.wrap_future(self.tables.change([change]))
        except JournalFullError:
            return
        if replacements == self.replacements:
            # Otherwise it may have come before the replacement.
            self.others.add(key)

    # --- what is there ---

    async def note(self, batch: int, mode: str, keys: list[int], before: set[int]) -> None:
        """The batch has been committed; ``before`` it, others had written these keys."""
        there = await self.found()
        attempts = {attempt for of, attempt in there.values() if of == batch}
        assert len(attempts) <= 1, f"rows of attempts {attempts} at batch {batch}"
        if mode == "replace":
            self.rows.clear()
            self.replacements += 1
            assert not before & set(there), "rows have outlived a replacement"
            self.others &= set(there)
        for key in keys:
            self.rows.pop(key, None)
            if is_coming(key, mode):
                self.rows[key] = (batch, max(attempts, default=0))
        await self.check()

    async def check(self) -> None:
        others = set(self.others)
        there = await self.found()
        own = {key: row for key, row in there.items() if key < OTHERS}
        assert own == self.rows, f"{own} is there, and not {self.rows}"
        assert others <= set(there), "a row of others is lost"

    async def found(self) -> dict[int, tuple[int, int]]:
        table = (await asyncio.wrap_future(self.tables.look_up("t"))).table
        rows = await asyncio.wrap_future(self.tables.run(table.to_arrow))
        return {row["k"]: (row["batch"], row["attempt"]) for row in rows.to_pylist()}


def is_coming(key: int, mode: str) -> bool:
    """A change feed also has rows that go."""
    return mode != "changes" or key % 3 > 0


# --- canaries -------------------------------------------------------------------------------------


def number_the_first_portion() -> AbstractContextManager[object]:
    """The number comes with the first rows, not the last."""

    def stage(self, number, portion, taken, *, is_last):
        return honest(self, number, portion, taken, is_last=number == 0)

    honest = CommitAttempt._stage
    return mock.patch.object(CommitAttempt, "_stage", stage)


def leave_out_what_was_cancelled() -> AbstractContextManager[object]:
    """A portion is staged also when one before it was not."""

    def stage(self, number, portion, taken, *, is_last):
        self._staged_count = number
        return honest(self, number, portion, taken, is_last=is_last)

    honest = CommitAttempt._stage
    return mock.patch.object(CommitAttempt, "_stage", stage)


def mix_attempts() -> AbstractContextManager[object]:
    """Two attempts at one batch come at once."""

    class Open:
        async def __aenter__(self):
            """For everybody."""

        async def __aexit__(self, *_):
            """Nobody waits."""

    return mock.patch.object(StageCommitter, "_turn", return_value=Open())


CANARIES = (number_the_first_portion, leave_out_what_was_cancelled, mix_attempts)
