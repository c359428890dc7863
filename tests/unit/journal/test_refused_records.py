"""A change that cannot be made a record ends the history of its table, and of no other."""

from __future__ import annotations

from random import Random

import pyarrow as pa
import pytest

from barrage.errors import HistoryLostError, RecordRefusedError
from barrage.journal import TableJournal
from barrage.journal.records.numbering import EntryBuilder
from tests.helpers.journal_histories import RandomHistory, content, identity
from tests.unit.journal.stores import Bench

TOO_LARGE = pa.ArrowInvalid("offset overflow while concatenating arrays")


class Scene(Bench):
    """Two tables more, changed in the same cycles as ``t`` or in others."""

    def __init__(self) -> None:
        super().__init__()
        names = ("u", "v")
        self.journals = {"t": self.journal}
        self.journals |= {name: self.store.create(identity(name), step=0) for name in names}
        self.histories = {name: RandomHistory(Random(seed)) for seed, name in enumerate("tuv")}
        self.step = 0
        self.told: list[str] = []
        for name, journal in self.journals.items():
            journal.on_ended = lambda _, name=name: self.told.append(name)

    def cycle(self, *names: str) -> int:
        """One cycle that changes these tables; answers the last ticket."""
        self.step += 1
        ticket = 0
        for name in names:
            history = self.histories[name]
            change, positions = history.next_change(self.step)
            ticket = self.journals[name].append(
                change, step=self.step, wall_ns=self.clock.wall_ns(), positions=positions
            )
        self.store.step_committed(self.step)
        return ticket


@pytest.fixture
def break_next(monkeypatch):
    """Have the next entry of a table not be built, and all after it."""
    broken: set[int] = set()
    build = EntryBuilder.build

    def refuse(self, pending):
        if id(self) in broken:
            raise TOO_LARGE
        return build(self, pending)

    monkeypatch.setattr(EntryBuilder, "build", refuse)

    def broken_from_now(journal: TableJournal) -> None:
        broken.add(id(journal._builder))

    return broken_from_now


def test_a_change_that_cannot_be_recorded_fails_its_table_alone(break_next):
    scene = Scene()
    scene.cycle("t")
    scene.cycle("u")
    scene.pump(20)
    last = scene.journal.durable_version
    kept = content(scene.journal.state_at(last))
    break_next(scene.journal)
    scene.cycle("t")
    ticket = scene.cycle("u")
    scene.pump(20)
    assert scene.store.synced_ticket == ticket, "the other table is acknowledged"
    scene.store.check_writable()
    assert isinstance(scene.journal.failure, RecordRefusedError)
    assert "offset overflow" in str(scene.journal.failure)
    assert scene.told == ["t"]
    assert scene.journals["u"].failure is None
    assert scene.journals["u"].durable_version == scene.step
    assert scene.journal.latest_version == scene.journal.durable_version == last
    scene.cycle("t")
    ticket = scene.cycle("u")
    scene.pump(20)
    assert scene.store.synced_ticket == ticket
    assert scene.told == ["t"], "it is told once"
    assert content(scene.reopen().state_at(last)) == kept
    assert scene.store.journals["u"].latest_version == scene.step


def test_what_came_before_in_the_same_round_is_kept(break_next):
    scene = Scene()
    scene.cycle("t")
    good = scene.step
    scene.journal.build(0)
    break_next(scene.journal)
    scene.cycle("t")
    scene.pump(20)
    assert scene.journal.durable_version == good
    assert scene.reopen().latest_version == good


def test_a_reader_that_meets_it_first_is_told_no_half_truth(break_next):
    scene = Scene()
    scene.cycle("t")
    scene.pump(20)
    last = scene.step
    break_next(scene.journal)
    scene.cycle("t")
    with pytest.raises(HistoryLostError):
        list(scene.journal.entries(last, scene.step))
    assert not scene.journal.is_known(scene.step)
    assert scene.told == ["t"]
    ticket = scene.cycle("u")
    scene.pump(20)
    assert scene.store.synced_ticket == ticket


def test_a_cycle_over_several_tables_is_in_none_of_them(break_next):
    scene = Scene()
    scene.cycle("t", "u")
    scene.pump(20)
    good = scene.step
    break_next(scene.journal)
    scene.cycle("t", "u")
    scene.cycle("u", "v")
    scene.pump(20)
    assert sorted(scene.told) == ["t", "u", "v"]
    scene.reopen()
    assert scene.store.journals["t"].latest_version == good
    assert scene.store.journals["u"].latest_version == good
    assert scene.store.journals["v"].latest_version == 0


def test_a_table_beside_such_a_cycle_goes_on(break_next):
    scene = Scene()
    break_next(scene.journal)
    scene.cycle("u", "v")
    good = scene.step
    scene.cycle("t", "u")
    ticket = scene.cycle("v")
    scene.pump(20)
    assert sorted(scene.told) == ["t", "u"]
    assert scene.store.synced_ticket == ticket
    scene.reopen()
    assert scene.store.journals["u"].latest_version == good
    assert scene.store.journals["v"].latest_version == scene.step


def test_a_failed_table_takes_along_what_is_committed_with_it_later(break_next):
    scene = Scene()
    break_next(scene.journal)
    scene.cycle("t")
    scene.pump(20)
    scene.cycle("t", "u")
    scene.pump(20)
    assert scene.told == ["t", "u"]
    scene.reopen()
    assert scene.store.journals["u"].latest_version == 0


def test_which_row_is_under_which_key_does_not_count_what_is_lost(break_next):
    scene = Scene()
    other = scene.journals["u"]
    scene.cycle("t", "u")
    scene.pump(20)
    version = scene.step
    ids = list(other.row_ids_at(version).ids)
    break_next(scene.journal)
    for _ in range(3):
        scene.cycle("t", "u")
    scene.pump(20)
    assert other.failure is not None
    assert other.latest_version == version
    assert list(other.row_ids_at(version).ids) == ids
