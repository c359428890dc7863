"""A staged batch of many rows for a table with a key: in portions, with its number at the end, and
in the end as if it had come at once, whatever interrupts it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import barrage
from barrage.errors import JournalFullError
from barrage.limits import DEFAULT_LIMITS, Limits
from barrage.server.ingest import portions as portions_module
from barrage.server.ingest.commit_portions import UnknownWriterError
from barrage.server.ingest.pinned_keys import PinnedKeys
from barrage.server.ingest.stage_commit import CommitRequest, Committed, StageCommitter
from barrage.server.ingest.staging import BatchName, StagingArea
from barrage.server.settings.config import ServerConfig
from barrage.server.tables.table_service import Change, TableRecipe, TableService
from barrage.server.tables.write_room import WriteRoom

LIMIT, PORTION, ROOM = 8, 4, 8
SCHEMA = pa.schema({"k": pa.int64(), "v": pa.int64()})
UPSERT: dict[str, Any] = {"mode": "upsert", "key": ("k",), "is_created": True}
WHOLE = Limits()


class Staged:
    """A server, and committers of what is staged there."""

    def __init__(self, server: barrage.Server) -> None:
        self.server = server
        self.tables = server._parts.tables
        self.staging = StagingArea(DEFAULT_LIMITS, server._parts.clock)
        self.pool = ThreadPoolExecutor(2)
        self.small = self.committer(Limits(whole_batch_rows_max=LIMIT))

    def committer(self, limits: Limits) -> StageCommitter:
        return StageCommitter(
            self.tables, self.server._parts.catalog, self.staging, pool=self.pool, limits=limits
        )

    def request(
        self, rows: pa.Table, *, batch: int = 0, table: str = "t", **options: Any
    ) -> CommitRequest:
        """Stage rows in two parts; the commit of them."""
        name = BatchName(table=table, writer="w", batch=batch)
        half = len(rows) // 2
        staged = []
        for partition, part in enumerate((rows.slice(0, half), rows.slice(half))):
            attempt = self.staging.part_count
            opened = self.staging.open(name, partition, attempt)
            for each in part.to_batches():
                self.staging.add(opened, each, each.nbytes)
            self.staging.complete(opened, rows.schema)
            staged.append((partition, attempt))
        return CommitRequest(name=name, staged=tuple(staged), **{**UPSERT, **options})

    def commit(self, rows: pa.Table, *, limits: Limits | None = None, **options: Any) -> Committed:
        committer = self.small if limits is None else self.committer(limits)
        return asyncio.run(committer.commit(self.request(rows, **options)))

    def rows(self, table: str = "t") -> list[dict[str, Any]]:
        return in_order(self.server.table(table).to_arrow().to_pylist())

    def position(self, table: str = "t") -> int | None:
        found = self.tables.look_up(table).result().table
        return self.tables.position(found, "w").result()  # type: ignore[arg-type]

    def write(self, table: str, rows: pa.Table) -> Any:
        """As somebody else; not waited for, so that the engine thread may call it."""
        found = self.server._parts.catalog.find(table)
        assert found is not None
        return self.tables.change([Change(found.table, "stage_upsert", (rows,))])  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def _small_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(portions_module, "PORTION_ROWS_MAX", PORTION)


def config(**options: Any) -> ServerConfig:
    return ServerConfig(limits=Limits(ingest_rows_pending_max=ROOM), **options)


@pytest.fixture
def staged() -> Iterator[Staged]:
    with barrage.Server(config=config(), journal="memory") as server:
        made = Staged(server)
        yield made
        assert made.tables.write_room.rows_pending == 0
        assert not made.small._turns
        made.pool.shutdown()


class Noted:
    """What was staged in tables but those about the server, in order, and what is to happen before
    some of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps: list[tuple[str, int, bool]] = []
        """Operation, rows, and whether a number came with them."""
        self.before: dict[int, Callable[[], object]] = {}
        original = TableService.stage_now

        def noting(tables: TableService, changes: Any, producer: Any = None) -> Any:
            about_the_server = {p.table for p in tables._catalog if p.name.startswith("_")}
            if about_the_server.intersection(change.table for change in changes):
                return original(tables, changes, producer)
            number = len(self.steps)
            for change in changes:
                told = (change.operation, len(change.arguments[0]), producer is not None)
                self.steps.append(told)
            self.before.pop(number, lambda: None)()
            return original(tables, changes, producer)

        monkeypatch.setattr(TableService, "stage_now", noting)


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> Noted:
    return Noted(monkeypatch)


def in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=repr)


