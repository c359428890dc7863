"""What the tests of the source share: queries that collect their batches, and a table built from a
change feed that refuses what could not have happened."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

META = ("_change_type", "_commit_version", "_commit_timestamp", "_row_id")


class Collected:
    """A ``foreachBatch`` function that keeps each batch's rows; a batch that comes again replaces
    what it left, as an idempotent sink would."""

    def __init__(self) -> None:
        self.batches: dict[int, pa.Table] = {}

    def __call__(self, rows: DataFrame, batch: int) -> None:
        self.batches[batch] = rows.toArrow()

    def rows(self) -> list[dict[str, Any]]:
        """All rows, in order of batches."""
        return [row for number in sorted(self.batches) for row in self.batches[number].to_pylist()]

    def sizes(self) -> list[int]:
        """Rows of each batch."""
        return [self.batches[number].num_rows for number in sorted(self.batches)]

    def state(self) -> dict[int, dict[str, Any]]:
        """The table the feed describes, by row id."""
        rows: dict[int, dict[str, Any]] = {}
        for number in sorted(self.batches):
            apply_feed(rows, self.batches[number].to_pylist())
        return rows

    def values(self) -> list[dict[str, Any]]:
        """The rows of the table the feed describes, sorted."""
        return sorted(self.state().values(), key=repr)


def apply_feed(state: dict[int, dict[str, Any]], feed: list[dict[str, Any]]) -> None:
    """Apply one batch; AssertionError when a living row is inserted again, or a row changes that
    is not there."""
    seen = set()
    if any(row["_change_type"] == "truncate" for row in feed):
        state.clear()
    for row in sorted(feed, key=lambda row: row["_commit_version"]):
        kind, identity = row["_change_type"], row["_row_id"]
        if kind in ("truncate", "update_preimage"):
            continue
        change = (identity, row["_commit_version"])
        assert change not in seen, f"{change} comes twice"
        seen.add(change)
        values = {name: value for name, value in row.items() if name not in META}
        if kind == "insert":
            assert identity not in state, f"row {identity} is inserted twice"
            state[identity] = values
        elif kind == "delete":
            assert state.pop(identity, None) == values, f"row {identity} was not like that"
        else:
            assert kind == "update_postimage"
            assert identity in state, f"row {identity} changes and is not there"
            state[identity] = values


def run(
    stream: DataFrame, checkpoint: str, collected: Collected, *, timeout: float = 90, **trigger: Any
) -> Any:
    """Run a query that ends by itself over what is there; its last progress is on the query."""
    query = (
        stream.writeStream.foreachBatch(collected)
        .option("checkpointLocation", checkpoint)
        .trigger(**(trigger or {"availableNow": True}))
        .start()
    )
    try:
        assert query.awaitTermination(timeout), "the query does not end"
    finally:
        query.stop()
    return query


def sorted_rows(table: Any) -> list[dict[str, Any]]:
    """The rows of a published table, in the order :meth:`Collected.values` has."""
    return sorted(table.to_arrow().to_pylist(), key=repr)
