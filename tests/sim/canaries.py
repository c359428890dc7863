"""Deliberately broken builds. Each must make the simulator fail, or the simulator is no use."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import count
from unittest import mock

import numpy as np
import pyarrow as pa

from barrage.engine.changelog import present
from barrage.engine.changelog.delta_log import DeltaLog
from barrage.engine.changelog.making import Makings
from barrage.engine.changelog.present import Present
from barrage.engine.changelog.subscription import NOWHERE, SlotInput
from barrage.engine.propagation.held_bytes import HeldBytes
from barrage.engine.propagation.lagging import Lagging
from barrage.engine.propagation.producer import Producer
from barrage.journal.disk.storage import LocalStorage
from barrage.journal.files import file_history, opening, recovery, segment
from barrage.journal.files.steps import Steps
from barrage.journal.stores import store
from barrage.model.update import FullUpdate, ViewUpdate
from barrage.proto import outgoing_bodies
from barrage.proto.body_window import BodyWindow
from barrage.rowset import RowSet, RowSetShiftData
from barrage.rowset.resting import RestingRows
from barrage.transport.shared_memory.leases import LeaseTable
from barrage.transport.shared_memory.segment import Segment
from barrage.wire.dissociated.reassembly import Reassembly
from tests.sim.server import Message, Sabotage


def drop_shifts() -> Sabotage:
    """Rows that move in key space stay where they were."""

    def sabotage(message: Message) -> Message:
        if isinstance(message, FullUpdate) and not message.shifts.is_empty:
            return replace(message, shifts=RowSetShiftData.empty())
        return message

    return sabotage


def lose_an_update() -> Sabotage:
    """One delta in forty never arrives."""
    numbers = count(1)

    def sabotage(message: Message) -> Message | None:
        if not message.is_snapshot and next(numbers) % 40 == 0:
            return None
        return message

    return sabotage


def forget_modifications() -> Sabotage:
    """Modified cells of the first column with any keep their old values."""

    def sabotage(message: Message) -> Message:
        name = "modified_keys_post" if isinstance(message, FullUpdate) else "modified_positions"
        sets = list(getattr(message, name) or ())
        columns = list(message.modified_columns)
        for column, rows in enumerate(sets):
            if not rows.is_empty:
                sets[column], columns[column] = RowSet.empty(), columns[column].slice(0, 0)
                return replace(message, modified_columns=tuple(columns), **{name: tuple(sets)})
        return message

    return sabotage


def miscount_the_table() -> Sabotage:
    """table_size is that of the update before."""
    sizes = [0]

    def sabotage(message: Message) -> Message:
        stale, sizes[0] = sizes[0], message.table_size or 0
        return replace(message, table_size=stale) if isinstance(message, ViewUpdate) else message

    return sabotage


def misplace_added_rows() -> Sabotage:
    """A row that enters a view in the middle is told to be one place further up."""

    def sabotage(message: Message) -> Message:
        if isinstance(message, ViewUpdate) and not message.is_snapshot:
            rows = message.added_positions
            if not rows.is_empty and rows.first > 0:
                return replace(message, added_positions=rows.offset(-1))
        return message

    return sabotage


def repeat_a_step() -> Sabotage:
    """A delta claims to begin one step early."""

    def sabotage(message: Message) -> Message:
        if message.is_snapshot or message.first_step < 2:
            return message
        return replace(message, first_step=message.first_step - 1)

    return sabotage


CANARIES: dict[str, Callable[[], Sabotage]] = {
    each.__name__: each
    for each in (
        drop_shifts,
        lose_an_update,
        forget_modifications,
        miscount_the_table,
        misplace_added_rows,
        repeat_a_step,
    )
}


# --- readers that lag behind ----------------------------------------------------------------------


def keep_whatever_it_costs() -> AbstractContextManager[object]:
    """Nobody looks at the bytes that slow readers cost."""
    return mock.patch.object(HeldBytes, "settle", HeldBytes.note)


def lose_what_lies_between() -> AbstractContextManager[object]:
    """A reader whose changes are given up goes on at the present, as if it had had them."""

    def vacate(self, point, slots):
        self._feed.leave(point, len(slots))
        self._roster.place(slots, self._feed.join(len(slots)))

    return mock.patch.object(Lagging, "_vacate", vacate)


def take_nothing_back() -> AbstractContextManager[object]:
    """The whole table comes, and what the reader had before stays."""
    honest = present.key_resync

    def key_resync(reader, shape, known, *, stamp):
        return replace(honest(reader, shape, known, stamp=stamp), removed_keys_pre=RowSet.empty())

    return mock.patch.object(present, "key_resync", key_resync)


def remember_the_keys_of_later() -> AbstractContextManager[object]:
    """What a reader knows is taken from the next point."""

    def resting_keys_at(self, point):
        points = self.points()
        return RestingRows(self.keys_at(points[points.index(point) + 1]))

    return mock.patch.object(DeltaLog, "resting_keys_at", resting_keys_at)


def read_what_is_there_by_then() -> AbstractContextManager[object]:
    """What is made beside is read from the table itself, which has changed meanwhile."""
    return mock.patch.object(Present, "pinned", lambda self: self)


def skip_what_came_meanwhile() -> AbstractContextManager[object]:
    """Whoever waited for a message goes on at the present, not where the message left off."""
    honest = Producer.made

    def made(self, making, error=None):
        for slot in [slot for slot, found in self._makings._begun.items() if found is making]:
            point = int(self._roster.point[slot])
            if point != NOWHERE:
                self._roster.place(np.array([slot]), self._feed.advance(point, 1))
        return honest(self, making, error)

    return mock.patch.object(Producer, "made", made)


def overtake_what_is_being_made() -> AbstractContextManager[object]:
    """Whoever waits for a message is told what comes after it."""
    honest = Makings.begin

    def begin(self, slots, prepare):
        making = honest(self, slots, prepare)
        for slot in slots if making is not None else ():
            del self._begun[slot]
            self._roster.move(slot, SlotInput.ARRIVE)
        return making

    return mock.patch.object(Makings, "begin", begin)


READER_CANARIES: dict[str, Callable[[], AbstractContextManager[object]]] = {
    each.__name__: each
    for each in (
        keep_whatever_it_costs,
        lose_what_lies_between,
        take_nothing_back,
        remember_the_keys_of_later,
        read_what_is_there_by_then,
        skip_what_came_meanwhile,
        overtake_what_is_being_made,
    )
}


def acknowledge_before_the_sync() -> AbstractContextManager[object]:
    """What was written counts as kept."""
    return mock.patch.object(segment.SegmentWriter, "sync", return_value=None)


def believe_the_files() -> AbstractContextManager[object]:
    """Nobody asks whether what was acknowledged is there, nor whether a hole is behind the end."""
    return _Both(
        mock.patch.object(recovery, "read_witness", return_value=-1),
        mock.patch.object(segment, "_is_hole", return_value=False),
    )


def use_steps_again() -> AbstractContextManager[object]:
    """After a crash the graph goes on where the files end."""

    def next_run(before: Steps | None, *, recovered_step: int, **_: int) -> Steps:
        return Steps(first_step=recovered_step, reserved=recovered_step + 1000, is_clean=False)

    return mock.patch.object(opening, "next_run", next_run)


def forget_too_much() -> AbstractContextManager[object]:
    """Retention removes one segment more than the checkpoint stands in for."""
    honest = file_history.FileHistory._begin_with

    def begin_with(self, base, *, first_segment, kept_from):
        honest(self, base, first_segment=first_segment, kept_from=kept_from + 1)

    return mock.patch.object(file_history.FileHistory, "_begin_with", begin_with)


def run_out_of_room_without_a_reserve() -> AbstractContextManager[object]:
    """A full disk is noticed when it is too late."""
    return mock.patch.object(store.JournalStore, "_look_for_room", return_value=None)


def trust_what_a_killed_process_left() -> AbstractContextManager[object]:
    """What is read back is adopted as it is: nobody asks whether it is on the disk."""
    return mock.patch.object(recovery.RecoveredTable, "settle", _settle_without_syncs)


def _settle_without_syncs(
    self: recovery.RecoveredTable, storage: LocalStorage, *, sure_step: int
) -> None:
    for path in self.left_overs:
        storage.remove(path)
    if self.end is not None:
        file = storage.append_to(file_history.segment_path(self.directory, self.end.number))
        if file.size > self.end.byte_count:
            file.truncate(self.end.byte_count)
        file.close()


def trust_directories_that_are_there() -> AbstractContextManager[object]:
    """A directory that is there is taken for one that will be there after a power cut."""

    def make_directory(self, directory):
        if self._system.is_directory(str(directory)):
            return
        make_directory(self, directory.parent)
        self._system.make_directory(str(directory))
        self._system.sync_names(str(directory.parent))

    return _Both(
        mock.patch.object(LocalStorage, "_make_directory", make_directory),
        mock.patch.object(LocalStorage, "sync_directory", _nothing),
    )


def trust_a_file_whose_sync_failed() -> AbstractContextManager[object]:
    """A sync that succeeds is believed, though one before it in that file has failed."""
    honest = LocalStorage.settle

    def settle(self, path, start, stop):
        honest(self, path, stop, stop)

    return mock.patch.object(LocalStorage, "settle", settle)


def commit_table_by_table() -> AbstractContextManager[object]:
    """A cycle counts in each table as soon as it is in that table's file."""
    return mock.patch.object(recovery, "read_commit", return_value=None)