def table_of(keys: range | list[int], v: int = 0) -> pa.Table:
    return pa.table([list(keys), [v] * len(keys)], schema=SCHEMA)


def listed(keys: range | list[int], v: int = 0) -> list[dict[str, Any]]:
    return in_order([{"k": k, "v": v} for k in keys])


def refuse() -> None:
    raise JournalFullError("no room")


# --- portions -------------------------------------------------------------------------------------


def test_a_batch_at_the_limit_is_one_step_and_one_past_it_is_several(staged, noted) -> None:
    staged.commit(table_of(range(LIMIT)))
    assert noted.steps == [("stage_upsert", LIMIT, True)]
    noted.steps.clear()
    done = staged.commit(table_of(range(LIMIT + 1), 1), batch=1)
    assert noted.steps == [
        ("stage_upsert", PORTION, False),
        ("stage_upsert", PORTION, False),
        ("stage_upsert", 1, True),
    ]
    assert (done.row_count, done.is_duplicate) == (LIMIT + 1, False)
    assert staged.rows() == listed(range(LIMIT + 1), 1)
    assert staged.position() == 1


def test_the_rows_of_all_steps_count(staged, noted) -> None:
    staged.commit(table_of(range(20)), limits=WHOLE)
    noted.steps.clear()
    kinds = ["delete"] * 4 + ["insert"] * 4
    for more in (0, 1):
        feed = feed_of([*kinds, *["insert"] * more], [1] * (8 + more), [*range(8 + more)])
        staged.commit(feed, mode="changes", batch=1 + more)
    assert noted.steps == [
        ("stage_remove", 4, True),
        ("stage_upsert", 4, True),
        ("stage_remove", 4, False),
        ("stage_upsert", 4, False),
        ("stage_upsert", 1, True),
    ]


def test_rows_of_many_columns_count_for_several(staged, noted) -> None:
    wide = pa.table({"k": range(5), **{f"v{number}": [0] * 5 for number in range(4)}})
    staged.commit(wide.slice(0, 4))
    staged.commit(wide, batch=1)
    assert [step[1:] for step in noted.steps] == [(4, True), (2, False), (2, False), (1, True)]


