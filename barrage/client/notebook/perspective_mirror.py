"""A table of Perspective's that follows a table here.

Its index is a column of row keys, which name rows for as long as nothing shifts them; after a shift
the whole state is told anew. What Perspective has no type for becomes text.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from barrage.client.notebook.first_rows import texts_of
from barrage.errors import BarrageError, ConfigError
from barrage.limits import ROW_KEY_MAX
from barrage.rowset import RowSet
from barrage.supervision import Role

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping

    from barrage.client.updates.update import Update

ROW_COLUMN = "_row"
"""The index: what a row is called."""

MIRROR = Role("barrage-perspective", "the table of Perspective, which stays as it is")

log = logging.getLogger(__name__)

_DIGITS = len(str(ROW_KEY_MAX))

_T = pa.types
_KEPT = (
    _T.is_boolean,
    _T.is_date32,
    _T.is_float32,
    _T.is_float64,
    _T.is_signed_integer,
    _T.is_uint8,
    _T.is_uint16,
    _T.is_uint32,
    _T.is_string,
)


class PerspectiveMirror:
    """Applies updates to one table of Perspective's, one at a time."""

    def __init__(self, client: Any, schema: pa.Schema, *, name: str | None) -> None:
        """``client`` None: a Perspective of this process."""
        if ROW_COLUMN in schema.names:
            raise ConfigError(f"a column is called {ROW_COLUMN!r}, as the index is to be")
        if client is None:
            import perspective

            client = perspective.Server().new_local_client()
        self._schema = schema
        named = {} if name is None else {"name": name}
        empty = _message(schema.empty_table(), _keys(RowSet.empty()))
        self.table = client.table(empty, index=ROW_COLUMN, **named)
        """Perspective's."""
        self._is_over = threading.Event()
        self.table.on_delete(self._is_over.set)

    def follow(self, updates: Iterable[Update], again: Callable[[], Iterable[Update]]) -> None:
        """Apply what comes until nothing does, or Perspective's table is deleted. ``again`` opens
        updates that begin with the whole state: for when rows have other keys than before."""
        try:
            while not self._is_followed_on_thread(updates):
                updates = again()
        except BarrageError as error:
            log.debug("a table of Perspective is followed no more: %s", error)

    def _is_followed_on_thread(self, updates: Iterable[Update]) -> bool:
        for update in updates:
            if self._is_over.is_set():
                break
            if not self.apply(update):
                return False
        return True

    async def follow_on_loop(
        self, updates: AsyncIterator[Update], again: Callable[[], AsyncIterator[Update]]
    ) -> None:
        """The same for asynchronous updates."""
        try:
            while not await self._is_followed(updates):
                updates = again()
        except BarrageError as error:
            log.debug("a table of Perspective is followed no more: %s", error)

    async def _is_followed(self, updates: AsyncIterator[Update]) -> bool:
        """Whether all of them were applied."""
        async for update in updates:
            if self._is_over.is_set():
                break
            if not self.apply(update):
                return False
        return True

    def apply(self, update: Update) -> bool:
        """Whether it could be applied: one with shifts cannot."""
        if update.is_view:
            raise ConfigError("a table with a viewport cannot be mirrored: subscribe without one")
        if update.is_replacement:
            if not update.schema.equals(self._schema):
                raise ConfigError("the table has other columns than before")
            self.table.replace(_message(update.added, _keys(update.added_rows)))
            return True
        if not update.shifts.is_empty:
            return False
        if update.removed_rows.size:
            self.table.remove(_keys(update.removed_rows).to_pylist())
        if update.added_rows.size:
            self.table.update(_message(update.added, _keys(update.added_rows)))
        self._modify(update.modified_rows, update.modified)
        return True

    def _modify(self, rows: Mapping[str, RowSet], values: Mapping[str, Any]) -> None:
        """Columns with the same rows travel together."""
        together: dict[RowSet, list[str]] = {}
        for name, keys in rows.items():
            together.setdefault(keys, []).append(name)
        for keys, names in together.items():
            changed = pa.table({name: values[name] for name in names})
            self.table.update(_message(changed, _keys(keys)))


def _keys(rows: RowSet) -> pa.Array:
    """What rows are called: their keys, all of one length, so that they sort as they stand. Texts,
    because Perspective does not find large numbers again when they are to be removed."""
    return pc.utf8_lpad(pa.array(rows.to_numpy()).cast(pa.string()), _DIGITS, "0")


def _message(rows: pa.Table, keys: pa.Array) -> bytes:
    """Rows with their keys as an Arrow stream."""
    columns = {ROW_COLUMN: keys}
    columns |= {
        name: _known(column) for name, column in zip(rows.column_names, rows.columns, strict=True)
    }
    table = pa.table(columns)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def _known(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column as a type that Perspective has."""
    kind = column.type
    if any(fits(kind) for fits in _KEPT):
        return column
    if _T.is_float16(kind):
        return column.cast(pa.float32())
    if _T.is_timestamp(kind):
        return column.cast(pa.timestamp("ms"), safe=False)
    return pa.chunked_array([pa.array(list(texts_of(column)), pa.string())])
