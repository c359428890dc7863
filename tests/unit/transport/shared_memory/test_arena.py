"""The server's side: placing bodies, running out of room, giving back, closing."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from barrage.errors import LocalProtocolError, TransportUnavailableError
from barrage.limits import Limits
from barrage.transport.shared_memory import Arena, ArenaMapping, Region, room, segment
from barrage.transport.shared_memory import arena as arena_module
from barrage.transport.shared_memory.layout import COPY_BYTES_MAX, FileHeader
from barrage.transport.shared_memory.region import Block
from tests.unit.transport.shared_memory.bodies import KIB, SMALL, content, fill, placed
from tests.unit.transport.shared_memory.peer import all_descriptors


@pytest.fixture
def roomy(directory: str) -> Iterator[Arena]:
    """An arena with room for parts that are large."""
    limits = Limits(body_arena_bytes=16 * COPY_BYTES_MAX, body_segment_bytes=4 * COPY_BYTES_MAX)
    arena = Arena.create(limits, directory=directory)
    yield arena
    arena.close()


def test_body_in_parts_of_every_kind(roomy: Arena, directory: str) -> None:
    numbers = np.arange(1000, dtype=np.int64)
    flags = np.array([True, False, True])
    large = content(1, COPY_BYTES_MAX + 1)
    parts = [
        b"start",
        memoryview(b"a view"),
        pa.py_buffer(b"arrow"),
        b"",
        numbers[:0],
        numbers,
        flags,
        pa.py_buffer(large),
        memoryview(large)[1:],
        b"\0" * 7,
    ]
    body = b"".join(memoryview(part).cast("B") if len(part) else b"" for part in parts)
    region = roomy.place(parts, len(body))
    assert region is not None
    assert region.view == body
    mapping = ArenaMapping.open(roomy.name, directory=directory)
    assert mapping.copy(region.reference()).to_pybytes() == body
    mapping.close()


@pytest.mark.parametrize("byte_count", [99, 101])
@pytest.mark.parametrize("size", [100, COPY_BYTES_MAX * 2])
def test_length_that_is_not_that_of_the_parts_is_refused(
    roomy: Arena, byte_count: int, size: int
) -> None:
    with pytest.raises(LocalProtocolError, match="parts of a body"):
        roomy.place([bytes(size)], size - 100 + byte_count)
    gc.collect()
    assert roomy.statistics().bytes_in_use == 0


@pytest.mark.parametrize("length", [0, 1, 63, 64, 65])
def test_bodies_are_aligned_for_arrow(arena: Arena, mapping: ArenaMapping, length: int) -> None:
    regions = [placed(arena, content(seed, length)) for seed in range(3)]
    for seed, region in enumerate(regions):
        buffer = mapping.borrow(region.reference(), lambda address: None)
        assert region.address % 64 == 0
        assert buffer.address % 64 == 0
        assert buffer.to_pybytes() == content(seed, length)
        assert len(region) == length


def test_body_built_in_place(arena: Arena, mapping: ArenaMapping) -> None:
    region = arena.allocate(1000)
    assert region is not None
    np.frombuffer(region.view, dtype=np.int64)[:] = np.arange(125)
    seen = mapping.borrow(region.reference(), lambda address: None)
    assert np.frombuffer(seen, dtype=np.int64).tolist() == list(range(125))
    region.view[:8] = bytes(range(8))
    assert seen[:8].to_pybytes() == bytes(range(8)), "the same memory"


def test_full_arena_places_nothing_and_recovers(arena: Arena) -> None:
    regions = fill(arena, 10 * KIB)
    assert len(regions) == 4 * 6
    assert arena.place([bytes(10 * KIB)], 10 * KIB) is None
    statistics = arena.statistics()
    assert statistics.segment_count == 4
    assert statistics.refused_count == 2
    assert statistics.segment_bytes == statistics.bytes_max == 256 * KIB
    del regions[7]
    assert arena.place([bytes(10 * KIB)], 10 * KIB) is not None


def test_small_bodies_use_what_is_left_beside_large_ones(arena: Arena) -> None:
    fill_large = fill(arena, 40 * KIB)
    assert len(fill_large) == 4
    assert len(fill(arena, 20 * KIB)) == 4


def test_body_larger_than_a_segment_gets_one_of_its_own(
    arena: Arena, mapping: ArenaMapping
) -> None:
    body = content(3, 150 * KIB)
    region = placed(arena, body)
    assert mapping.copy(region.reference()).to_pybytes() == body
    assert arena.allocate(256 * KIB) is None, "larger than the arena"


def test_memory_lives_as_long_as_its_last_view(arena: Arena) -> None:
    region = placed(arena, content(1, KIB))
    view = region.view
    array = np.frombuffer(view, dtype=np.uint8)[10:]
    assert arena.statistics().bytes_in_use > 0
    del region
    del view
    assert arena.statistics().bytes_in_use > 0
    assert array.tobytes() == content(1, KIB)[10:]
    del array
    assert arena.statistics().bytes_in_use == 0


def test_every_region_has_a_generation_of_its_own(arena: Arena) -> None:
    seen = set()
    for _ in range(50):
        region = placed(arena, b"x" * KIB)
        seen.add((region.generation, region.address))
        del region
    assert len({generation for generation, _ in seen}) == 50
    assert len({address for _, address in seen}) == 1, "warm memory is used again"


def test_closed_arena_places_nothing_and_keeps_what_is_used(
    directory: str, caplog: pytest.LogCaptureFixture
) -> None:
    arena = Arena.create(SMALL, directory=directory)
    mapping = ArenaMapping.open(arena.name, directory=directory)
    region = placed(arena, content(5, KIB))
    buffer = mapping.borrow(region.reference(), lambda address: None)
    arena.close()
    arena.close()
    assert os.listdir(directory) == []
    assert arena.allocate(10) is None
    assert region.view == content(5, KIB)
    assert buffer.to_pybytes() == content(5, KIB)
    assert arena.statistics().segment_count == 0
    assert not caplog.records


def test_arena_is_not_for_a_child_to_close(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its locks may be held there for ever, by threads the child does not have."""
    region = placed(arena, content(5, KIB))
    with monkeypatch.context() as patch:
        patch.setattr(arena_module.os, "getpid", lambda: -1)
        arena.close()
    assert arena.allocate(KIB) is not None
    assert arena.statistics().segment_count == 1
    assert region.view == content(5, KIB)


