"""Whole queries through crashes, cut journals and new epochs: in the end the sink has the rows of
the table, and on the way no row came twice and none was missed."""

from __future__ import annotations

import random

import pytest

from spark_sink.offsets import SYMBOLIC, Offset
from spark_sink.options import Start
from spark_sink.planning import EMPTY, DataLossError, Head, OffsetChooser, ReadLimits, plan_batch
from tests.unit.spark_sink.journal_model import HistoryGoneError, JournalModel
from tests.unit.spark_sink.spark_model import KilledError, Query

SNAPSHOT = Start(word="snapshot")
LIMITS = (
    ReadLimits(),
    ReadLimits(rows_max=3),
    ReadLimits(rows_max=10),
    ReadLimits(bytes_max=70),
    ReadLimits(rows_max=1, bytes_max=1000),
)


def disturb(prng: random.Random, journal: JournalModel, *, faults: bool) -> None:
    """What may happen to a table at any moment."""
    chance = prng.random()
    if chance < 0.25:
        for _ in range(prng.randrange(1, 4)):
            journal.commit()
    elif faults and chance < 0.29:
        journal.truncate()
    elif faults and chance < 0.31:
        journal.begin_epoch()


def run(seed: int, *, fails: bool, faults: bool, kills: float) -> tuple[Query, JournalModel, int]:
    """One query through 60 triggers full of trouble and then in peace; how often history was
    lost."""
    prng = random.Random(seed)
    journal = JournalModel(prng)
    for _ in range(prng.randrange(20)):
        journal.commit()
    limits = prng.choice(LIMITS)
    losses = 0

    def begin() -> Query:
        query = Query(
            journal,
            prng,
            start=SNAPSHOT,
            fails=fails,
            limits=limits,
            is_overwriting=prng.random() < 0.5,
        )
        query.kill_chance = kills
        query.between = lambda: disturb(prng, journal, faults=faults)
        return query

    query = begin()
    for _ in range(60):
        try:
            query.run_batch()
            disturb(prng, journal, faults=faults)
        except KilledError:
            query.restart()
        except HistoryGoneError:
            query.restart()  # the task failed four times, the query with it
        except DataLossError:
            losses += 1
            query = begin()  # somebody read the message and made a new checkpoint
    query.between, query.kill_chance = lambda: None, 0.0
    try:
        query.run_until_idle()
    except DataLossError:
        losses += 1
        query = begin()
        query.between, query.kill_chance = lambda: None, 0.0
        query.run_until_idle()
    return query, journal, losses


@pytest.mark.parametrize("seed", range(150))
def test_going_on_after_a_loss_ends_with_the_rows_of_the_table(seed):
    query, journal, _ = run(seed, fails=False, faults=True, kills=0.1)
    assert query.sink.rows == journal.states[journal.version]


@pytest.mark.parametrize("seed", range(100))
def test_failing_on_a_loss_ends_with_the_rows_of_the_table(seed):
    query, journal, _ = run(seed, fails=True, faults=True, kills=0.1)
    assert query.sink.rows == journal.states[journal.version]


@pytest.mark.parametrize("seed", range(60))
def test_crashes_alone_are_no_loss(seed):
    query, journal, losses = run(seed, fails=True, faults=False, kills=0.2)
    assert losses == 0
    assert query.sink.rows == journal.states[journal.version]
    assert query.offsets[-1].sync == 1, "one snapshot is enough"


def test_losses_do_happen_in_these_runs():
    losses = [run(seed, fails=True, faults=True, kills=0.1)[2] for seed in range(40)]
    syncs = [
        run(seed, fails=False, faults=True, kills=0.1)[0].offsets[-1].sync for seed in range(40)
    ]
    assert sum(losses) > 10
    assert sum(sync > 1 for sync in syncs) > 10


def test_the_oracle_sees_a_source_that_skips_a_version():
    prng = random.Random(1)
    journal = JournalModel(prng)
    query = Query(journal, prng, start=SNAPSHOT, fails=True, limits=ReadLimits())
    query.run_until_idle()

    def run_all() -> None:
        for _ in range(30):
            journal.commit()
            query.run_batch()
            # The log claims one version more than was read.
            journal.commit()
            last = query.offsets[-1]
            query.offsets[-1] = Offset(last.epoch, journal.version, last.row, last.sync)
        query.run_until_idle()
        assert query.sink.rows == journal.states[journal.version]

    with pytest.raises(AssertionError):
        run_all()


def test_the_oracle_sees_a_sink_that_applies_a_batch_twice():
    prng = random.Random(1)
    journal = JournalModel(prng)
    for _ in range(5):
        journal.commit()
    query = Query(journal, prng, start=SNAPSHOT, fails=True, limits=ReadLimits())
    query.run_batch()
    query.sink.batch = -1
    query.commits = 0
    with pytest.raises(AssertionError, match="comes twice"):
        query.run_batch()


# --- single rules ---------------------------------------------------------------------------------


def scene(commits: int = 10) -> tuple[JournalModel, random.Random]:
    prng = random.Random(7)
    journal = JournalModel(prng)
    for _ in range(commits):
        journal.commit()
    return journal, prng


def chooser(journal: JournalModel, start: Start = SNAPSHOT, *, fails: bool = True) -> OffsetChooser:
    return OffsetChooser(journal, table="t", start=start, fails_on_data_loss=fails)


