"""The index of entries: what readers were given does not change when it grows or forgets."""

from __future__ import annotations

from barrage.journal.records.index import Index, IndexRow, entry_index


def row(step: int) -> IndexRow:
    return IndexRow(
        step=step,
        wall_ns=10 * step,
        first_offset=step,
        row_count=1,
        byte_count=5,
        segment=1,
        place=step,
        before_count=step % 2,
    )


def test_rows_come_and_go_at_their_ends() -> None:
    index = Index()
    assert (len(index), index.last, index.byte_count) == (0, None, 0)
    index.extend([])
    given = []
    for step in range(1, 400):
        index.extend([row(step)])
        given.append((step, index.rows))
        if step % 7 == 0:
            index.forget_upto(step - 20)
    assert index.last == row(399)
    assert index.steps.tolist() == list(range(380, 400))
    assert all(rows[-1, 0] == step for step, rows in given)
    assert all((rows[1:, 0] - rows[:-1, 0] == 1).all() for _, rows in given)
    assert index.byte_count == 5 * len(index)


def test_what_was_forgotten_takes_no_memory() -> None:
    index = Index()
    for step in range(1, 5001):
        index.extend([row(step)])
        index.forget_upto(step - 100)
        room = index.rows.base
        assert room is not None
        # 64 bytes an entry, and at most as many again and once more for those that come.
        assert room.nbytes <= 64 * max(64, 2 * len(index) + 2)
    assert len(index) == 100


def test_spans_are_open_at_the_left_and_closed_at_the_right() -> None:
    index = Index()
    index.extend([row(step) for step in (2, 4, 6, 8)])
    assert index.span(2, 6)[:, 0].tolist() == [4, 6]
    assert index.span(1, 7)[:, 0].tolist() == [2, 4, 6]
    assert index.span(8, 9)[:, 0].tolist() == []
    facts = entry_index(index.span(0, 9))
    assert (facts.wall_ns.tolist(), len(facts)) == ([20, 40, 60, 80], 4)
    index.forget_upto(5)
    assert index.steps.tolist() == [6, 8]
    assert facts.steps.tolist() == [2, 4, 6, 8]


def test_rows_of_the_feed_are_those_of_the_history_without_what_was_before() -> None:
    index = Index()
    index.extend([row(step)._replace(row_count=10, before_count=step) for step in (1, 2, 4)])
    facts = entry_index(index.span(0, 9))
    assert facts.feed_counts(has_preimage=True).tolist() == [10, 10, 10]
    assert facts.feed_counts(has_preimage=False).tolist() == [9, 8, 6]