def commit_before_the_files() -> AbstractContextManager[object]:
    """The commit of a cycle is written before the files of its tables are synced."""
    honest, written = store.write_all, store.JournalStore._write

    def write_early(self, items, step, joint_steps):
        def write_all(work, frontier, joint):
            honest(work, frontier, joint)
            if joint:
                self._commits.commit(max(joint))

        with mock.patch.object(store, "write_all", write_all):
            return written(self, items, step, joint_steps)

    return mock.patch.object(store.JournalStore, "_write", write_early)


class _Both(AbstractContextManager[object]):
    def __init__(self, *patches: AbstractContextManager[object]) -> None:
        self._patches = patches

    def __enter__(self) -> object:
        for each in self._patches:
            each.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        for each in reversed(self._patches):
            each.__exit__(*error)


JOURNAL_CANARIES: dict[str, Callable[[], AbstractContextManager[object]]] = {
    each.__name__: each
    for each in (
        acknowledge_before_the_sync,
        use_steps_again,
        forget_too_much,
        run_out_of_room_without_a_reserve,
        trust_what_a_killed_process_left,
        trust_a_file_whose_sync_failed,
        commit_table_by_table,
        commit_before_the_files,
    )
}


RARE_JOURNAL_CANARIES: dict[str, Callable[[], AbstractContextManager[object]]] = {
    each.__name__: each for each in (believe_the_files, trust_directories_that_are_there)
}
"""Faults that take hundreds of seeds to be met: too many for the suite, which makes the cases that
meet them (``tests/unit/journal/test_every_disturbance.py``)."""