def test_rows_below_which_much_hangs_count_for_several(staged, noted) -> None:
    staged.commit(table_of(range(LIMIT)))
    table = staged.tables.look_up("t").result().table
    table.weight_below = 2
    noted.steps.clear()
    staged.commit(table_of(range(LIMIT // 2), 1), batch=1)
    staged.commit(table_of(range(LIMIT // 2 + 1), 2), batch=2)
    assert [step[1:] for step in noted.steps] == [(4, True), (2, False), (2, False), (1, True)]


def test_the_rows_that_were_sent_are_told(staged) -> None:
    assert staged.commit(table_of([1, 2, 1])).row_count == 3
    assert staged.commit(table_of([*range(20), *range(20)]), batch=1).row_count == 40


def test_a_table_without_key_takes_all_rows_at_once(staged, noted) -> None:
    for name, mode in (("log", "append"), ("list", "replace")):
        staged.commit(table_of(range(50)), table=name, mode=mode, key=())
        assert staged.rows(name) == listed(range(50))
    assert noted.steps == [("stage_add", 50, True), ("stage_replace", 50, True)]


def test_what_others_write_comes_in_between(staged, noted) -> None:
    staged.server.create_table("other", SCHEMA, key="k")
    others: list[Any] = []
    noted.before[2] = lambda: others.append(staged.write("other", table_of([1])))
    done = staged.commit(table_of(range(100)))
    assert others[0].result() < done.version
    changes = staged.tables.journals.journal_named("t")
    assert changes.durable_version == done.version
    assert staged.rows() == listed(range(100))


def test_few_rows_wait_for_the_engine_at_a_time(staged, noted, monkeypatch) -> None:
    pending: list[int] = []
    noting = TableService.stage_now

    def watched(tables: TableService, changes: Any, producer: Any = None) -> Any:
        pending.append(tables.write_room.rows_pending)
        return noting(tables, changes, producer)

    monkeypatch.setattr(TableService, "stage_now", watched)
    staged.commit(table_of(range(100)))
    assert max(pending) <= ROOM


def test_the_number_is_there_once_the_last_rows_are(staged, noted) -> None:
    staged.commit(table_of([]))
    seen: list[tuple[int, int | None]] = []

    def look() -> None:
        table = staged.server._parts.catalog.find("t").table
        seen.append((table.size, staged.tables.journals.positions.last(table, "w")))

    noted.before.update(dict.fromkeys(range(1, 6), look))
    staged.commit(table_of(range(20)), batch=1)
    assert [number for _, number in seen] == [0] * 5
    assert seen[-1][0] >= 8
    assert staged.position() == 1


# --- interruptions --------------------------------------------------------------------------------


def commit_interrupted(staged: Staged, noted: Noted, rows: pa.Table, **options: Any) -> None:
    """A commit whose caller goes away at the third portion."""

    async def scene() -> None:
        loop, reached = asyncio.get_running_loop(), asyncio.Event()
        commit = asyncio.create_task(staged.small.commit(staged.request(rows, **options)))
        at = len(noted.steps) + 2
        noted.before[at] = lambda: loop.call_soon_threadsafe(reached.set)
        await reached.wait()
        commit.cancel()
        with pytest.raises(asyncio.CancelledError):
            await commit

    asyncio.run(scene())
    staged.tables.graph_step().result()


def commit_refused(staged: Staged, noted: Noted, rows: pa.Table, **options: Any) -> None:
    """A commit whose third portion the journal refuses."""
    noted.before[len(noted.steps) + 2] = refuse
    with pytest.raises(JournalFullError):
        staged.commit(rows, **options)


@pytest.mark.parametrize("interrupted", [commit_interrupted, commit_refused])
def test_a_batch_is_made_whole_by_the_next_commit_of_it(staged, noted, interrupted) -> None:
    staged.commit(table_of(range(10), 7))
    interrupted(staged, noted, table_of(range(5, 65), 1), batch=1)
    assert staged.position() == 0
    there = staged.rows()
    assert listed(range(10), 7) != there != in_order(listed(range(5), 7) + listed(range(5, 65), 1))
    table, trail = staged.server._parts.catalog.find("t").table, []
    table.trails.append(trail)
    again = staged.commit(table_of(range(5, 65), 1), batch=1)
    assert not again.is_duplicate
    assert staged.position() == 1
    assert staged.rows() == in_order(listed(range(5), 7) + listed(range(5, 65), 1))
    # What was there ticks no more.
    touched = sum(len(each.added_keys_post) + len(each.modified_keys_post[1]) for each in trail)
    assert touched == 60 - sum(row["v"] == 1 for row in there)
    assert staged.commit(table_of(range(5, 65), 1), batch=1).is_duplicate


def test_after_a_portion_that_was_refused_none_is_taken(staged, noted) -> None:
    staged.commit(table_of([]))
    commit_refused(staged, noted, table_of(range(60)), batch=1)
    staged.tables.graph_step().result()
    assert staged.rows() == listed(range(8))
    assert noted.steps[1:] == [("stage_upsert", PORTION, False)] * 3


def test_a_server_that_was_stopped_half_way_goes_on(tmp_path: Path, noted) -> None:
    def server() -> barrage.Server:
        return barrage.Server(config=config(data=str(tmp_path)), journal="durable")

    with server() as running:
        commit_refused(Staged(running), noted, table_of(range(60)))
    with server() as running:
        staged = Staged(running)
        assert staged.rows() == listed(range(8))
        assert staged.position() is None
        assert not staged.commit(table_of(range(60))).is_duplicate
    with server() as running:
        staged = Staged(running)
        assert staged.rows() == listed(range(60))
        assert staged.commit(table_of(range(60))).is_duplicate


def test_a_commit_that_was_overtaken_by_its_retry_writes_no_more(staged, monkeypatch) -> None:
    rows = table_of(range(40), 1)
    take, taken = WriteRoom.take, []

    async def scene() -> tuple[Committed, Committed]:
        stalled, go_on = asyncio.Event(), asyncio.Event()

        async def stalling(room: WriteRoom, count: int) -> Any:
            taken.append(count)
            if len(taken) == 3:
                stalled.set()
                await go_on.wait()
            return await take(room, count)

        monkeypatch.setattr(WriteRoom, "take", stalling)
        late = asyncio.create_task(staged.small.commit(staged.request(rows)))
        await stalled.wait()
        retry = staged.committer(Limits(whole_batch_rows_max=LIMIT))
        done = await retry.commit(staged.request(rows))
        await asyncio.wrap_future(staged.write("t", table_of(range(40), 2)))
        go_on.set()
        return done, await late

    done, late = asyncio.run(scene())
    assert (done.is_duplicate, late.is_duplicate) == (False, True)
    assert staged.rows() == listed(range(40), 2)
    assert staged.position() == 0


# --- commits beside each other --------------------------------------------------------------------


def at_once(*commits: Coroutine[Any, Any, Committed]) -> list[Committed]:
    async def scene() -> list[Committed]:
        return list(await asyncio.gather(*commits))

    return asyncio.run(scene())


def test_two_attempts_at_a_batch_do_not_mix(staged) -> None:
    for batch in range(5):
        requests = [staged.request(table_of(range(40), v), batch=batch) for v in (1, 2)]
        told = at_once(*(staged.small.commit(request) for request in requests))
        assert [each.is_duplicate for each in told] == [False, True]
        assert staged.rows() == listed(range(40), 1)


def test_batches_of_a_writer_come_one_after_the_other(staged, noted) -> None:
    requests = [staged.request(table_of(range(40), v), batch=v) for v in range(3)]
    told = at_once(*(staged.small.commit(request) for request in requests))
    assert [each.is_duplicate for each in told] == [False] * 3
    assert [number for number, step in enumerate(noted.steps) if step[2]] == [9, 19, 29]
    assert staged.rows() == listed(range(40), 2)


def test_writers_do_not_wait_for_each_other(staged, noted) -> None:
    staged.server.create_table("t", SCHEMA, key="k")
    first = staged.request(table_of(range(40)))
    other = staged.request(table_of(range(40, 44)), table="other")

    async def scene() -> list[int]:
        commits = [asyncio.create_task(staged.small.commit(each)) for each in (first, other)]
        return [(await commit).version for commit in commits]

    last, between = asyncio.run(scene())
    assert between < last


# --- tables that come and go ----------------------------------------------------------------------


def test_a_table_is_made_by_the_first_portion(staged, noted) -> None:
    seen: list[int] = []
    noted.before[1] = lambda: seen.append(staged.server._parts.catalog.find("t") is not None)
    done = staged.commit(table_of(range(30)))
    assert seen == [True]
    assert done.row_count == 30
    assert staged.rows() == listed(range(30))


def test_a_table_whose_first_portion_is_refused_is_not_made(staged, noted) -> None:
    noted.before[0] = refuse
    with pytest.raises(JournalFullError):
        staged.commit(table_of(range(30)))
    staged.tables.graph_step().result()
    assert "t" not in staged.server.table_names()
    assert not staged.commit(table_of(range(30))).is_duplicate
    assert staged.rows() == listed(range(30))


def test_a_table_that_is_replaced_half_way_gets_all_rows(staged, noted) -> None:
    staged.server.create_table("t", SCHEMA, key="k")

    def replace() -> None:
        staged.tables._drop("t")
        staged.tables.create_now(recipe, None)

    recipe = TableRecipe.checked("t", SCHEMA, key="k")
    noted.before[3] = replace
    assert not staged.commit(table_of(range(30))).is_duplicate
    assert staged.rows() == listed(range(30))
    assert staged.position() == 0


def test_a_table_that_is_dropped_half_way_is_made_anew_unless_its_writer_relies_on_it(
    staged, noted
) -> None:
    def drop() -> None:
        staged.tables._drop("t")

    noted.before[3] = drop
    assert not staged.commit(table_of(range(30))).is_duplicate
    assert staged.rows() == listed(range(30))
    noted.before[len(noted.steps) + 3] = drop
    with pytest.raises(UnknownWriterError):
        staged.commit(table_of(range(30), 1), batch=1)
    staged.tables.graph_step().result()
    assert "t" not in staged.server.table_names()


# --- change feeds ---------------------------------------------------------------------------------


def feed_of(kinds: list[str], versions: list[int], keys: list[int], v: int = 5) -> pa.Table:
    columns = {"_change_type": kinds, "_commit_version": versions, "k": keys, "v": [v] * len(keys)}
    return pa.table(columns)


def test_a_change_feed_in_portions_leaves_what_it_leaves_at_once(staged, noted) -> None:
    kinds = ["delete", "insert", "update_postimage", "insert"] * 15
    keys = [(7 * number) % 40 for number in range(60)]
    feed = feed_of(kinds, list(range(60)), keys)
    for table, limits in (("t", None), ("reference", WHOLE)):
        staged.commit(table_of(range(30)), table=table, limits=WHOLE)
        staged.commit(feed, table=table, batch=1, mode="changes", limits=limits)
    assert staged.rows() == staged.rows("reference")
    removals = [step for step in noted.steps if step[0] == "stage_remove"]
    assert len(removals) > 2


def test_a_feed_that_truncates_replaces(staged) -> None:
    staged.commit(table_of(range(30)), limits=WHOLE)
    feed = feed_of(["truncate", *["insert"] * 20], list(range(21)), [0, *range(20, 40)])
    staged.commit(feed, batch=1, mode="changes")
    assert staged.rows() == listed(range(20, 40), 5)


# --- replacements ---------------------------------------------------------------------------------

WORDS = pa.dictionary(pa.int32(), pa.string())
FLOATS = [0.0, -0.0, float("nan"), *(number / 4 for number in range(1, 30))]
KEYS: dict[str, tuple[pa.DataType, list[Any], list[Any]]] = {
    "whole numbers": (pa.int64(), [*range(30)], [*range(20, 50)]),
    "texts": (pa.string(), [f"{n:0300}" for n in range(30)], [f"{n:0300}" for n in range(9, 40)]),
    "words": (WORDS, [f"w{n}" for n in range(30)], [f"w{n}" for n in range(50, 9, -1)]),
    "nought": (pa.float64(), FLOATS, [-0.0, *FLOATS[5:]]),
    "minus nought": (pa.float64(), FLOATS, [0.0, *FLOATS[2:20]]),
    "fixed bytes": (
        pa.binary(3),
        [b"%03d" % n for n in range(30)],
        [b"%03d" % n for n in range(9)],
    ),
    "nothing in common": (pa.int64(), [*range(30)], [*range(100, 130)]),
    "the same": (pa.int64(), [*range(30)], [*range(30)]),
}


def keyed_by(kind: pa.DataType, keys: list[Any]) -> pa.Table:
    """Rows with a key of two columns, the second of which says nothing."""
    return pa.table({"k": pa.array(keys, kind), "l": [1] * len(keys), "v": [*range(len(keys))]})


@pytest.mark.parametrize("kind", KEYS)
def test_a_replacement_in_portions_leaves_what_it_leaves_at_once(staged, noted, kind) -> None:
    data_type, before, after = KEYS[kind]
    for table, limits in (("t", None), ("reference", WHOLE)):
        options: dict[str, Any] = {"table": table, "key": ("k", "l")}
        staged.commit(keyed_by(data_type, before), limits=WHOLE, **options)
        noted.steps.clear()
        rows = keyed_by(data_type, after)
        staged.commit(rows, batch=1, mode="replace", limits=limits, **options)
        if limits is None:
            assert len(noted.steps) > 2
            assert [step[2] for step in noted.steps] == [False] * (len(noted.steps) - 1) + [True]
    assert repr(staged.rows()) == repr(staged.rows("reference"))
    assert len(staged.rows()) == len(after)


def test_a_replacement_ticks_only_what_is_different(staged) -> None:
    staged.commit(table_of(range(30)), limits=WHOLE)
    trail: list[Any] = []
    staged.server._parts.catalog.find("t").table.trails.append(trail)
    staged.commit(table_of(range(5, 40)), batch=1, mode="replace")
    assert sum(len(each.added_keys_post) for each in trail) == 10
    assert sum(len(each.removed_keys_pre) for each in trail) == 5
    assert not any(len(each.modified_keys_post[1]) for each in trail)


@pytest.mark.parametrize("interrupted", [commit_interrupted, commit_refused])
@pytest.mark.parametrize("size", [3, 25])
def test_a_replacement_is_made_whole_by_the_next_commit_of_it(
    staged, noted, interrupted, size
) -> None:
    """Interrupted among the rows that come, or among the keys that go."""
    staged.commit(table_of(range(100, 160), 7), limits=WHOLE)
    rows = table_of(range(size), 1)
    limits = Limits(whole_batch_rows_max=2)
    staged.small = staged.committer(limits)
    interrupted(staged, noted, rows, batch=1, mode="replace")
    assert staged.position() == 0
    assert len(staged.rows()) > size
    assert not staged.commit(rows, batch=1, mode="replace").is_duplicate
    assert staged.rows() == listed(range(size), 1)
    assert staged.position() == 1


def test_rows_that_come_after_the_keys_were_read_stay(staged, monkeypatch) -> None:
    staged.commit(table_of(range(30)), limits=WHOLE)
    absent_from = PinnedKeys.absent_from

    def writing(keys: PinnedKeys, rows: pa.Table) -> pa.Table:
        staged.write("t", table_of([99, 35], 9)).result()
        return absent_from(keys, rows)

    monkeypatch.setattr(PinnedKeys, "absent_from", writing)
    staged.commit(table_of(range(20, 40), 1), batch=1, mode="replace")
    keys = [key for key in range(20, 40) if key != 35]
    assert staged.rows() == in_order(listed(keys, 1) + listed([35, 99], 9))


def test_a_replacement_makes_its_table(staged) -> None:
    staged.commit(table_of(range(30)), mode="replace")
    assert staged.rows() == listed(range(30))
    assert staged.position() == 0
