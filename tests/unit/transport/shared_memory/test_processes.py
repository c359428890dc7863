"""Two processes: either is killed, forks, is another user's, or finds no room."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from barrage.errors import BodyChannelError
from barrage.limits import Limits
from barrage.transport.shared_memory import Arena, ArenaMapping, LeaseTable, locks, room
from barrage.transport.shared_memory.leftovers import remove_stale
from barrage.wire.dissociated.references import BodyReference
from tests.unit.transport.shared_memory.bodies import KIB, SMALL, content, fill, placed
from tests.unit.transport.shared_memory.peer import ROOT, peer

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def lend(arena: Arena, body: bytes) -> tuple[LeaseTable, BodyReference]:
    """A stream that was sent one body, which nobody else in this process refers to."""
    leases = LeaseTable()
    region = placed(arena, body)
    leases.grant(region)
    return leases, region.reference()


def test_killed_client_gives_everything_back(arena: Arena, directory: str) -> None:
    with peer(directory) as client:
        leases, reference = lend(arena, content(1, 10 * KIB))
        assert client.ask("open", arena.name) == arena.proof.hex()
        assert client.ask("borrow", reference.encode().hex()) == "held"
        leases.close()
        assert arena.statistics().orphan_count == 1
        others = fill(arena, 10 * KIB)
        assert len(others) == 4 * 6 - 1
        for other in others:
            other.view[:] = b"\xff" * (10 * KIB)
        assert client.ask("read", 1) == "True"
        client.kill()
        assert arena.allocate(10 * KIB) is not None
        assert arena.statistics().orphan_count == 0


def test_stopped_client_keeps_what_it_reads(arena: Arena, directory: str) -> None:
    with peer(directory) as client:
        leases, reference = lend(arena, content(1, 10 * KIB))
        client.ask("open", arena.name)
        client.ask("borrow", reference.encode().hex())
        client.process.send_signal(19)
        leases.close()
        assert arena.statistics().orphan_count == 1
        client.process.send_signal(18)
        assert client.ask("drop") == "1"
        assert arena.statistics().orphan_count == 0


def test_arrays_outlive_a_killed_server(directory: str) -> None:
    with peer(directory) as server:
        name = server.ask("create")
        mapping = ArenaMapping.open(name, directory=directory)
        first = BodyReference.decode(bytes.fromhex(server.ask("place", 1, 20 * KIB)))
        second = BodyReference.decode(bytes.fromhex(server.ask("place", 2, 20 * KIB)))
        told: list[int] = []
        buffer = mapping.borrow(first, told.append)
        server.kill()
        assert {path.name for path in Path(directory).iterdir()} == {name, f"{name}.0"}
        arena = Arena.create(SMALL, directory=directory)
        assert {path.name for path in Path(directory).iterdir()} == {arena.name}
        fill(arena, 20 * KIB)
        assert buffer.to_pybytes() == content(1, 20 * KIB)
        assert mapping.copy(second).to_pybytes() == content(2, 20 * KIB), "mapped already"
        mapping.close()
        assert buffer.to_pybytes() == content(1, 20 * KIB)
        del buffer
        assert told == [first.address]
        arena.close()


def test_killed_server_leaves_parts_nobody_has_mapped_behind(directory: str) -> None:
    with peer(directory) as server:
        name = server.ask("create")
        mapping = ArenaMapping.open(name, directory=directory)
        reference = BodyReference.decode(bytes.fromhex(server.ask("place", 1, KIB)))
        server.kill()
    assert remove_stale(directory) == 2
    with pytest.raises(BodyChannelError, match="No such file"):
        mapping.borrow(reference, lambda address: None)
    mapping.close()


def test_files_of_living_servers_stay(arena: Arena, directory: str) -> None:
    with peer(directory) as server:
        name = server.ask("create")
        assert server.ask("place", 1, KIB) != "full"
        placed(arena, b"x")
        before = set(os.listdir(directory))
        assert len(before) == 4
        assert remove_stale(directory) == 0
        Arena.create(SMALL, directory=directory).close()
        assert set(os.listdir(directory)) == before
        server.kill()
        assert remove_stale(directory) == 2
        assert {entry for entry in os.listdir(directory) if entry.startswith(name)} == set()
        assert remove_stale(directory) == 0


def test_only_what_looks_like_ours_is_taken_away(directory: str) -> None:
    stem = "barrage-" + "0" * 32
    keep = ["other", stem + ".x", stem + ".00001", stem[:-1], stem + "0", "barrage-" + "G" * 32]
    for name in keep:
        Path(directory, name).touch()
    Path(directory, "barrage-" + "1" * 32).mkdir()
    Path(directory, "barrage-" + "2" * 32).symlink_to(Path(directory, "other"))
    os.mkfifo(Path(directory, "barrage-" + "3" * 32))
    for name in (stem, stem + ".0", stem + ".4095"):
        Path(directory, name).touch()
    expected = {*keep, *("barrage-" + digit * 32 for digit in "123")}
    if os.geteuid() == 0:
        foreign = Path(directory, "barrage-" + "4" * 32)
        foreign.touch()
        os.chown(foreign, NOBODY, NOBODY)
        expected.add(foreign.name)
    assert remove_stale(directory) == 3
    assert set(os.listdir(directory)) == expected


def test_file_that_takes_the_place_of_a_dead_one_stays(
    directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another server took the dead one away, and a third made its own, since we looked."""
    path = Path(directory, "barrage-" + "0" * 32)
    path.touch()
    own = locks.own_file

    def own_late(fd: int) -> bool:
        path.unlink()
        path.write_bytes(b"new")
        return own(fd)

    monkeypatch.setattr(locks, "own_file", own_late)
    assert remove_stale(directory) == 0
    assert path.read_bytes() == b"new"


