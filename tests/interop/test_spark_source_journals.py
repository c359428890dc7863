"""The Spark source over servers without journals, a real Deephaven among them: the reader follows
their tables by plain subscriptions and keeps the journal itself."""

from __future__ import annotations

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from spark_sink.types import cast_batch
from tests.helpers.reader_query import Query
from tests.interop.driven_server import DrivenServer

pytestmark = pytest.mark.interop

WAIT_SECONDS = 60.0


def rows_of(server: DrivenServer, table: str, query: Query) -> list[dict]:
    """What the server says the table holds, in the types Spark gets."""
    target = pa.schema(list(query.target())[4:])
    truth = server.truth(table).combine_chunks()
    return [row for batch in truth.to_batches() for row in cast_batch(batch, target).to_pylist()]


@pytest.mark.parametrize(
    ("table", "key"), [("keyed", "K"), ("keyed", ""), ("grown", ""), ("types", "")]
)
def test_a_table_is_followed_through_changes_and_a_restart(server, tmp_path, table, key):
    options = ({"keyColumns": key} if key else {}) | server.spark_options()
    query = Query(server.uri, tmp_path, table, **options)
    try:
        query.follow_to(lambda: rows_of(server, table, query), WAIT_SECONDS)
        for _ in range(5):
            server.step(2)
            query.batch()
        query.follow_to(lambda: rows_of(server, table, query), WAIT_SECONDS)
        query.reader.stop()
        server.step(3)
        query.open()
        query.follow_to(lambda: rows_of(server, table, query), WAIT_SECONDS)
        server.step()
        query.follow_to(lambda: rows_of(server, table, query), WAIT_SECONDS)
    finally:
        query.reader.stop()
