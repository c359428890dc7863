"""Containers against plain arrays of keys, and the portable format against pyroaring itself."""

from __future__ import annotations

import numpy as np
import pytest
from pyroaring import BitMap64

from barrage.rowset import arrays, portable, words64
from barrage.rowset.containers import ARRAY, BITMAP, RUNS, Containers

STRETCH = 1 << 16
KEY_MAX = 2**63 - 1


def drawn(count: int, stop: int, seed: int = 1) -> np.ndarray:
    return np.unique(np.random.default_rng(seed).integers(0, stop, count))


RUN_KEYS = np.concatenate([np.arange(first, first + 90) for first in range(0, 300_000, 200)])
SHAPES = {
    "arrays": drawn(20_000, 2_000_000),
    "bitmaps": drawn(150_000, 300_000),
    "runs": RUN_KEYS,
    "runs without offsets": RUN_KEYS[RUN_KEYS < 2 * STRETCH],
    "runs over all borders": np.delete(np.arange(400_000), [5, 100, 70_000, 393_215]),
    "all kinds": np.concatenate(
        (RUN_KEYS, drawn(40_000, 80_000) + 10 * STRETCH, drawn(9000, 2_000_000) + 2**33)
    ),
    "many buckets": np.concatenate([drawn(30, 2**17, seed) + (seed << 32) for seed in range(40)]),
    "both ends": np.concatenate((np.arange(0, 300, 3), KEY_MAX - np.arange(0, 300, 3)[::-1])),
    "one key": np.array([7]),
    "last of a stretch and first of the next": np.array([STRETCH - 1, STRETCH, 3 * STRETCH]),
}


def containers_of(shape: str) -> list[Containers]:
    """The same set by every way in."""
    keys = SHAPES[shape]
    made = portable.of_ranges(arrays.from_sorted(keys))
    plain, optimised = BitMap64(keys.tolist(), optimize=False), BitMap64(keys.tolist())
    optimised.run_optimize()
    read = [portable.from_portable(bits.serialize()) for bits in (plain, optimised)]
    return [made, portable.of_keys(keys, portable.starts_of_stretches(keys)), *read]


@pytest.fixture(params=list(SHAPES))
def shape(request: pytest.FixtureRequest) -> str:
    return request.param


def test_pyroaring_reads_what_is_written(shape: str) -> None:
    expected = BitMap64(SHAPES[shape].tolist())
    for containers in containers_of(shape):
        assert BitMap64.deserialize(portable.to_portable(containers)) == expected


def test_written_bytes_are_as_few_as_those_of_the_library() -> None:
    """Also where containers of runs are among others: the smallest form is chosen."""
    for keys in SHAPES.values():
        optimised = BitMap64(keys.tolist())
        optimised.run_optimize()
        made = portable.of_ranges(arrays.from_sorted(keys))
        assert len(portable.to_portable(made)) <= len(optimised.serialize())


def test_shapes_have_the_kinds_they_are_named_after() -> None:
    kinds = {
        name: set(portable.of_ranges(arrays.from_sorted(keys)).kinds.tolist())
        for name, keys in SHAPES.items()
    }
    assert kinds["arrays"] == {ARRAY}
    assert kinds["bitmaps"] == {BITMAP}
    assert kinds["runs"] == kinds["runs without offsets"] == {RUNS}
    assert kinds["all kinds"] == {ARRAY, BITMAP, RUNS}


def test_ranges_come_back(shape: str) -> None:
    firsts, lasts = arrays.from_sorted(SHAPES[shape])
    for containers in containers_of(shape):
        found = containers.ranges()
        assert found[0].tolist() == firsts.tolist()
        assert found[1].tolist() == lasts.tolist()
        assert (found[0] is found[1]) or not (len(firsts) >= 16 and (firsts == lasts).all())
        assert containers.range_count() == len(firsts)
        assert containers.size == len(SHAPES[shape])


def probes(keys: np.ndarray) -> np.ndarray:
    draw = np.random.default_rng(3)
    some = draw.choice(keys, 300)
    near = np.concatenate((some, some - 1, np.minimum(some, KEY_MAX - 1) + 1))
    edges = [-1, 0, STRETCH - 1, STRETCH, KEY_MAX - 1, KEY_MAX]
    return np.concatenate((near, edges, draw.integers(0, int(keys[-1]), 100, endpoint=True)))