def test_servers_that_start_together_do_not_take_each_other_for_dead(directory: str) -> None:
    failures: list[str] = []

    def work() -> None:
        for _ in range(15):
            arena = Arena.create(SMALL, directory=directory)
            region = arena.place([b"body"], 4)
            try:
                assert region is not None
                mapping = ArenaMapping.open(arena.name, directory=directory)
                assert mapping.copy(region.reference()) == b"body"
                mapping.close()
            except Exception as error:
                failures.append(repr(error))
            arena.close()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures
    assert os.listdir(directory) == []


@as_root
def test_another_user_cannot_open(arena: Arena, directory: str) -> None:
    os.chmod(directory, 0o755)
    with peer(directory) as client:
        assert client.ask("become", NOBODY) == str(NOBODY)
        assert "Permission denied" in client.ask("open", arena.name)


@as_root
def test_root_does_not_open_what_is_another_users(directory: str) -> None:
    os.chmod(directory, 0o777)
    with peer(directory) as server:
        server.ask("become", NOBODY)
        name = server.ask("create")
        assert "full" not in server.ask("place", 1, KIB)
        with peer(directory) as client:
            assert "belongs to somebody else" in client.ask("open", name)
        assert remove_stale(directory) == 0, "nor is it taken away"


def test_forked_child_keeps_its_arrays(arena: Arena, directory: str) -> None:
    """The parent gives back what the child still reads."""
    with peer(directory) as client:
        leases, reference = lend(arena, content(1, 10 * KIB))
        client.ask("open", arena.name)
        client.ask("borrow", reference.encode().hex())
        client.ask("fork")
        assert client.ask("drop") == "1"
        assert leases.release([reference.address]) == 1
        assert arena.statistics().orphan_count == 1
        for other in fill(arena, 10 * KIB):
            other.view[:] = b"\xff" * (10 * KIB)
        assert client.ask("tell", "read", 1) == "True"
        assert client.ask("tell", "drop") == "0", "it is not the child's to give back"
        assert arena.statistics().orphan_count == 0
        assert client.ask("wait") == "0"


def test_forked_child_that_drops_its_arrays_takes_nothing_from_the_parent(
    arena: Arena, directory: str
) -> None:
    with peer(directory) as client:
        leases, reference = lend(arena, content(1, 10 * KIB))
        client.ask("open", arena.name)
        client.ask("borrow", reference.encode().hex())
        client.ask("fork")
        assert client.ask("tell", "drop") == "0"
        leases.close()
        assert arena.statistics().orphan_count == 1
        assert client.ask("wait") == "0"
        assert arena.statistics().orphan_count == 1
        for other in fill(arena, 10 * KIB):
            other.view[:] = b"\xff" * (10 * KIB)
        assert client.ask("read", 1) == "True"
        assert client.ask("drop") == "1"
        assert arena.statistics().orphan_count == 0


def test_forked_child_without_a_descriptor_takes_nothing_from_the_parent(
    arena: Arena, directory: str
) -> None:
    """It could not be given an opening of its own, so it has none."""
    with peer(directory) as client:
        leases, reference = lend(arena, content(1, 10 * KIB))
        client.ask("open", arena.name)
        client.ask("borrow", reference.encode().hex())
        client.ask("fork", "poor")
        assert client.ask("tell", "read", 1) == "True"
        assert client.ask("tell", "drop") == "0"
        assert "cannot be locked" in client.ask("tell", "borrow", reference.encode().hex())
        leases.close()
        assert arena.statistics().orphan_count == 1
        for other in fill(arena, 10 * KIB):
            other.view[:] = b"\xff" * (10 * KIB)
        assert client.ask("read", 1) == "True"
        assert client.ask("wait") == "0"
        assert client.ask("drop") == "1"
        assert arena.statistics().orphan_count == 0