def _true(*_: object) -> bool:
    """Not a Mock, which would keep what it is called with."""
    return True


def _false(*_: object) -> bool:
    return False


def _nothing(*_: object) -> None:
    return None


# --- bodies outside their streams -----------------------------------------------------------------


def take_the_body_before() -> AbstractContextManager[object]:
    """A message gets the body that came before its own, if that is as long."""
    honest = Reassembly.receive_body
    earlier: dict[int, pa.Buffer] = {}

    def receive_body(self, sequence, body, now_ns):
        before = earlier.get(len(body), body)
        earlier[len(body)] = pa.py_buffer(bytes(body))
        honest(self, sequence, before, now_ns)

    return mock.patch.object(Reassembly, "receive_body", receive_body)


def take_a_missing_body_for_empty() -> AbstractContextManager[object]:
    """A message whose body is not here yet leaves with nothing in it."""
    honest = Reassembly.take

    def take(self):
        for number in list(self._missing_since):
            header = self._headers[number]
            self._headers[number] = header._replace(
                frame=replace(header.frame, body=b"", body_reference=None), body_bytes=None
            )
            del self._missing_since[number]
        return honest(self)

    return mock.patch.object(Reassembly, "take", take)


def let_messages_overtake() -> AbstractContextManager[object]:
    """A message whose body is late is put behind those that are complete."""
    honest = Reassembly.take

    def take(self):
        taken = honest(self)
        if not taken and self._missing_since:
            late = min(self._missing_since)
            for number in sorted(self._headers):
                if number > late and number not in self._missing_since:
                    taken = [self._headers.pop(number).frame]
                    self._headers[number] = self._headers.pop(late)
                    break
        return taken

    return mock.patch.object(Reassembly, "take", take)


def use_memory_that_is_read() -> AbstractContextManager[object]:
    """Nobody looks for the locks of readers."""
    return mock.patch.object(Segment, "is_locked", _false)


def lend_without_a_lease() -> AbstractContextManager[object]:
    """Memory is used again as soon as the message that tells of it is sent."""
    return mock.patch.object(LeaseTable, "grant", _nothing)


def overrun_the_window() -> AbstractContextManager[object]:
    """More bodies are out than were agreed."""
    return mock.patch.object(BodyWindow, "_has_room", _true)


def forget_credit() -> AbstractContextManager[object]:
    """One released body in three stays out for ever."""
    honest = BodyWindow.released
    numbers = count(1)

    def released(self, ids, now_ns):
        return honest(self, [each for each in ids if next(numbers) % 3], now_ns)

    return mock.patch.object(BodyWindow, "released", released)


def wait_for_ever() -> AbstractContextManager[object]:
    """A body that does not come has no deadline."""
    return mock.patch.object(Reassembly, "waiting_since_ns", None)


def count_to_2_31() -> AbstractContextManager[object]:
    """The server's numbers roll over in the middle."""
    return mock.patch.object(outgoing_bodies, "next_sequence", lambda n: (n + 1) & 0x7FFFFFFF)


BODY_CANARIES: dict[str, Callable[[], AbstractContextManager[object]]] = {
    each.__name__: each
    for each in (
        take_the_body_before,
        take_a_missing_body_for_empty,
        let_messages_overtake,
        use_memory_that_is_read,
        lend_without_a_lease,
        overrun_the_window,
        forget_credit,
        wait_for_ever,
        count_to_2_31,
    )
}
