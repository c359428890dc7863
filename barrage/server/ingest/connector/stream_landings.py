"""Where the streams of a program land: a table, the one of what could not be decoded, and the
positions that go with their rows.

A batch is one command of the engine and one cycle, positions included; the journals count it as a
whole or not at all. So after a crash every stream stands exactly behind the last of its rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from barrage.errors import EngineError, PermissionDeniedError, SchemaError, UnsupportedError
from barrage.server.policy.rules import Operation
from barrage.server.tables.table_service import Change, TableRecipe, check_ours, source_for_peers
from barrage.server.tables.write_room import WriteChain
from barrage.wire.payloads.source_mapping import (
    LANDING_SCHEMA,
    REJECTED_SCHEMA,
    REJECTED_SUFFIX,
    MappedRows,
    SourceMapping,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Future

    import pyarrow as pa

    from barrage.engine.tables.source import SourceTable
    from barrage.engine.tables.table import Table
    from barrage.limits import Limits
    from barrage.server.identity.caller import Caller
    from barrage.server.policy.access_gate import AccessGate
    from barrage.server.runtime.catalog import Catalog
    from barrage.server.tables.table_service import TableService
    from barrage.wire.payloads.source_mapping import RowMapper


AS_THEY_ARE = SourceMapping.landing()


@dataclass(frozen=True, slots=True)
class LandingTarget:
    """A table and how messages become rows of it. Programs with equal targets share their
    streams."""

    table: str
    mapping: SourceMapping
    is_raw: bool
    """Whether nothing was declared, and messages land as they are."""


@dataclass(frozen=True, slots=True)
class Landing:
    """A table that takes streams, where these stood when it was opened, and the writes since, which
    fail together."""

    target: LandingTarget
    table: SourceTable
    rejected: SourceTable | None
    mapper: RowMapper
    positions: Mapping[int, int]
    chain: WriteChain


class StreamLandings:
    """Opens landings and writes to them. May be called from any thread."""

    def __init__(
        self,
        tables: TableService,
        catalog: Catalog,
        *,
        gate: AccessGate,
        limits: Limits,
        sources: Sequence[SourceMapping] = (),
    ) -> None:
        """``sources``: the programs that are served; without any, all are, and land as they
        are."""
        self._gate = gate
        self._tables = tables
        self._catalog = catalog
        self._limits = limits
        self._sources = sources

    def target(self, program: str, instance: str) -> LandingTarget:
        """Where a program's messages go; PermissionDeniedError when none of the sources that are
        declared is for it."""
        if not self._sources:
            return LandingTarget(program, AS_THEY_ARE, is_raw=True)
        for each in self._sources:
            if each.is_for(program, instance):
                return LandingTarget(each.table_of(program), each, is_raw=False)
        raise PermissionDeniedError(f"no source is declared for program {program!r}")

    def open(self, target: LandingTarget, caller: Caller) -> Future[Landing]:
        """The table of a target for a caller, made when there is none. What it says of positions
        is as safe as the table's journal makes it. SchemaError when the name or the table cannot be
        used, ConfigError when nothing says how to make it, ReadOnlyTableError, UnsupportedError,
        TableExistsError, PermissionDeniedError."""
        self.check(target, caller)
        return self._tables.commit(partial(self._opened, target, caller))

    def check(self, target: LandingTarget, caller: Caller | None) -> None:
        """Let through who may write to the tables of a target. PermissionDeniedError, in the same
        words whether there is such a table or not."""
        for name in _names(target):
            self._gate.check(name, Operation.WRITE, Operation.CREATE, caller=caller)
            self._gate.check(name, Operation.WRITE, caller=caller)

    def write(
        self, landing: Landing, mapped: MappedRows | None, positions: Mapping[int, tuple[int, int]]
    ) -> Future[int]:
        """Rows and positions of a batch, all of it or nothing; resolves once they are as safe as
        the table's journal makes them. Once one has failed those after it do. Whose they are was
        looked at when they were welcomed; they are cut off when the rules are others."""
        return self._tables.commit(partial(self._staged, landing, mapped, dict(positions)))

    # --- engine thread ---

    def _opened(
        self, target: LandingTarget, caller: Caller
    ) -> tuple[tuple[Table, ...], Callable[[int], Landing]]:
        mapping = target.mapping
        made = partial(self._found_or_made, caller=caller)
        table = made(target.table, mapping.new_schema, key=mapping.key)
        if target.is_raw and _columns(table) != [(f.name, f.type) for f in LANDING_SCHEMA]:
            raise SchemaError(
                f"table {target.table!r} takes no streams: its columns are not "
                f"{', '.join(LANDING_SCHEMA.names)}"
            )
        mapper = mapping.mapper(table.schema, limits=self._limits)
        rejected = None
        if _keeps_rejected(target):
            name = target.table + REJECTED_SUFFIX
            rejected = made(name, lambda: REJECTED_SCHEMA, key=())
            if _columns(rejected) != [(f.name, f.type) for f in REJECTED_SCHEMA]:
                raise SchemaError(f"table {name!r} has other columns than those of dead letters")
        streams = self._tables.journals.positions.streams(table)
        landing = Landing(target, table, rejected, mapper, streams, WriteChain())
        tables = (table,) if rejected is None else (table, rejected)
        return tables, lambda _: landing

    def _found_or_made(
        self,
        name: str,
        schema: Callable[[], pa.Schema],
        *,
        key: Sequence[str],
        caller: Caller,
    ) -> SourceTable:
        publication = self._catalog.find(name)
        if publication is None:
            self._gate.check(name, Operation.CREATE, caller=caller)
            recipe = TableRecipe.checked(name, schema(), key=key)
            publication = self._tables.create_now(recipe, None)
        check_ours(publication)
        table = source_for_peers(publication)
        if publication.kind == "static" or tuple(table.key_columns) != tuple(key):
            has = f"the key {', '.join(table.key_columns)}" if table.key_columns else "no key"
            raise UnsupportedError(
                f"table {name!r} takes no streams: it is {publication.kind} and has {has}, "
                f"{'its source ' + ', '.join(key) if key else 'its source appends'}"
            )
        return table

    def _staged(
        self,
        landing: Landing,
        mapped: MappedRows | None,
        positions: Mapping[int, tuple[int, int]],
    ) -> tuple[tuple[Table, ...], Callable[[int], int]]:
        if landing.chain.is_broken:
            raise EngineError("a write before this one was refused")
        try:
            tables = self._stage(landing, mapped, positions)
        except BaseException:
            landing.chain.is_broken = True
            raise
        return tables, lambda step: step

    def _stage(
        self,
        landing: Landing,
        mapped: MappedRows | None,
        positions: Mapping[int, tuple[int, int]],
    ) -> tuple[Table, ...]:
        table, journals = landing.table, self._tables.journals
        found = self._catalog.find(landing.target.table)
        if found is None or found.table is not table:
            raise EngineError(f"table {landing.target.table!r} was dropped or replaced")
        changes = [] if mapped is None else _changes(landing, mapped)
        if not changes:
            journals.check_writable([table])
            journals.positions.stage_streams(table, positions)
            return (table,)
        # Before anything is staged, which would have to be taken back.
        journals.positions.check_streams(table, positions)
        marks = {each: each.staged_mark() for each in (change.table for change in changes)}
        self._tables.stage_now(changes)
        try:
            journals.positions.stage_streams(table, positions)
        except BaseException:
            for each, mark in marks.items():
                each.rollback(mark)
            raise
        return tuple({table: None} | dict.fromkeys(marks))


def _changes(landing: Landing, mapped: MappedRows) -> list[Change]:
    changes = []
    if len(mapped.rows):
        add = "stage_upsert" if landing.target.mapping.key else "stage_add"
        changes.append(Change(landing.table, add, (mapped.rows,)))
    if mapped.deleted is not None:
        changes.append(Change(landing.table, "stage_remove", (mapped.deleted,)))
    if landing.rejected is not None and len(mapped.rejected):
        changes.append(Change(landing.rejected, "stage_add", (mapped.rejected,)))
    return changes


def _keeps_rejected(target: LandingTarget) -> bool:
    return not target.is_raw and target.mapping.on_bad_payload == "dead-letter"


def _names(target: LandingTarget) -> list[str]:
    return [target.table, *([target.table + REJECTED_SUFFIX] if _keeps_rejected(target) else [])]


def _columns(table: SourceTable) -> list[tuple[str, object]]:
    return [(field.name, field.type) for field in table.schema]