def test_forked_child_does_not_hide_that_its_parent_is_gone(arena: Arena, directory: str) -> None:
    with peer(directory) as client:
        client.ask("open", arena.name)
        one, first = lend(arena, content(1, 10 * KIB))
        client.ask("borrow", first.encode().hex())
        child = int(client.ask("fork"))
        assert client.ask("tell", "drop") == "0"
        two, second = lend(arena, content(2, 10 * KIB))
        client.ask("borrow", second.encode().hex())
        one.close()
        two.close()
        assert arena.statistics().orphan_count == 2
        os.kill(child, 19)
        client.kill()
        try:
            assert arena.statistics().orphan_count == 0
        finally:
            os.kill(child, 9)


def test_forked_child_of_a_server_has_no_arena(directory: str) -> None:
    with peer(directory) as server:
        name = server.ask("create")
        assert server.ask("place", 1, KIB) != "full"
        server.ask("fork")
        assert server.ask("tell", "place", 2, KIB) == "full"
        assert server.ask("tell", "close") == "closed"
        assert server.ask("wait") == "0"
        assert set(os.listdir(directory)) == {name, f"{name}.0"}, "the child took nothing away"
        child = int(server.ask("fork"))
        os.kill(child, 19)
        server.kill()
        try:
            assert remove_stale(directory) == 2, "its child does not make it look alive"
        finally:
            os.kill(child, 9)


ENDING = """
import sys
from barrage.transport.shared_memory import Arena, ArenaMapping, LeaseTable
from tests.unit.transport.shared_memory.bodies import SMALL, placed
arena = Arena.create(SMALL, directory=sys.argv[1])
mapping = ArenaMapping.open(arena.name, directory=sys.argv[1])
region = placed(arena, b"body")
leases = LeaseTable()
leases.grant(region)
told = []
buffers = [mapping.borrow(region.reference(), told.append) for _ in range(3)]
cycle = [buffers.pop()]
cycle.append(cycle)
sys.kept = buffers.pop()
"""


def test_process_that_ends_holding_everything_ends_quietly(directory: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ENDING, directory],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("", "")
    assert os.listdir(directory) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[str]:
    """A tmpfs of 1 MiB."""
    path = tmp_path / "shm"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(path)]
    try:
        done = subprocess.run(mount, capture_output=True, check=False)
    except OSError as error:
        pytest.skip(f"cannot mount: {error}")
    if done.returncode:
        pytest.skip(f"cannot mount: {done.stderr.decode()}")
    yield str(path)
    subprocess.run(["umount", "--lazy", str(path)], check=True)


def fill_disk(directory: str) -> Path:
    """A file that takes all there is."""
    hog = Path(directory, "hog")
    with hog.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    assert os.statvfs(directory).f_bavail == 0
    return hog


def test_small_disk_makes_a_small_arena(small_disk: str) -> None:
    limits = Limits(body_segment_bytes=64 * KIB)
    arena = Arena.create(limits, directory=small_disk)
    assert arena.bytes_max == 512 * KIB
    regions = fill(arena, 10 * KIB)
    assert len(regions) == 8 * 6
    free = os.statvfs(small_disk)
    assert free.f_bavail * free.f_frsize >= 400 * KIB, "others have room"
    arena.close()


def test_full_disk_refuses_bodies_and_kills_nobody(
    small_disk: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("barrage.transport.shared_memory.arena.GROWTH_PAUSE_NS", 0)
    arena = Arena.create(Limits(body_segment_bytes=64 * KIB), directory=small_disk)
    mapping = ArenaMapping.open(arena.name, directory=small_disk)
    held = fill(arena, 60 * KIB)[:1]
    fill_disk(small_disk)
    full = [placed(arena, content(seed, 60 * KIB)) for seed in range(7)]
    assert arena.place([bytes(60 * KIB)], 60 * KIB) is None
    for seed, region in enumerate(full):
        buffer = mapping.borrow(region.reference(), lambda address: None)
        assert buffer.to_pybytes() == content(seed, 60 * KIB)
    del held
    assert arena.place([bytes(60 * KIB)], 60 * KIB) is not None
    mapping.close()
    arena.close()


def test_disk_that_fills_up_before_the_first_body(
    small_disk: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when what is free was told wrongly: the file is made, and gets no memory."""
    arena = Arena.create(Limits(body_segment_bytes=64 * KIB), directory=small_disk)
    hog = fill_disk(small_disk)
    assert arena.place([bytes(KIB)], KIB) is None
    monkeypatch.setattr(room, "room_bytes", lambda directory: 1 << 30)
    monkeypatch.setattr("barrage.transport.shared_memory.arena.GROWTH_PAUSE_NS", 0)
    assert arena.place([bytes(KIB)], KIB) is None
    assert set(os.listdir(small_disk)) == {"hog", arena.name}
    hog.unlink()
    assert arena.place([bytes(KIB)], KIB) is not None
    arena.close()
