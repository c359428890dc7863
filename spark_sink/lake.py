"""A ticking table kept as a Delta or Iceberg table as well, for readers that know nothing of us.

Both are written from the driver's side by the Rust or Python library of the format, without a jar
and without Spark. Each write carries, in the same atomic commit, the *history* it belongs to (query
and snapshot number) and the batch: Delta as a transaction identifier, Iceberg as a table property.
So a batch that runs again after a crash writes nothing.

The rows pass through the memory of the process that writes: a whole table when a history begins,
then the changes of one batch at a time. The table has the columns of the view and ``_row_id``.
"""

from __future__ import annotations

import importlib.util
import warnings
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from barrage.errors import ConfigError
from spark_sink.sink_options import CHANGE_TYPE
from spark_sink.ticking_rows import COMMIT_VERSION, DELETE, ROW_ID

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

CURSOR_PROPERTY = "barrage.cursor"
BATCH_PROPERTY = "barrage.batch"
HISTORY_PROPERTY = "barrage.history"
FORMATS = ("parquet", "delta", "iceberg")
ICEBERG_CATALOG = "barrage"
ICEBERG_NAMESPACE = "barrage"


class Lake(Protocol):
    """A table in some open format. Picklable."""

    def last_batch(self, history: str) -> int | None:
        """The last batch of ``history`` that is in; None when none of it is."""

    def replace(self, rows: pa.Table, *, history: str, batch: int, cursor: str) -> None:
        """Make ``rows`` the whole table, in one commit."""

    def merge(self, changes: pa.Table, *, history: str, batch: int, cursor: str) -> None:
        """Apply changes of a feed, in one commit."""


def lake_of(
    kind: str, location: str, *, name: str, catalog: Mapping[str, str] | None
) -> Lake | None:
    """The lake a user asked for by format and location; None for plain Parquet. ConfigError."""
    if kind not in FORMATS:
        raise ConfigError(f"format is one of {', '.join(FORMATS)}, not {kind!r}")
    if kind == "parquet":
        return None
    if kind == "delta":
        _require("deltalake")
        return DeltaLake(location=location)
    _require("pyiceberg")
    return IcebergLake(location=location, name=name, catalog=dict(catalog or {}))


