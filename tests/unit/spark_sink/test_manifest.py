"""The files of a ticking table: exactly once, atomic, and safe against a kill between any steps."""

from __future__ import annotations

import itertools
import json
import random
from collections import defaultdict
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from spark_sink.manifest import (
    MANIFESTS_KEPT,
    BatchHead,
    Manifest,
    ManifestError,
    ManifestState,
    is_snapshot,
    needs_compaction,
    swept,
    with_base,
    with_batch,
    with_nothing,
)
from spark_sink.manifest_folder import TableFolder

EPOCH = "00000000000000aa"
Change = tuple[str, int, int, int]
"""Change type, row id, version, value."""


class KilledError(BaseException):
    """Stands for SIGKILL: nothing of ours may catch it."""


@dataclass
class Rows:
    """Rows as JSON lists of [change type, row id, version, value]; bases hold [row id, value]."""

    root: Path
    changes: list[Change] = field(default_factory=list)
    whole: bool = True
    interrupted: bool = False

    def write_changes(self, path: Path) -> None:
        self._write(path, self.changes)

    def write_snapshot(self, path: Path) -> None:
        self._write(path, [[i, value] for kind, i, _, value in self.changes if kind == "insert"])

    def is_whole(self, batch: BatchHead) -> bool:
        return self.whole

    def truncates(self, path: Path) -> bool:
        return any(row[0] == "truncate" for row in read_rows(path))

    def write_state(self, state: ManifestState, path: Path) -> None:
        self._write(path, sorted(rows_of(self.root, state).items()))

    def _write(self, path: Path, rows: list) -> None:
        assert not path.exists()
        path.mkdir(parents=True)
        (path / "part-0.json").write_text(json.dumps(rows[: len(rows) // 2]))
        if self.interrupted:
            raise KilledError
        (path / "part-1.json").write_text(json.dumps(rows[len(rows) // 2 :]))


def read_rows(path: Path) -> list:
    return [row for part in sorted(path.iterdir()) for row in json.loads(part.read_text())]


def rows_of(root: Path, state: ManifestState | None) -> dict[int, int]:
    """The rule of the format, by a plain loop: last change wins, deletes go."""
    if state is None:
        return {}
    pairs = [tuple(row) for path in state.bases for row in read_rows(root / path)]
    assert len(pairs) == len({i for i, _ in pairs}), "a row id twice in the bases"
    found = dict(pairs)
    changes = [row for path in state.deltas for row in read_rows(root / path)]
    assert len(changes) == len({(i, v) for _, i, v, _ in changes}), "a change twice"
    for kind, i, _, value in sorted(changes, key=lambda row: row[2]):
        if kind == "truncate":
            continue
        if kind == "delete":
            assert i in found, "a row that is not there was deleted"
            del found[i]
        else:
            assert (kind == "insert") == (i not in found), "born twice, or changed when dead"
            found[i] = value
    return found


@dataclass
class Step:
    """A batch, its rows, and the table as it is after it."""

    batch: BatchHead
    changes: list[Change]
    after: dict[int, int]


def history(seed: int, *, batches: int, query: str = "q") -> list[Step]:
    """Batches as the source makes them: a snapshot in chunks, changes, now and then a resync."""
    chance = random.Random(seed)
    table: dict[int, int] = {}
    ids = itertools.count(0)
    version, sync, number = 0, 0, itertools.count(0)
    steps: list[Step] = []

    def at(row: int) -> BatchHead:
        return BatchHead(query=query, batch=next(number), epoch=EPOCH, version=version, row=row,
                     sync=sync)  # fmt: skip

    def resync() -> None:
        nonlocal sync, version
        sync += 1
        version += 1
        rows = sorted(table.items())
        cut = chance.randrange(len(rows) + 1)
        first = [("truncate", -1, version, 0)] if sync > 1 else []
        shown = steps[-1].after if steps else {}
        first += [("insert", i, version, value) for i, value in rows[:cut]]
        second = [("insert", i, version, value) for i, value in rows[cut:]]
        steps.append(Step(at(cut + 1), first, shown))
        steps.append(Step(at(-1), second, dict(table)))

    for i in itertools.islice(ids, 6):
        table[i] = chance.randrange(100)
    resync()
    while len(steps) < batches:
        if chance.random() < 0.08:
            resync()
            continue
        changes: list[Change] = []
        for _ in range(chance.randrange(1, 4)):
            version += 1
            touched: set[int] = set()
            for _ in range(chance.randrange(3)):
                kind = chance.choice(["insert", "update_postimage", "delete"])
                if kind == "insert":
                    i = next(ids)
                else:
                    living = sorted(set(table) - touched)
                    if not living:
                        continue
                    i = chance.choice(living)
                touched.add(i)
                value = chance.randrange(100)
                changes.append((kind, i, version, value))
                table.pop(i, None)
                if kind != "delete":
                    table[i] = value
        if chance.random() < 0.08:
            # The journal was cut after the batch was planned: the whole table, under the same sync.
            changes = [("truncate", -1, version, 0)]
            changes += [("insert", i, version, value) for i, value in table.items()]
        steps.append(Step(at(-1), changes, dict(table)))
    return steps


def folder(root: Path, **settings) -> TableFolder:
    settings.setdefault("keep_seconds", 0.0)
    return TableFolder(root, seconds=lambda: 0.0, compact_every=3, **settings)


def run(root: Path, table: TableFolder, step: Step, **settings) -> bool:
    return table.apply(step.batch, Rows(root, changes=step.changes, **settings))


@pytest.mark.parametrize("seed", range(20))
def test_each_batch_shows_the_table_as_of_its_end(tmp_path, seed):
    table = folder(tmp_path)
    for step in history(seed, batches=25):
        assert run(tmp_path, table, step)
        assert rows_of(tmp_path, table.manifest.shown) == step.after
        assert table.manifest.batch == step.batch.batch


def test_a_batch_that_runs_again_changes_nothing(tmp_path):
    table = folder(tmp_path)
    steps = history(1, batches=12)
    for step in steps:
        run(tmp_path, table, step)
    before = (tmp_path / "manifest.json").read_bytes()
    for step in steps:
        assert not run(tmp_path, table, step)
    assert (tmp_path / "manifest.json").read_bytes() == before


class KillAt:
    """Raises at the n-th step it is told of."""

    def __init__(self, count: int) -> None:
        self.left = count
        self.steps: list[str] = []

    def __call__(self, step: str) -> None:
        self.steps.append(step)
        self.left -= 1
        if self.left == 0:
            raise KilledError(step)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(2))
def test_a_kill_at_any_step_neither_loses_nor_doubles(tmp_path, seed):
    steps = history(seed, batches=14)
    counting = KillAt(10**9)
    table = folder(tmp_path / "count", between=counting)
    for step in steps:
        run(tmp_path / "count", table, step)
    assert {"cleared", "rows written", "rows synced", "manifest written", "manifest replaced",
            "base written", "base synced", "old file deleted"} == set(counting.steps)  # fmt: skip
    # Each kill runs the history anew, so it is the first, a middle and the last step of each kind.
    places = defaultdict(list)
    for number, step in enumerate(counting.steps, start=1):
        places[step].append(number)
    for kill in sorted({at[i] for at in places.values() for i in (0, len(at) // 2, -1)}):
        survive(tmp_path / str(kill), steps, KillAt(kill))


def survive(root: Path, steps: list[Step], kill: KillAt) -> None:
    """Run all steps; after the kill start again as Spark does: with the batch it cannot know was
    done, or with the one before it as well."""
    table = folder(root, between=kill)
    killed = False
    position = 0
    while position < len(steps):
        try:
            run(root, table, steps[position])
        except KilledError:
            assert not killed
            killed = True
            table = folder(root)
            table.recover()
            done = table.manifest.batch
            assert done in (position - 1, position)
            expected = steps[done].after if done >= 0 else {}
            assert rows_of(root, table.manifest.shown) == expected
            continue
        assert rows_of(root, table.manifest.shown) == steps[position].after
        position += 1
    assert killed
    left = {f"{kind}/{path.name}" for kind in ("d", "base") for path in (root / kind).glob("*")}
    assert left == set(table.manifest.referenced)


def test_a_kill_inside_writing_rows_leaves_nothing_behind(tmp_path):
    steps = history(2, batches=6)
    table = folder(tmp_path)
    for step in steps[:5]:
        run(tmp_path, table, step)
    with pytest.raises(KilledError):
        run(tmp_path, table, steps[5], interrupted=True)
    again = folder(tmp_path)
    assert rows_of(tmp_path, again.manifest.shown) == steps[4].after
    assert run(tmp_path, again, steps[5])
    assert rows_of(tmp_path, again.manifest.shown) == steps[5].after


def test_readers_of_the_last_two_manifests_find_their_files(tmp_path):
    seen: list[tuple[ManifestState, dict[int, int]]] = []
    table = folder(tmp_path)
    original = table._replace

    def replaced(manifest: Manifest) -> None:
        original(manifest)
        for state, rows in seen[-MANIFESTS_KEPT:]:
            assert rows_of(tmp_path, state) == rows
        if manifest.shown is not None:
            seen.append((manifest.shown, rows_of(tmp_path, manifest.shown)))

    table._replace = replaced
    for step in history(3, batches=40):
        run(tmp_path, table, step)
        for state, rows in seen[-MANIFESTS_KEPT:]:
            assert rows_of(tmp_path, state) == rows
    assert len(list((tmp_path / "base").iterdir())) <= 5, "old files are deleted in the end"


def test_old_files_stay_for_a_time_whatever_the_manifests(tmp_path):
    now = [0.0]
    table = TableFolder(tmp_path, seconds=lambda: now[0], compact_every=1, keep_seconds=60)
    steps = history(5, batches=8)
    for step in steps:
        run(tmp_path, table, step)
    many = len(table.manifest.retired)
    assert many > 4
    now[0] = 61.0
    for step in history(6, batches=4, query="r"):
        run(tmp_path, table, step)
    assert len(table.manifest.retired) < many


def test_another_query_begins_anew_while_the_old_rows_stay_in_view(tmp_path):
    table = folder(tmp_path)
    first = history(7, batches=6)
    for step in first:
        run(tmp_path, table, step)
    old = first[-1].after
    second = history(8, batches=5, query="other")
    assert not second[0].batch.row < 0
    run(tmp_path, table, second[0])
    assert rows_of(tmp_path, table.manifest.shown) == old
    run(tmp_path, table, second[1])
    assert rows_of(tmp_path, table.manifest.shown) == second[1].after
    assert table.manifest.generation == 2


def test_a_batch_whose_history_went_away_is_not_shown(tmp_path):
    some = (history(seed, batches=4) for seed in range(100))
    steps = next(
        steps
        for steps in some
        if steps[3].batch.row < 0 and steps[3].after != steps[2].after and steps[2].batch.row < 0
    )
    table = folder(tmp_path)
    for step in steps[:3]:
        run(tmp_path, table, step)
    torn = replace(steps[3], changes=steps[3].changes[:1])
    assert run(tmp_path, table, torn, whole=False)
    assert rows_of(tmp_path, table.manifest.shown) == steps[2].after
    assert table.manifest.batch == steps[3].batch.batch
    assert not run(tmp_path, table, steps[3]), "and it does not come again"


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"format": 2}', '{"format": 1, "x": 1}', "nul"])
def test_what_is_no_manifest_is_said_to_be_none(tmp_path, text):
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(ManifestError):
        folder(tmp_path)


def test_a_manifest_survives_its_text():
    batch = BatchHead(query="q", batch=3, epoch=EPOCH, version=9, row=-1, sync=1)
    manifest = with_batch(Manifest(), batch, "base/1-3", truncates=False, at_seconds=1.5)
    manifest = with_batch(
        manifest, replace(batch, batch=4), "d/1-4", truncates=False, at_seconds=2.5
    )
    manifest = with_base(manifest, "base/1-4", at_seconds=3.5)
    assert Manifest.from_json(manifest.to_json()) == manifest
    assert manifest.shown is not None
    assert manifest.shown.files == ("base/1-4",)
    assert {old.path for old in manifest.retired} == {"base/1-3", "d/1-4"}


def test_rules_at_their_edges():
    batch = BatchHead(query="q", batch=0, epoch=EPOCH, version=1, row=-1, sync=1)
    empty = Manifest()
    assert is_snapshot(empty, batch)
    assert not needs_compaction(empty)
    with pytest.raises(ManifestError):
        with_base(empty, "base/0", at_seconds=0)
    one = with_batch(empty, batch, "base/1-0", truncates=False, at_seconds=0)
    assert not is_snapshot(one, replace(batch, batch=1, version=2))
    assert is_snapshot(one, replace(batch, batch=1, version=2, sync=2))
    assert is_snapshot(one, replace(batch, batch=1, query="other"))
    nothing = with_nothing(one, replace(batch, batch=1))
    assert (nothing.shown, nothing.batch, nothing.number) == (one.shown, 1, one.number + 1)
    deltas = one
    for number in range(1, 9):
        assert not needs_compaction(deltas)
        deltas = with_batch(
            deltas, replace(batch, batch=number), f"d/1-{number}", truncates=False, at_seconds=0
        )
    assert needs_compaction(deltas)
    retired = with_base(deltas, "base/1-8", at_seconds=10)
    later = replace(retired, number=retired.number + MANIFESTS_KEPT)
    assert swept(retired, now_seconds=10**6, keep_seconds=0) == retired
    assert swept(later, now_seconds=10, keep_seconds=1) == later
    assert swept(later, now_seconds=11, keep_seconds=1).retired == ()