def test_closed_arena_holds_no_memory(directory: str) -> None:
    arena = Arena.create(SMALL, directory=directory)
    region = placed(arena, content(5, KIB))
    arena.close()
    assert f"{arena.name}.0" in Path("/proc/self/maps").read_text()
    del region
    gc.collect()
    assert f"{arena.name}.0" not in Path("/proc/self/maps").read_text()


def test_forgotten_arena_takes_its_names_away(directory: str) -> None:
    arena = Arena.create(SMALL, directory=directory)
    placed(arena, b"x")
    assert len(os.listdir(directory)) == 2
    del arena
    gc.collect()
    assert os.listdir(directory) == []


def test_descriptors_and_mappings_go_with_the_arena(directory: str) -> None:
    def held() -> tuple[int, int]:
        gc.collect()
        maps = Path("/proc/self/maps").read_text()
        return len(os.listdir("/proc/self/fd")), maps.count(directory)

    before = held()
    for _ in range(20):
        arena = Arena.create(SMALL, directory=directory)
        mapping = ArenaMapping.open(arena.name, directory=directory)
        buffers = [
            mapping.borrow(region.reference(), lambda address: None)
            for region in fill(arena, 20 * KIB)
        ]
        mapping.close()
        arena.close()
        del arena, mapping, buffers
    files, mappings = held()
    assert mappings == before[1]
    # The rest of the process may open and close some meanwhile; left by each round were twenty.
    assert files < before[0] + 15


@pytest.mark.parametrize("umask", [0, 0o777])
def test_files_are_for_this_user_alone(directory: str, umask: int) -> None:
    mask = os.umask(umask)
    try:
        arena = Arena.create(SMALL, directory=directory)
        region = placed(arena, b"x")
    finally:
        os.umask(mask)
    files = list(Path(directory).iterdir())
    assert len(files) == 2
    assert {path.stat().st_mode & 0o7777 for path in files} == {0o600}
    del region
    arena.close()


