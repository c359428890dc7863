"""The schemas of what the format reads, as its options want them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from barrage.errors import ConfigError
from spark_sink.journal_access import open_journal
from spark_sink.options import SourceOptions
from spark_sink.types import feed_schema, selected, spark_schema

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql.types import StructType

    from spark_sink.remote_journal import SourceFacts


def source_schema(given: Mapping[str, str]) -> tuple[StructType, tuple[str, int]]:
    """The schema of ``load()``, and the epoch and version the table had; asks the server once."""
    options = SourceOptions.of(given)
    journal = open_journal(options, consumer="schema", is_writing=False)
    try:
        table = journal.describe()
        return expected_schema(options, table), (table.facts.epoch, table.facts.version)
    finally:
        journal.close()


def expected_schema(options: SourceOptions, table: SourceFacts) -> StructType:
    """The Spark schema these options give for a table; ConfigError or SchemaError."""
    form = options.form
    columns = selected(table.schema, form.columns, options.table)
    if not options.has_feed_columns:
        return spark_schema(columns, options.types)
    feed = feed_schema(
        columns,
        has_row_key=form.has_row_key,
        has_modified_columns=form.has_modified_columns,
    )
    doubled = sorted({name for name in feed.names if feed.names.count(name) > 1})
    if doubled:
        raise ConfigError(
            f"table {options.table!r} has a column {doubled[0]!r}, as the change feed does: leave "
            "it out by option columns"
        )
    return spark_schema(feed, options.types)
