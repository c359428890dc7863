"""The actions with which a page changes single rows of keyed tables (docs/web-protocol.md
section 4).

A page knows the columns it shows, and two pages may change one row at the same time. So a change
names the cells it is about and, if it likes, what they held when its user looked; all others stay
as they are. The row is read and the change staged in one go on the engine thread.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Annotated, TypeAlias

import msgspec
import pyarrow as pa
from msgspec import Meta

from barrage.engine.tables.coercion import coerce_rows
from barrage.engine.tables.keyed import KeyedTable
from barrage.errors import BarrageError, SchemaError, StatusCode, UnsupportedError, near_miss
from barrage.model.storage import cells_differ
from barrage.server.access.method_table import Action
from barrage.server.identity.current_call import note_table
from barrage.server.pages.cell_texts import cell_of_text
from barrage.server.policy.rules import Operation
from barrage.server.presentation.text_forms import text_of
from barrage.server.settings.json_fields import Fields
from barrage.server.tables.table_service import Change, source_for_peers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from barrage.engine.tables.table import Table
    from barrage.limits import Limits
    from barrage.server.policy.access_gate import AccessGate, Tables
    from barrage.server.runtime.catalog import Catalog
    from barrage.server.tables.table_service import TableService

SET_CELLS = "barrage.set_cells"
ADD_ROW = "barrage.add_row"
REMOVE_ROW = "barrage.remove_row"

Texts: TypeAlias = dict[str, str | None]
"""Cells by column."""

_Cells = Annotated[Texts, Meta(description="an object of texts and nulls by column")]
_Key = Annotated[dict[str, str], Meta(description="an object of texts by column")]
_SHOWN_CHARS = 60


class RowNotFoundError(BarrageError):
    """No row has this key, or none any more."""

    status_code = StatusCode.NOT_FOUND


class RowExistsError(BarrageError):
    """A row that is to be new has the key of one that is there."""

    status_code = StatusCode.ALREADY_EXISTS


class CellChangedError(BarrageError):
    """A cell does not hold any more what the caller saw in it."""

    status_code = StatusCode.ABORTED


class RowEditCalls:
    """The behaviors."""

    def __init__(
        self, catalog: Catalog, tables: TableService, *, gate: AccessGate, limits: Limits
    ) -> None:
        self._catalog = catalog
        self._tables = tables
        self._gate = gate
        self._limits = limits

    @property
    def actions(self) -> Mapping[str, Action]:
        return {
            SET_CELLS: Action(
                'Change cells of one row. Body: JSON {"table", "key": {column: text}, "cells": '
                '{column: text or null}, "expected": the same of what they held}. Result: JSON '
                '{"step"}.',
                self._set_cells,
            ),
            ADD_ROW: Action(
                'Add a row. Body: JSON {"table", "cells": {column: text or null}}; columns left '
                'out are null. Result: JSON {"step"}.',
                self._add_row,
            ),
            REMOVE_ROW: Action(
                'Remove a row. Body: JSON {"table", "key": {column: text}}. Result: JSON {"step"}.',
                self._remove_row,
            ),
        }

    async def _set_cells(self, body: bytes) -> bytes:
        fields, name = self._begun(body)
        key, cells = fields.get("key", _Key), fields.get("cells", _Cells)
        expected = fields.get("expected", _Cells, {})
        fields.finish()

        def change(target: KeyedTable) -> Change:
            return _cells_set(target, key, cells=cells, expected=expected)

        return await self._changed(name, change)

    async def _add_row(self, body: bytes) -> bytes:
        fields, name = self._begun(body)
        cells = fields.get("cells", _Cells)
        fields.finish()
        return await self._changed(name, lambda target: _row_added(target, cells))

    async def _remove_row(self, body: bytes) -> bytes:
        fields, name = self._begun(body)
        key = fields.get("key", _Key)
        fields.finish()
        return await self._changed(name, lambda target: _row_removed(target, key))

    def _begun(self, body: bytes) -> tuple[Fields, str]:
        """The fields of a request, and the table that its caller may change."""
        fields = Fields.parse(body, "action body", bytes_max=self._limits.edit_bytes_max)
        name = fields.get("table", str)
        note_table(name)
        self._gate.check(name, Operation.WRITE)
        # What is refused tells what a row holds, and that there is one.
        self._gate.check(name, Operation.READ)
        return fields, name

    async def _changed(self, name: str, change: Callable[[KeyedTable], Change]) -> bytes:
        tables = self._gate.tables(self._catalog)
        stage = partial(self._staged, tables, name, change)
        step = await asyncio.wrap_future(self._tables.commit(stage))
        return msgspec.json.encode({"step": step})

    def _staged(
        self, tables: Tables, name: str, change: Callable[[KeyedTable], Change]
    ) -> tuple[tuple[Table, ...], Callable[[int], int]]:
        """Engine thread."""
        target = source_for_peers(tables.live(name))
        if not isinstance(target, KeyedTable):
            raise UnsupportedError(f"table {name!r} has no key: its rows cannot be changed singly")
        return self._tables.stage_now([change(target)]), lambda step: step


def _cells_set(target: KeyedTable, key: Texts, *, cells: Texts, expected: Texts) -> Change:
    row = _row(target, key)
    for name in cells:
        if name in target.key_columns:
            raise SchemaError(
                f"column {name!r} is of the key, which does not change: add a row with the other "
                "key and remove this one"
            )
    for name, text in expected.items():
        _check_expected(row, name, text)
    for name, text in cells.items():
        place = _place(target.schema, name)
        row = row.set_column(place, row.schema.field(place), _cell(target.schema, name, text))
    return Change(target, "stage_upsert", (coerce_rows(target.schema, row),))


def _row_added(target: KeyedTable, cells: Texts) -> Change:
    for name in cells:
        _place(target.schema, name)
    columns = [_cell(target.schema, field.name, cells.get(field.name)) for field in target.schema]
    row = coerce_rows(target.schema, pa.table(columns, names=target.schema.names))
    if target.latest_row(row.select(list(target.key_columns))) is not None:
        shown = _shown_key({name: cells.get(name) for name in target.key_columns})
        raise RowExistsError(f"there is a row with {shown} already")
    return Change(target, "stage_upsert", (row,))


def _row_removed(target: KeyedTable, key: Texts) -> Change:
    row = _row(target, key)
    return Change(target, "stage_remove", (row.select(list(target.key_columns)),))


def _row(target: KeyedTable, key: Texts) -> pa.Table:
    """The row with a key, as it is now. RowNotFoundError, SchemaError, RowError."""
    if set(key) != set(target.key_columns):
        raise SchemaError(f"the key is {', '.join(target.key_columns)}, not {', '.join(key)}")
    columns = [_cell(target.schema, name, key[name]) for name in target.key_columns]
    row = target.latest_row(pa.table(columns, names=list(target.key_columns)))
    if row is None:
        raise RowNotFoundError(f"there is no row with {_shown_key(key)} any more")
    return row


def _check_expected(row: pa.Table, name: str, text: str | None) -> None:
    seen = _cell(row.schema, name, text)
    holds = row.column(_place(row.schema, name)).combine_chunks()
    if cells_differ(holds, seen)[0]:
        now = "null" if holds.null_count else repr(_shortened(text_of(holds)[0].as_py()))
        raise CellChangedError(f"somebody else has changed {name!r}: it holds {now} now")


def _cell(schema: pa.Schema, name: str, text: str | None) -> pa.Array:
    return cell_of_text(text, schema.field(_place(schema, name)))


def _place(schema: pa.Schema, name: str) -> int:
    place = schema.get_field_index(name)
    if place < 0:
        raise SchemaError(f"unknown column {name[:_SHOWN_CHARS]!r}{near_miss(name, schema.names)}")
    return int(place)


def _shown_key(key: Mapping[str, str | None]) -> str:
    return ", ".join(f"{name} {_shortened(text or '')!r}" for name, text in key.items())


def _shortened(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARS else f"{text[: _SHOWN_CHARS - 1]}…"