def test_no_directory_is_an_error_that_says_so(tmp_path: Path) -> None:
    with pytest.raises(TransportUnavailableError, match="no shared memory in"):
        Arena.create(SMALL, directory=str(tmp_path / "nothing"))


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), OSError(22, "Invalid argument")]
)
def test_segment_that_gets_no_memory_is_no_error(
    directory: str, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    arena = Arena.create(SMALL, directory=directory)
    calls = []

    def refuse(fd: int, offset: int, length: int) -> None:
        calls.append(length)
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(segment.os, "posix_fallocate", refuse)
        assert arena.place([b"body"], 4) is None
        assert arena.place([b"body"], 4) is None
    assert calls == [64 * KIB], "the system is not asked again at once"
    assert len(os.listdir(directory)) == 1, "nothing is left of the segment"
    monkeypatch.setattr("barrage.transport.shared_memory.arena.GROWTH_PAUSE_NS", 0)
    assert arena.place([b"body"], 4) is not None
    arena.close()


def test_segment_that_somebody_replaces_is_not_used(
    arena: Arena, directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mapping of a file that has no mark and no memory would be another's to spoil."""
    path = Path(directory) / f"{arena.name}.0"

    def replace(fd: int, offset: int, length: int) -> None:
        path.unlink()
        path.write_bytes(bytes(length))

    monkeypatch.setattr(segment.os, "posix_fallocate", replace)
    assert arena.place([b"body"], 4) is None
    assert arena.statistics().segment_count == 0


def test_server_without_a_descriptor_to_spare_has_no_segment(arena: Arena, directory: str) -> None:
    with all_descriptors():
        assert arena.place([b"body"], 4) is None
    assert os.listdir(directory) == [arena.name], "nothing is left of the segment"


def test_arena_grows_no_further_than_there_is_room(
    arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "room_bytes", lambda path: 20 * KIB)
    monkeypatch.setattr("barrage.transport.shared_memory.arena.GROWTH_PAUSE_NS", 0)
    assert arena.allocate(20 * KIB) is None
    assert arena.allocate(10 * KIB) is not None
    assert arena.statistics().segment_bytes == 20 * KIB


def test_arena_has_no_more_segments_than_a_client_maps(
    arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("barrage.transport.shared_memory.arena.SEGMENTS_MAX", 2)
    assert len(fill(arena, 60 * KIB)) == 2


def test_threads_that_find_no_room_at_the_same_time_make_one_segment(
    arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    both_look, made = threading.Barrier(2), []
    create, take = arena_module.Segment, Arena._take

    def create_slowly(path: str, header: FileHeader) -> segment.Segment:
        made.append(header.number)
        time.sleep(0.05)
        return create(path, header)

    def take_together(self: Arena, size: int) -> Block | None:
        found = take(self, size)
        if found is None and not made:
            with suppress(threading.BrokenBarrierError):
                both_look.wait(0.5)
        return found

    monkeypatch.setattr(arena_module, "Segment", create_slowly)
    monkeypatch.setattr(Arena, "_take", take_together)
    regions: list[Region | None] = []
    threads = [
        threading.Thread(target=lambda: regions.append(arena.allocate(10 * KIB))) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert made == [0]
    assert [region is not None for region in regions] == [True, True]
    assert arena.statistics().refused_count == 0


def test_arena_takes_a_share_of_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    class Free:
        f_bavail, f_frsize = 1000, 4096

    monkeypatch.setattr(room.os, "statvfs", lambda path: Free)
    monkeypatch.setattr(room, "_memory_bounds", lambda: [])
    assert room.room_bytes("/dev/shm") == 1000 * 4096 // 2
    monkeypatch.setattr(room, "_memory_bounds", lambda: [77, 99])
    assert room.room_bytes("/dev/shm") == 77


def test_memory_bounds_are_read_where_there_are_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_MEMORY", "_GROUP_MAX", "_GROUP_NOW"):
        monkeypatch.setattr(room, name, tmp_path / name)
    assert room._memory_bounds() == []
    (tmp_path / "_MEMORY").write_text("MemFree: 1 kB\nMemAvailable:    400 kB\nBuffers: 2 kB\n")
    assert room._memory_bounds() == [100 * KIB]
    (tmp_path / "_GROUP_MAX").write_text("max\n")
    (tmp_path / "_GROUP_NOW").write_text("1000\n")
    assert room._memory_bounds() == [100 * KIB]
    (tmp_path / "_GROUP_MAX").write_text("5000\n")
    assert room._memory_bounds() == [100 * KIB, 1000]
    (tmp_path / "_GROUP_NOW").write_text("6000\n")
    assert room._memory_bounds() == [100 * KIB, 0]


@pytest.mark.parametrize(
    ("arena_bytes", "wanted", "expected"),
    [
        (512 << 20, 64 << 20, 64 << 20),
        (32 << 20, 64 << 20, 8 << 20),
        (2 << 20, 64 << 20, 1 << 20),
        (2 << 20, 4096, 4096),
    ],
)
def test_small_arenas_have_small_segments(arena_bytes: int, wanted: int, expected: int) -> None:
    assert room.segment_bytes(arena_bytes, wanted) == expected


def test_too_little_room_for_any_body(directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "room_bytes", lambda path: 1023)
    with pytest.raises(TransportUnavailableError, match="no room for shared memory"):
        Arena.create(SMALL, directory=directory)
    monkeypatch.setattr(room, "room_bytes", lambda path: 1024)
    Arena.create(SMALL, directory=directory).close()


def test_threads_place_at_the_same_time(directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("barrage.transport.shared_memory.arena.COPY_BYTES_MAX", KIB)
    limits = Limits(body_arena_bytes=4096 * KIB, body_segment_bytes=256 * KIB)
    arena = Arena.create(limits, directory=directory)
    mapping = ArenaMapping.open(arena.name, directory=directory)
    wrong: list[str] = []

    def work(thread: int) -> None:
        draw = np.random.default_rng(thread)
        held: list[tuple[object, bytes]] = []
        for turn in range(300):
            body = content(thread * 1000 + turn, int(draw.integers(1, 60 * KIB)))
            region = arena.place([body[:500], body[500:]], len(body))
            if region is not None:
                buffer = mapping.borrow(region.reference(), lambda address: None)
                held.append((buffer if turn % 2 else region, body))
            while len(held) > 8 or (held and region is None):
                kept, expected = held.pop(int(draw.integers(len(held))))
                seen = kept.to_pybytes() if isinstance(kept, pa.Buffer) else bytes(kept.view)
                if seen != expected:
                    wrong.append(f"thread {thread}, turn {turn}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert not wrong
    gc.collect()
    assert arena.statistics().bytes_in_use == 0
    mapping.close()
    arena.close()