def test_ranks_and_memberships(shape: str) -> None:
    keys = SHAPES[shape]
    asked = probes(keys)
    ranks, found = np.searchsorted(keys, asked), np.isin(asked, keys)
    for containers in containers_of(shape):
        assert containers.rank_many(asked).tolist() == ranks.tolist()
        assert containers.contains_many(asked).tolist() == found.tolist()
        not_negative = asked >= 0
        one_by_one = [containers.rank(key) for key in asked[not_negative].tolist()]
        assert one_by_one == ranks[not_negative].tolist()


@pytest.mark.parametrize("count", [1, 20, 3000])
def test_selects(shape: str, count: int) -> None:
    """Few positions are searched for in steps, many in one search."""
    keys = SHAPES[shape]
    places = np.random.default_rng(4).integers(0, len(keys), count)
    for containers in containers_of(shape):
        assert containers.select_many(places).tolist() == keys[places].tolist()
        for place in (0, len(keys) - 1, *places[:50].tolist()):
            assert containers.select(place) == keys[place]


def test_parts(shape: str) -> None:
    keys = SHAPES[shape]
    draw = np.random.default_rng(5)
    bounds = [(0, KEY_MAX), (int(keys[0]), int(keys[0])), (STRETCH - 1, 3 * STRETCH)]
    bounds += [tuple(np.sort(draw.choice(keys, 2)).tolist()) for _ in range(10)]
    bounds += [(first + 1, max(last - 1, first + 1)) for first, last in bounds[:10]]
    for containers in containers_of(shape):
        for first, last in bounds:
            expected = arrays.from_sorted(keys[(keys >= first) & (keys <= last)])
            found = containers.ranges_between(first, last)
            assert found[0].tolist() == expected[0].tolist()
            assert found[1].tolist() == expected[1].tolist()
            part = containers.part(first, last)
            within = None if part is None else part.ranges_between(first, last)
            assert (within is None) or within[1].tolist() == expected[1].tolist()
            assert within is not None or len(expected[0]) == 0


def test_bytes_are_those_of_the_arrays() -> None:
    keys = SHAPES["bitmaps"]
    made = portable.of_keys(keys, portable.starts_of_stretches(keys))
    content = len(portable.to_portable(made))
    assert content - 100 <= made.content_nbytes <= content
    before = made.nbytes
    made.rank(7)
    made.select_many(np.arange(3))
    assert made.nbytes == before + made.words.nbytes // 4
    assert made.bare().nbytes == before
    assert made.bare().size == made.size


def test_an_unknown_form_is_refused() -> None:
    serialized = bytearray(BitMap64([1, 2]).serialize())
    serialized[12] ^= 0xFF
    with pytest.raises(ValueError, match="unknown form"):
        portable.from_portable(bytes(serialized))


@pytest.mark.parametrize("has_numpy_count", [True, False])
def test_bits_of_words(monkeypatch: pytest.MonkeyPatch, has_numpy_count: bool) -> None:
    """With numpy's own count of bits (2.0) and with the table."""
    if not has_numpy_count:
        monkeypatch.setattr(words64, "bit_counts", words64.counts_by_table)
    draw = np.random.default_rng(6)
    words = draw.integers(0, 2**64, 200, dtype=np.uint64, endpoint=False)
    words[:4] = (0, 1, 2**63, 2**64 - 1)
    bits = [[place for place in range(64) if int(word) >> place & 1] for word in words]
    assert words64.bit_counts(words.reshape(-1, 4)).reshape(-1).tolist() == list(map(len, bits))
    places = draw.integers(0, 64, 200)
    below = [sum(bit < place for bit in each) for each, place in zip(bits, places, strict=True)]
    assert words64.bits_below(words, places).tolist() == below
    are_set = [place in each for each, place in zip(bits, places.tolist(), strict=True)]
    assert words64.bits_at(words, places).tolist() == are_set
    for rank in (0, 1, 20):
        has = [len(each) > rank for each in bits]
        selected = [each[rank] for each in bits if len(each) > rank]
        assert words64.select_bits(words[has], np.full(sum(has), rank)).tolist() == selected
        assert [words64.select_bit(int(word), rank) for word in words[has]] == selected
