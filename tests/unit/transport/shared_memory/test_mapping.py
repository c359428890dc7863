"""The client's side: finding an arena, borrowing from it, giving back; nothing is believed."""

from __future__ import annotations

import gc
import os
import struct
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from barrage.errors import BodyChannelError, TransportUnavailableError
from barrage.transport.shared_memory import Arena, ArenaMapping, host_identity, locks
from barrage.transport.shared_memory.layout import FileHeader, region_header
from barrage.wire.dissociated.references import BodyReference
from tests.unit.transport.shared_memory.bodies import KIB, SMALL, content, fill, placed


def ignore(address: int) -> None:
    """Nobody wants to know."""


def test_proof_is_what_the_server_has(arena: Arena, mapping: ArenaMapping) -> None:
    assert mapping.proof() == arena.proof
    assert len(arena.proof) == 16
    assert arena.proof.hex() not in arena.name


@pytest.mark.parametrize(
    "name",
    [
        "",
        "barrage-",
        "barrage-" + "0" * 31,
        "barrage-" + "0" * 33,
        "barrage-" + "A" * 32,
        "barrage-" + "0" * 32 + "\n",
        "barrage-" + "0" * 32 + ".0",
        "../barrage-" + "0" * 32,
        "x/../barrage-" + "0" * 32,
        "/etc/passwd",
        "barrage-" + "0" * 31 + "\0",
    ],
)
def test_names_of_another_form_are_not_looked_for(directory: str, name: str) -> None:
    with pytest.raises(TransportUnavailableError, match="not a name of shared memory"):
        ArenaMapping.open(name, directory=directory)


def test_arena_that_is_not_there(directory: str) -> None:
    with pytest.raises(TransportUnavailableError, match="No such file"):
        ArenaMapping.open("barrage-" + "0" * 32, directory=directory)


def spoil_with_link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to(path.with_name("elsewhere"))


def spoil_with_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


def spoil_with_directory(path: Path) -> None:
    path.unlink()
    path.mkdir(0o600)


def spoil_with_header(path: Path, number: int) -> None:
    """An arena's file in everything but its number."""
    header = FileHeader.decode(path.read_bytes())
    assert header is not None
    with path.open("r+b") as file:
        file.write(header._replace(number=number).encode())


