"""Names of tables: binding them anew, listings, and followers on an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any

import pyarrow as pa
import pytest

from barrage.clock import SystemClock
from barrage.engine.operators import derive
from barrage.errors import SchemaError, TableExistsError, TableNotFoundError
from barrage.limits import DEFAULT_LIMITS
from barrage.server.runtime.catalog import Catalog
from barrage.server.runtime.runtime import EngineRuntime
from barrage.server.tables.catalog_watch import CatalogChanges, CatalogFollower, CatalogWatch
from barrage.server.tables.table_service import (
    Change,
    ReadOnlyTableError,
    TableRecipe,
    TableService,
    source_for_peers,
)

ROWS = pa.table({"x": [1, 2]})
TIMEOUT_SECONDS = 180


@pytest.fixture
def catalog() -> Catalog:
    return Catalog()


@pytest.fixture
def tables(catalog: Catalog) -> Iterator[TableService]:
    runtime = EngineRuntime(limits=DEFAULT_LIMITS, clock=SystemClock())
    yield TableService(runtime, catalog, limits=DEFAULT_LIMITS)
    runtime.stop()


def create(tables: TableService, name: str, **options: Any) -> Any:
    recipe = TableRecipe.checked(name, ROWS.schema, **options)
    return tables.create(recipe, None).result()


def run(work: Coroutine[None, None, None]) -> None:
    asyncio.run(asyncio.wait_for(work, TIMEOUT_SECONDS))


def names(changes: CatalogChanges) -> tuple[tuple[str, ...], ...]:
    return changes.created, changes.updated, changes.removed


async def gathered_changes(follower: CatalogFollower, enough: int) -> dict[str, set[str]]:
    """Changes until ``enough`` names were told; bursts may arrive in several answers."""
    found: dict[str, set[str]] = {"created": set(), "updated": set(), "removed": set()}
    while sum(len(told) for told in found.values()) < enough:
        changes = await follower.changes()
        found["created"] |= set(changes.created)
        found["updated"] |= set(changes.updated)
        found["removed"] |= set(changes.removed)
    return found


# --- unpublished tables and names bound anew ---


@pytest.mark.parametrize(("kind", "key"), [("append_only", ()), ("keyed", ("x",))])
def test_an_input_table_is_empty_and_has_no_name(tables, catalog, kind, key):
    table = tables.create_input(kind, ROWS.schema, key).result()
    assert table.size == 0
    assert table.key_columns == key
    assert list(catalog) == []
    tables.change([Change(table, "stage_add", (ROWS,))]).result()
    assert tables.read(table) == ROWS


def test_a_blink_input_table_shows_rows_for_one_cycle(tables):
    table = tables.create_input("blink", ROWS.schema).result()
    assert table.is_blink
    tables.change([Change(table, "stage_add", (ROWS,))]).result()
    tables.change([Change(table, "stage_add", (ROWS.slice(1),))]).result()
    assert tables.read(table).num_rows <= 1


@pytest.mark.parametrize(
    ("kind", "key", "says"),
    [
        ("static", (), "kind 'static' of an input table"),
        ("list", (), "kind 'list' of an input table"),
        ("keyed", (), "needs key columns"),
        ("keyed", ("y",), "key column 'y'"),
        ("append_only", ("x",), "has no key"),
    ],
)
def test_input_tables_that_cannot_be_made(tables, kind, key, says):
    with pytest.raises(SchemaError, match=says):
        tables.create_input(kind, ROWS.schema, key).result()


def test_a_static_table_holds_its_rows(tables, catalog):
    table = tables.create_static(ROWS).result()
    assert table.is_static
    assert tables.read(table) == ROWS
    assert list(catalog) == []


def test_a_type_that_cannot_travel_is_refused_when_the_table_is_made(tables):
    rows = pa.table({"s": pa.nulls(1, pa.list_(pa.list_view(pa.int64())))})
    with pytest.raises(SchemaError, match="'s'"):
        tables.create_static(rows).result()
    with pytest.raises(SchemaError, match="'s'"):
        tables.create_input("append_only", rows.schema).result()


def test_binding_a_name_anew_replaces_the_table_it_stands_for(tables, catalog):
    first = tables.create_static(ROWS).result()
    second = tables.create_input("append_only", ROWS.schema).result()
    assert tables.bind("t", first).result().kind == "static"
    bound = tables.bind("t", second).result()
    assert bound.kind == "append_only"
    assert tables.look_up("t").result().table is second
    assert [p.name for p in catalog] == ["t"]


def test_publishing_refuses_a_name_that_is_taken(tables):
    create(tables, "t")
    table = tables.create_static(ROWS).result()
    with pytest.raises(TableExistsError):
        tables.publish("t", table).result()
    assert tables.look_up("t").result().table is not table


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 1025])
def test_a_name_nobody_could_use_is_refused(tables, name):
    with pytest.raises(SchemaError):
        tables.bind(name, tables.create_static(ROWS).result())


def test_read_only_publications_have_no_input_target(tables):
    writable, read_only = create(tables, "w"), create(tables, "r", is_read_only=True)
    view = tables.derive(lambda: derive.head(writable.table, 1)).result()
    assert writable.input_target is writable.table
    assert read_only.input_target is None
    assert tables.publish("v", view).result().input_target is None
    assert tables.publish("s", tables.create_static(ROWS).result()).result().input_target is None
    assert tables.publish("r2", writable.table, is_read_only=True).result().input_target is None
    with pytest.raises(ReadOnlyTableError):
        source_for_peers(read_only)
    assert source_for_peers(writable) is writable.table


# --- followers ---


def test_changes_between_listings():
    before, after = {"a": 1, "b": 2, "c": 3}, {"b": 2, "c": 9, "d": 4}
    changes = CatalogChanges.between(before, after)
    assert names(changes) == (("d",), ("c",), ("a",))
    assert CatalogChanges.between(after, after).is_empty


def test_the_first_changes_are_all_names_even_none(tables):
    async def follow() -> None:
        watch = CatalogWatch(tables)
        with watch.follower() as follower:
            assert names(await follower.changes()) == ((), (), ())
        create(tables, "b")
        create(tables, "a")
        with watch.follower() as follower:
            assert names(await follower.changes()) == (("a", "b"), (), ())

    run(follow())


def test_followers_hear_of_created_replaced_and_dropped_names(tables):
    async def follow() -> None:
        create(tables, "kept")
        create(tables, "replaced")
        create(tables, "dropped")
        with CatalogWatch(tables).follower() as follower:
            await follower.changes()
            create(tables, "new")
            tables.bind("replaced", tables.create_static(ROWS).result()).result()
            tables.drop("dropped").result()
            found = await gathered_changes(follower, 3)
        assert found == {"created": {"new"}, "updated": {"replaced"}, "removed": {"dropped"}}

    run(follow())


def test_a_name_that_came_and_went_is_never_told(tables):
    async def follow() -> None:
        with CatalogWatch(tables).follower() as follower:
            await follower.changes()
            create(tables, "short")
            tables.drop("short").result()
            create(tables, "long")
            found = await gathered_changes(follower, 1)
        assert found == {"created": {"long"}, "updated": set(), "removed": set()}

    run(follow())


def test_a_burst_of_changes_wakes_the_loop_once(tables, monkeypatch):
    """A follower that does not look costs one wake-up, however much changes."""

    async def follow() -> None:
        watch = CatalogWatch(tables)
        with watch.follower() as follower:
            await follower.changes()
            loop = asyncio.get_running_loop()
            wakes = []
            call_soon = loop.call_soon_threadsafe

            def counted(callback: Any, *arguments: Any, **named: Any) -> Any:
                if callback == watch._wake:
                    wakes.append(callback)
                return call_soon(callback, *arguments, **named)

            monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
            for number in range(200):
                create(tables, f"t{number}")  # The loop is blocked all the while.
            assert len(wakes) == 1
            found = await gathered_changes(follower, 200)
            assert len(found["created"]) == 200

    run(follow())


def test_followers_share_one_listing(tables, monkeypatch):
    async def follow() -> None:
        watch = CatalogWatch(tables)
        asked = []
        listing = tables.listing
        monkeypatch.setattr(tables, "listing", lambda: (asked.append(1), listing())[1])
        with watch.follower() as one, watch.follower() as two:
            await asyncio.gather(one.changes(), two.changes())
            assert len(asked) == 1

    run(follow())


def test_nothing_is_registered_while_nobody_follows(tables, catalog):
    async def follow() -> None:
        watch = CatalogWatch(tables)
        with watch.follower() as one:
            await one.changes()
            assert len(catalog._listeners) == 1
            with watch.follower() as two:
                await two.changes()
                assert watch.follower_count == 2
                assert len(catalog._listeners) == 1
        assert watch.follower_count == 0
        await asyncio.wrap_future(tables.listing())
        assert not catalog._listeners

    run(follow())


def test_a_change_after_the_loop_has_ended_harms_nobody(tables):
    watches = []

    async def follow() -> None:
        watch = CatalogWatch(tables)
        watches.append(watch.follower())
        await watches[0].__enter__().changes()

    run(follow())
    create(tables, "after")
    assert tables.look_up("after").result().name == "after"


def test_dropping_tells_listeners_and_forgets_the_serial(tables, catalog):
    told = []
    create(tables, "t")
    end = tables.on_catalog_change(lambda: told.append(dict(catalog.listing())))
    tables.drop("t").result()
    assert told == [{}]
    with pytest.raises(TableNotFoundError):
        tables.drop("t").result()
    end()
    create(tables, "t")
    assert told == [{}]