def _require(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise ConfigError(f"this format needs the package {package}: pip install 'barrage[lake]'")


def last_changes(changes: pa.Table) -> pa.Table:
    """The last change of each row id."""
    if len(changes) < 2:
        return changes
    ordered = changes.sort_by(COMMIT_VERSION)
    numbered = ordered.select([ROW_ID]).append_column("_at", pa.array(np.arange(len(ordered))))
    last = numbered.group_by(ROW_ID).aggregate([("_at", "max")]).column("_at_max")
    return ordered.take(last.combine_chunks().sort())


def _plain(rows: pa.Table) -> pa.Table:
    """Spark's Arrow form without what the formats do not know."""
    fields = [item.with_type(_plain_type(item.type)).with_nullable(True) for item in rows.schema]
    return rows.cast(pa.schema(fields))


def _plain_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp("us", "UTC")
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    return kind


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaLake:
    """A Delta table at ``location``."""

    location: str

    def last_batch(self, history: str) -> int | None:
        found = self._open()
        if found is None:
            return None
        last = found.transaction_version(_app_id(history))
        return None if last is None else int(last)

    def replace(self, rows: pa.Table, *, history: str, batch: int, cursor: str) -> None:
        from deltalake import write_deltalake

        write_deltalake(
            self.location,
            _plain(rows),
            mode="overwrite",
            schema_mode="overwrite",
            commit_properties=self._properties(history, batch, cursor),
        )

    def merge(self, changes: pa.Table, *, history: str, batch: int, cursor: str) -> None:
        found = self._open()
        assert found is not None, "a history begins with replace()"
        last = _plain(last_changes(changes).drop_columns([COMMIT_VERSION]))
        columns = [name for name in last.column_names if name != CHANGE_TYPE]
        values = {_quoted(name): f"s.{_quoted(name)}" for name in columns}
        is_deleted = f"s.{CHANGE_TYPE} = '{DELETE}'"
        (
            found.merge(
                last,
                predicate=f"t.{ROW_ID} = s.{ROW_ID}",
                source_alias="s",
                target_alias="t",
                commit_properties=self._properties(history, batch, cursor),
            )
            .when_matched_delete(predicate=is_deleted)
            .when_matched_update(updates=values)
            .when_not_matched_insert(updates=values, predicate=f"NOT ({is_deleted})")
            .execute()
        )

    def _open(self) -> Any:
        from deltalake import DeltaTable

        if not DeltaTable.is_deltatable(self.location):
            return None
        return DeltaTable(self.location)

    def _properties(self, history: str, batch: int, cursor: str) -> Any:
        from deltalake import CommitProperties, Transaction

        return CommitProperties(
            custom_metadata={CURSOR_PROPERTY: cursor},
            app_transactions=[Transaction(_app_id(history), batch)],
        )


def _app_id(history: str) -> str:
    return f"barrage/{history}"


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


@contextmanager
def _unmatched_allowed() -> Iterator[None]:
    """Deleting what is not there is no news: the table may be empty, the rows new."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Delete operation did not match")
        yield


@dataclass(frozen=True, slots=True, kw_only=True)
class IcebergLake:
    """An Iceberg table ``barrage.<name>``: of the catalog the user names by its properties, or of a
    catalog in a file of ``location``, which is the warehouse then."""

    location: str
    name: str
    catalog: dict[str, str] = field(default_factory=dict)

    def last_batch(self, history: str) -> int | None:
        found = self._open()
        if found is None or found.properties.get(HISTORY_PROPERTY) != history:
            return None
        return int(found.properties[BATCH_PROPERTY])

    def replace(self, rows: pa.Table, *, history: str, batch: int, cursor: str) -> None:
        plain = _plain(rows)
        found = self._open() or self._create(plain.schema)
        with found.transaction() as change:
            with change.update_schema() as schema:
                schema.union_by_name(plain.schema)
            with _unmatched_allowed():
                change.overwrite(plain)
            change.set_properties(self._properties(history, batch, cursor))

    def merge(self, changes: pa.Table, *, history: str, batch: int, cursor: str) -> None:
        from pyiceberg import expressions

        is_in: Any = expressions.In
        found = self._open()
        assert found is not None, "a history begins with replace()"
        last = last_changes(changes).drop_columns([COMMIT_VERSION])
        is_deleted = pc.equal(last.column(CHANGE_TYPE), DELETE)
        coming = _plain(last.filter(pc.invert(is_deleted)).drop_columns([CHANGE_TYPE]))
        touched = last.column(ROW_ID).to_pylist()
        with found.transaction() as change:
            if touched:
                # Rows of these ids go, and their new forms come: one snapshot each, one commit.
                with _unmatched_allowed():
                    change.delete(is_in(ROW_ID, touched))
                change.append(coming)
            change.set_properties(self._properties(history, batch, cursor))

    def _properties(self, history: str, batch: int, cursor: str) -> dict[str, str]:
        return {
            HISTORY_PROPERTY: history,
            BATCH_PROPERTY: str(batch),
            CURSOR_PROPERTY: cursor,
        }

    def _identifier(self) -> tuple[str, str]:
        return ICEBERG_NAMESPACE, self.name

    def _open(self) -> Any:
        catalog = self._catalog()
        if not catalog.table_exists(self._identifier()):
            return None
        return catalog.load_table(self._identifier())

    def _create(self, schema: pa.Schema) -> Any:
        catalog = self._catalog()
        catalog.create_namespace_if_not_exists(ICEBERG_NAMESPACE)
        return catalog.create_table(self._identifier(), schema=schema)

    def _catalog(self) -> Any:
        from pyiceberg.catalog import load_catalog

        if self.catalog:
            return load_catalog(ICEBERG_CATALOG, **self.catalog)
        folder = Path(self.location)
        folder.mkdir(parents=True, exist_ok=True)
        return load_catalog(
            ICEBERG_CATALOG,
            type="sql",
            uri=f"sqlite:///{folder.resolve()}/catalog.db",
            warehouse=folder.resolve().as_uri(),
        )
