"""Where the streams of one program land: a table of its name, and the positions that go with its
rows.

A batch is one command of the engine, one cycle and one record of the journal, positions included:
so after a crash every stream stands exactly behind the last of its rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from barrage.errors import EngineError, SchemaError, UnsupportedError
from barrage.server.policy.rules import Operation
from barrage.server.tables.table_service import (
    Change,
    TableRecipe,
    WriteChain,
    check_ours,
    source_for_peers,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from concurrent.futures import Future

    from barrage.engine.tables.source import SourceTable
    from barrage.engine.tables.table import Table
    from barrage.proto.connector.stream_desk import StreamBatch
    from barrage.server.identity.caller import Caller
    from barrage.server.policy.access_gate import AccessGate
    from barrage.server.runtime.catalog import Catalog
    from barrage.server.tables.table_service import TableService

SCHEMA = pa.schema(
    [
        ("stream", pa.string()),
        ("message_id", pa.uint64()),
        ("event_time", pa.int64()),
        ("key", pa.binary()),
        ("payload", pa.binary()),
    ]
)
"""Of every table that streams land in. ``event_time`` is what the source sent: the protocol knows
no unit."""


@dataclass(frozen=True, slots=True)
class Landing:
    """A table, where its streams stood when it was opened, and the writes since, which fail
    together."""

    program: str
    table: SourceTable
    positions: Mapping[int, int]
    chain: WriteChain


class StreamLandings:
    """Opens landings and writes to them. May be called from any thread."""

    def __init__(self, tables: TableService, catalog: Catalog, *, gate: AccessGate) -> None:
        self._gate = gate
        self._tables = tables
        self._catalog = catalog

    def open(self, program: str, caller: Caller) -> Future[Landing]:
        """The table of a program for a caller, made when there is none. What it says of positions
        is as safe as the table's journal makes it. SchemaError when the name or the table cannot be
        used, ReadOnlyTableError, UnsupportedError, TableExistsError, PermissionDeniedError."""
        self.check(program, caller)
        recipe = TableRecipe.checked(program, SCHEMA)
        return self._tables.commit(partial(self._opened, recipe, caller))

    def check(self, program: str, caller: Caller | None) -> None:
        """Let through who may write to the table of a program. PermissionDeniedError, in the same
        words whether there is such a table or not."""
        self._gate.check(program, Operation.WRITE, Operation.CREATE, caller=caller)
        self._gate.check(program, Operation.WRITE, caller=caller)

    def write(self, landing: Landing, batch: StreamBatch) -> Future[int]:
        """Rows and positions of a batch, all of it or nothing; resolves once they are as safe as
        the table's journal makes them. Once one has failed those after it do. Whose they are was
        looked at when they were welcomed; they are cut off when the rules are others."""
        rows = None
        if batch.ids:
            columns = (
                batch.streams,
                batch.ids,
                batch.event_times,
                batch.keys,
                batch.payloads,
            )
            arrays = [pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)]
            rows = pa.Table.from_arrays(arrays, schema=SCHEMA)
        return self._tables.commit(partial(self._staged, landing, rows, dict(batch.positions)))

    # --- engine thread ---

    def _opened(
        self, recipe: TableRecipe, caller: Caller
    ) -> tuple[tuple[Table, ...], Callable[[int], Landing]]:
        found = self._catalog.find(recipe.name)
        if found is None:
            self._gate.check(recipe.name, Operation.CREATE, caller=caller)
        publication = self._tables.create_now(recipe, None) if found is None else found
        check_ours(publication)
        table = source_for_peers(publication)
        if table.key_columns or publication.kind == "static":
            raise UnsupportedError(f"table {recipe.name!r} takes no streams: it is not appended to")
        columns = [(field.name, field.type) for field in table.schema]
        if columns != [(field.name, field.type) for field in SCHEMA]:
            raise SchemaError(
                f"table {recipe.name!r} takes no streams: its columns are not "
                f"{', '.join(SCHEMA.names)}"
            )
        positions = self._tables.journals.positions
        return (table,), lambda _: Landing(
            recipe.name, table, positions.streams(table), WriteChain()
        )

    def _staged(
        self, landing: Landing, rows: pa.Table | None, positions: Mapping[int, tuple[int, int]]
    ) -> tuple[tuple[Table, ...], Callable[[int], int]]:
        if landing.chain.is_broken:
            raise EngineError("a write before this one was refused")
        try:
            self._stage(landing, rows, positions)
        except BaseException:
            landing.chain.is_broken = True
            raise
        return (landing.table,), lambda step: step

    def _stage(
        self, landing: Landing, rows: pa.Table | None, positions: Mapping[int, tuple[int, int]]
    ) -> None:
        table, journals = landing.table, self._tables.journals
        found = self._catalog.find(landing.program)
        if found is None or found.table is not table:
            raise EngineError(f"table {landing.program!r} was dropped or replaced")
        if rows is None:
            journals.check_writable([table])
            journals.positions.stage_streams(table, positions)
            return
        mark = table.staged_mark()
        self._tables.stage_now([Change(table, "stage_add", (rows,))])
        try:
            journals.positions.stage_streams(table, positions)
        except BaseException:
            table.rollback(mark)
            raise