def spoil_with_magic(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(b"X")


def spoil_with_version(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(8)
        file.write(struct.pack("<I", 2))


SPOILS = {
    "link": spoil_with_link,
    "pipe": spoil_with_pipe,
    "directory": spoil_with_directory,
    "gone": Path.unlink,
    "empty": lambda path: os.truncate(path, 0),
    "shorter": lambda path: os.truncate(path, path.stat().st_size - 1),
    "longer": lambda path: os.truncate(path, path.stat().st_size + 1),
    "open to the group": lambda path: path.chmod(0o640),
    "open to all": lambda path: path.chmod(0o606),
    "number": lambda path: spoil_with_header(path, 7),
    "magic": spoil_with_magic,
    "version": spoil_with_version,
}


@pytest.mark.parametrize("spoil", SPOILS.values(), ids=SPOILS)
def test_root_that_is_not_what_it_should_be(arena: Arena, directory: str, spoil) -> None:
    spoil(Path(directory) / arena.name)
    with pytest.raises(TransportUnavailableError):
        ArenaMapping.open(arena.name, directory=directory)


@pytest.mark.parametrize("spoil", SPOILS.values(), ids=SPOILS)
def test_segment_that_is_not_what_it_should_be(
    arena: Arena, mapping: ArenaMapping, directory: str, spoil
) -> None:
    reference = placed(arena, b"body").reference()
    spoil(Path(directory) / f"{arena.name}.0")
    with pytest.raises(BodyChannelError, match="part of the shared memory is gone"):
        mapping.borrow(reference, ignore)


def test_segment_of_another_arena(directory: str, arena: Arena, mapping: ArenaMapping) -> None:
    other = Arena.create(SMALL, directory=directory)
    reference = placed(other, b"body").reference()
    placed(arena, b"body")
    os.rename(f"{directory}/{other.name}.0", f"{directory}/{arena.name}.0")
    with pytest.raises(BodyChannelError, match="another arena"):
        mapping.borrow(reference, ignore)
    other.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_file_of_another_user(arena: Arena, mapping: ArenaMapping, directory: str) -> None:
    reference = placed(arena, b"body").reference()
    for path in Path(directory).iterdir():
        os.chown(path, 12345, -1)
    with pytest.raises(TransportUnavailableError, match="belongs to somebody else"):
        ArenaMapping.open(arena.name, directory=directory)
    with pytest.raises(BodyChannelError, match="belongs to somebody else"):
        mapping.borrow(reference, ignore)


@pytest.mark.parametrize("way", ["borrow", "copy"])
def test_references_to_no_body(arena: Arena, mapping: ArenaMapping, way: str) -> None:
    region = placed(arena, content(1, KIB))
    good = region.reference()
    wrong = [
        good._replace(generation=0),
        good._replace(generation=good.generation + 1),
        good._replace(generation=2**64 - 1),
        good._replace(length=KIB - 1),
        good._replace(length=KIB + 1),
        good._replace(length=0),
        good._replace(length=64 * KIB),
        good._replace(length=2**64 - 1),
        good._replace(address=0),
        good._replace(address=64),
        good._replace(address=good.address + 1),
        good._replace(address=good.address + 64),
        good._replace(address=64 * KIB - 64, length=65),
        good._replace(address=64 * KIB),
        good._replace(address=2**40 - 64),
        good._replace(address=good.address | 1 << 40),
        good._replace(address=good.address | 4096 << 40),
        good._replace(address=2**64 - 64),
    ]
    take = mapping.copy if way == "copy" else lambda wanted: mapping.borrow(wanted, pytest.fail)
    for reference in wrong:
        with pytest.raises(BodyChannelError):
            take(reference)
    assert mapping.copy(good).to_pybytes() == content(1, KIB)
    address = region.address
    del region
    assert arena.statistics().bytes_in_use == 0, f"nothing at {address} is still locked"


@pytest.mark.parametrize(
    ("address", "words"),
    [
        (0, "is not in the shared memory"),
        (64, "is not in the shared memory"),
        (128, "not there any more"),
        (4095 << 40, "No such file"),
        (4096 << 40, "has no segment 4096"),
    ],
)
def test_places_where_no_body_can_be(
    arena: Arena, mapping: ArenaMapping, address: int, words: str
) -> None:
    """The first body stands behind two headers; files of no arena are not looked for."""
    region = placed(arena, b"body")
    assert region.address == 128
    with pytest.raises(BodyChannelError, match=words):
        mapping.copy(BodyReference(address, 4, region.generation + 1))
    if address != 128:
        with pytest.raises(BodyChannelError, match=words):
            mapping.reference_at(address, 4)


def test_content_that_looks_like_a_header_is_none(arena: Arena, mapping: ArenaMapping) -> None:
    address, generation = 128 + 64, 77
    body = region_header(generation, address, 100, proof=bytes(16)).ljust(1000)
    region = placed(arena, body)
    assert region.address == 128
    with pytest.raises(BodyChannelError, match="not there any more"):
        mapping.borrow(BodyReference(address, 100, generation), ignore)


def test_reference_to_a_body_that_was_replaced(arena: Arena, mapping: ArenaMapping) -> None:
    stale = placed(arena, content(1, KIB)).reference()
    fresh = placed(arena, content(2, KIB))
    assert fresh.address == stale.address
    with pytest.raises(BodyChannelError, match="not there any more"):
        mapping.borrow(stale, ignore)
    with pytest.raises(BodyChannelError, match="not there any more"):
        mapping.copy(stale)


def test_stale_reference_takes_no_lock_away(arena: Arena, mapping: ArenaMapping) -> None:
    stale = placed(arena, content(1, 3 * KIB)).reference()
    region = placed(arena, content(2, KIB))
    buffer = mapping.borrow(region.reference(), ignore)
    assert region.address == stale.address
    with pytest.raises(BodyChannelError):
        mapping.borrow(stale, ignore)
    del region
    assert arena.statistics().orphan_count == 1, "the body of the same place is still read"
    assert buffer.to_pybytes() == content(2, KIB)


def test_reference_that_becomes_stale_between_look_and_lock(
    arena: Arena, mapping: ArenaMapping, monkeypatch: pytest.MonkeyPatch
) -> None:
    regions = [placed(arena, content(1, KIB))]
    reference = regions[0].reference()
    lock = locks.lock_shared

    def lock_late(fd: int, start: int, length: int) -> None:
        regions.clear()
        assert arena.statistics().bytes_in_use == 0, "free, since nobody has locked it"
        lock(fd, start, length)

    monkeypatch.setattr(locks, "lock_shared", lock_late)
    with pytest.raises(BodyChannelError, match="not there any more"):
        mapping.borrow(reference, pytest.fail)
    monkeypatch.undo()
    placed(arena, content(2, KIB)).reference()
    assert arena.statistics().orphan_count == 0, "what was locked for a moment is not any more"


def test_reference_that_is_used_while_the_server_looks_for_locks(
    arena: Arena, mapping: ArenaMapping, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever comes after the server has looked finds another generation."""
    region = placed(arena, content(1, KIB))
    reference = region.reference()
    mapping.copy(reference)
    look = locks.is_locked
    refused: list[BodyChannelError] = []

    def look_then_borrow(fd: int, start: int, length: int) -> bool:
        found = look(fd, start, length)
        with pytest.raises(BodyChannelError) as caught:
            mapping.borrow(reference, ignore)
        refused.append(caught.value)
        return found

    monkeypatch.setattr(locks, "is_locked", look_then_borrow)
    del region
    assert arena.statistics().bytes_in_use == 0
    assert len(refused) == 1


def test_region_that_is_free_has_no_generation(arena: Arena, mapping: ArenaMapping) -> None:
    stale = placed(arena, content(1, KIB)).reference()
    assert arena.statistics().bytes_in_use == 0
    assert mapping.reference_at(stale.address, KIB).generation == 0
    with pytest.raises(BodyChannelError, match="not there any more"):
        mapping.borrow(stale._replace(generation=0), ignore)


def test_header_that_tells_of_more_than_there_is(arena: Arena, mapping: ArenaMapping) -> None:
    """Even one that carries the arena's own proof."""
    placed(arena, b"body")
    memory = arena._segments[0].memory
    address = len(memory) - 64
    for length, is_there in ((64, True), (65, False)):
        memory[address - 64 : address - 16] = region_header(9, address, length, proof=arena.proof)
        reference = BodyReference(address, length, 9)
        if is_there:
            assert mapping.copy(reference).size == 64
        else:
            with pytest.raises(BodyChannelError, match="is not in the shared memory"):
                mapping.borrow(reference, ignore)


def test_body_of_no_bytes_locks_no_other(arena: Arena, mapping: ArenaMapping) -> None:
    empty = mapping.borrow(placed(arena, b"").reference(), ignore)
    other = placed(arena, content(1, KIB))
    other.reference()
    del other
    assert arena.statistics().orphan_count == 1, "only the empty one"
    assert empty.size == 0


def test_end_is_told_when_the_last_user_is_gone(arena: Arena, mapping: ArenaMapping) -> None:
    told: list[int] = []
    region = placed(arena, np.arange(100, dtype=np.int64).tobytes())
    buffer = mapping.borrow(region.reference(), told.append)
    array = pa.Array.from_buffers(pa.int64(), 100, [None, buffer])
    part = array.slice(10, 5)
    table = pa.table({"x": part})
    numbers = part.to_numpy()
    del buffer, array, part, table
    assert told == []
    assert numbers.tolist() == [10, 11, 12, 13, 14]
    del numbers
    assert told == [region.address]


def test_lent_memory_cannot_be_written(arena: Arena, mapping: ArenaMapping) -> None:
    region = placed(arena, content(1, KIB))
    buffer = mapping.borrow(region.reference(), ignore)
    assert not buffer.is_mutable
    with pytest.raises(ValueError, match="read-only"):
        np.frombuffer(buffer, dtype=np.uint8)[0] = 1


def test_same_body_lent_twice_is_locked_until_both_are_back(
    arena: Arena, mapping: ArenaMapping, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[int] = []
    region = placed(arena, content(1, KIB))
    first = mapping.borrow(region.reference(), told.append)
    with monkeypatch.context() as patch:
        # Locked once only: who finds the body gone then would unlock it for the first, too.
        patch.setattr(locks, "lock_shared", pytest.fail)
        second = mapping.borrow(region.reference(), told.append)
    assert first.address == second.address
    address = region.address
    del region, first
    assert told == [address]
    assert arena.statistics().orphan_count == 1
    assert second.to_pybytes() == content(1, KIB)
    del second
    assert told == [address, address]
    assert arena.statistics().bytes_in_use == 0


def test_copy_leaves_nothing_behind(arena: Arena, mapping: ArenaMapping) -> None:
    region = placed(arena, content(1, KIB))
    copied = mapping.copy(region.reference())
    del region
    assert arena.statistics().bytes_in_use == 0
    fill(arena, KIB)
    assert copied.to_pybytes() == content(1, KIB)


def test_closed_mapping_lends_nothing_and_keeps_what_is_lent(arena: Arena, directory: str) -> None:
    told: list[int] = []
    mapping = ArenaMapping.open(arena.name, directory=directory)
    region = placed(arena, content(1, KIB))
    buffer = mapping.borrow(region.reference(), told.append)
    mapping.close()
    mapping.close()
    with pytest.raises(BodyChannelError, match="closed"):
        mapping.borrow(region.reference(), ignore)
    arena.close()
    del mapping
    gc.collect()
    assert buffer.to_pybytes() == content(1, KIB)
    address = region.address
    del buffer
    assert told == [address]


def test_failing_listener_disturbs_nobody(
    arena: Arena, mapping: ArenaMapping, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(address: int) -> None:
        raise RuntimeError("not mine")

    region = placed(arena, content(1, KIB))
    buffer = mapping.borrow(region.reference(), fail)
    del region, buffer
    assert "could not be told" in caplog.text
    assert arena.statistics().bytes_in_use == 0


def test_buffers_come_back_in_any_thread(arena: Arena, mapping: ArenaMapping) -> None:
    """Threads borrow and drop; others drop what they did not borrow; the collector joins in."""
    told: list[int] = []
    regions = fill(arena, 2 * KIB)
    references = [region.reference() for region in regions]
    rounds, per_round = 20, 5

    def work(thread: int) -> None:
        for turn in range(rounds):
            held = [
                mapping.borrow(references[(thread + turn + more) % len(references)], told.append)
                for more in range(per_round)
            ]
            cycle: list[object] = [held]
            cycle.append(cycle)
            del held, cycle
            if turn % 5 == 0:
                gc.collect()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    gc.collect()
    assert len(told) == 6 * rounds * per_round
    del regions
    assert arena.statistics().bytes_in_use == 0


def test_buffer_dropped_while_another_is_lent(
    arena: Arena, mapping: ArenaMapping, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A finalizer that runs in the middle of ``borrow``, in the same thread, waits for nothing."""
    told: list[int] = []
    regions = [placed(arena, content(seed, KIB)) for seed in range(2)]
    held = [mapping.borrow(regions[0].reference(), told.append)]
    lock = locks.lock_shared

    def drop_then_lock(fd: int, start: int, length: int) -> None:
        held.clear()
        assert told == [], "not from inside"
        lock(fd, start, length)

    monkeypatch.setattr(locks, "lock_shared", drop_then_lock)
    buffer = mapping.borrow(regions[1].reference(), told.append)
    assert told == [regions[0].address]
    assert buffer.to_pybytes() == content(1, KIB)


def test_buffer_dropped_while_another_is_refused(
    arena: Arena, mapping: ArenaMapping, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes back in the middle of a failure is given back all the same."""
    told: list[int] = []
    regions = [placed(arena, content(seed, KIB)) for seed in range(2)]
    held = [mapping.borrow(regions[0].reference(), told.append)]

    def drop_and_refuse(fd: int, start: int, length: int) -> None:
        held.clear()
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(locks, "lock_shared", drop_and_refuse)
    with pytest.raises(BodyChannelError, match="cannot be locked"):
        mapping.borrow(regions[1].reference(), ignore)
    assert told == [regions[0].address]
    regions.clear()
    assert arena.statistics().bytes_in_use == 0


def test_lock_that_cannot_be_had(
    arena: Arena, mapping: ArenaMapping, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(fd: int, start: int, length: int) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    region = placed(arena, content(1, KIB))
    monkeypatch.setattr(locks, "lock_shared", refuse)
    with pytest.raises(BodyChannelError, match="cannot be locked"):
        mapping.borrow(region.reference(), ignore)


def test_system_without_such_locks(
    arena: Arena, directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then there is no shared memory at all, on either side, and nothing is left of it."""

    def refuse(fd: int, start: int, length: int) -> bool:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(locks, "lock_shared", refuse)
    monkeypatch.setattr(locks, "is_locked", refuse)
    with pytest.raises(TransportUnavailableError, match="cannot be locked here"):
        ArenaMapping.open(arena.name, directory=directory)
    with pytest.raises(TransportUnavailableError, match="Invalid argument"):
        Arena.create(SMALL, directory=directory)
    assert os.listdir(directory) == [arena.name]


def test_server_that_cannot_look_for_locks_writes_nothing(
    arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(fd: int, start: int, length: int) -> bool:
        raise OSError(37, "No locks available")

    region = placed(arena, content(1, KIB))
    region.reference()
    monkeypatch.setattr(locks, "is_locked", refuse)
    del region
    assert arena.statistics().orphan_count == 1
    secret = placed(arena, content(2, KIB))
    del secret
    assert arena.statistics().orphan_count == 1, "nobody was told of it, so nobody is asked"


def test_body_known_by_its_address_alone(arena: Arena, mapping: ArenaMapping) -> None:
    region = placed(arena, content(1, KIB))
    assert mapping.reference_at(region.address, KIB) == region.reference()
    with pytest.raises(BodyChannelError):
        mapping.reference_at(region.address + 1, KIB)


def test_host_is_this_boot_and_this_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    identity = host_identity()
    assert identity == host_identity()
    assert identity.user_id == os.geteuid()
    assert len(identity.boot_id) == 36
    monkeypatch.setattr("barrage.transport.shared_memory.host.BOOT_ID", tmp_path / "nothing")
    with pytest.raises(TransportUnavailableError, match="does not name its boot"):
        host_identity()