def test_nothing_new_is_the_same_offset_and_asks_nobody():
    journal, _ = scene()
    offset = Offset(journal.epoch, journal.version, -1, 1)
    journal.facts = None  # type: ignore[assignment]
    assert chooser(journal).next_offset(offset, journal.head, ReadLimits()) is offset


def test_a_head_older_than_the_journal_is_not_passed():
    journal, _ = scene()
    old = journal.head
    start = Offset(journal.epoch, journal.earliest, -1, 1)
    journal.commit()
    assert chooser(journal).next_offset(start, old, ReadLimits()).version == old.version


@pytest.mark.parametrize("word", ["latest", "earliest"])
def test_a_start_without_snapshot_has_an_empty_first_batch(word):
    journal, _ = scene()
    picked = chooser(journal, Start(word=word)).next_offset(SYMBOLIC, journal.head, ReadLimits())
    version = journal.version if word == "latest" else journal.earliest
    assert picked == Offset(journal.epoch, version, -1, 0)
    journal.commit()
    plan = plan_batch(SYMBOLIC, picked, journal.facts(), table="t", fails_on_data_loss=True)
    assert plan == EMPTY


def test_a_start_at_a_version_has_the_changes_of_that_version():
    journal, _ = scene()
    version = sorted(journal.entries)[4]
    picked = chooser(journal, Start(version=version)).next_offset(
        SYMBOLIC, journal.head, ReadLimits()
    )
    assert picked == Offset(journal.epoch, version - 1, -1, 0)


def test_a_start_at_a_time_has_the_changes_at_that_time():
    journal, _ = scene()
    versions = sorted(journal.entries)
    at = journal.times[versions[4]]
    for time_us, before in ((at, versions[3]), (at + 1, versions[4])):
        picked = chooser(journal, Start(time_us=time_us)).next_offset(
            SYMBOLIC, journal.head, ReadLimits()
        )
        assert picked == Offset(journal.epoch, before, -1, 0)


@pytest.mark.parametrize("start", [Start(version=10_000), Start(time_us=1)])
def test_a_start_outside_the_journal_names_its_option(start):
    journal, _ = scene()
    with pytest.raises(DataLossError, match=start.option):
        chooser(journal, start).next_offset(SYMBOLIC, journal.head, ReadLimits())


def test_a_start_at_a_lost_offset_is_a_loss():
    journal, _ = scene()
    start = Start(offset=Offset("f" * 16, 3))
    with pytest.raises(DataLossError, match="failOnDataLoss"):
        chooser(journal, start).next_offset(SYMBOLIC, journal.head, ReadLimits())
    picked = chooser(journal, start, fails=False).next_offset(SYMBOLIC, journal.head, ReadLimits())
    assert picked == Offset(journal.epoch, journal.version, -1, 1)


def test_a_snapshot_in_pieces_has_every_row_once():
    journal, prng = scene(40)
    query = Query(journal, prng, start=SNAPSHOT, fails=True, limits=ReadLimits(rows_max=3))
    query.run_until_idle()
    rows = len(journal.states[journal.version])
    assert len(query.offsets) == -(-rows // 3)
    assert [offset.row >= 0 for offset in query.offsets] == [True] * (len(query.offsets) - 1) + [
        False
    ]
    assert query.sink.applied == rows


def test_the_target_of_a_run_is_not_passed_and_reached():
    journal, prng = scene()
    query = Query(journal, prng, start=SNAPSHOT, fails=True, limits=ReadLimits(rows_max=2))
    query.chooser.note_target(journal.head)
    target = journal.version
    query.between = journal.commit
    query.run_until_idle()
    assert query.offsets[-1].version == target < journal.version


def test_a_target_of_a_lost_epoch_still_lets_the_run_end():
    journal, prng = scene()
    query = Query(journal, prng, start=SNAPSHOT, fails=False, limits=ReadLimits())
    query.chooser.note_target(journal.head)
    query.run_batch()
    journal.begin_epoch()
    query.run_until_idle()
    assert query.sink.rows == journal.states[journal.version]


def test_a_journal_that_went_back_is_a_loss():
    journal, _ = scene()
    ahead = Offset(journal.epoch, journal.version + 5, -1, 1)
    with pytest.raises(DataLossError, match=f"ends at version {journal.version}"):
        chooser(journal).next_offset(ahead, journal.head, ReadLimits())


def test_a_batch_whose_end_is_gone_is_empty_or_an_error():
    journal, _ = scene()
    start, end = Offset("0" * 15 + "9", 1, -1, 1), Offset("0" * 15 + "9", 4, -1, 1)
    plan = plan_batch(start, end, journal.facts(), table="t", fails_on_data_loss=False)
    assert plan.epoch == ""
    with pytest.raises(DataLossError, match="began anew"):
        plan_batch(start, end, journal.facts(), table="t", fails_on_data_loss=True)


def test_a_watch_that_lags_behind_a_new_epoch_is_corrected():
    journal, _ = scene()
    old = Head(journal.epoch, journal.version)
    start = Offset(journal.epoch, journal.version - 1, -1, 1)
    journal.begin_epoch()
    picked = chooser(journal, fails=False).next_offset(start, old, ReadLimits())
    assert picked == Offset(journal.epoch, journal.version, -1, 2)
