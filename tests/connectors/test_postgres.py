"""PostgreSQL in and out, against a real one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

import pyarrow as pa
import pytest

import barrage
from barrage.client import Backoff
from barrage.connector import (
    SinkFollower,
    SourceMapping,
    TableDelivery,
    WorkerDelivery,
    run_sources,
)
from barrage.connector.shipped.postgres_sink import PostgresUpserts
from barrage.connector.shipped.postgres_source import DELETED, PostgresChanges, describe_table
from barrage.errors import ConfigError, ConnectionLostError, SourceLostError
from barrage.server import Server, ServerConfig
from tests.connectors.peers import Postgres
from tests.helpers.restless_server import HANG_SECONDS
from tests.helpers.server_process import wait_until

pytestmark = pytest.mark.connectors


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    cluster = Postgres()
    yield cluster
    cluster.close()


@pytest.fixture
def orders(postgres) -> Iterator[Postgres]:
    """A table of all kinds of columns."""
    postgres.sql(
        "drop table if exists orders",
        "create table orders (id bigint primary key, who text, price double precision, n numeric, "
        "ok boolean, at timestamptz, day date, big text)",
    )
    yield postgres

    def drops() -> bool:
        """Once the server has noticed that nobody reads it any more."""
        with contextlib.suppress(Exception):
            postgres.sql("select pg_drop_replication_slot(slot_name) from pg_replication_slots")
            return True
        return False

    wait_until(drops)
    postgres.sql("drop publication if exists barrage", "drop table orders")


def source_of(postgres: Postgres, **options) -> tuple[PostgresChanges, SourceMapping]:
    table = describe_table(postgres.dsn, "orders")
    mapping = SourceMapping(
        program="*", table="orders", columns=table.columns, key=table.key, delete_column=DELETED
    )
    return PostgresChanges(postgres.dsn, table, slot="barrage", **options), mapping


def now(postgres: Postgres) -> int:
    ((text,),) = postgres.sql("select pg_current_wal_lsn()")
    high, _, low = str(text).partition("/")
    return int(high, 16) << 32 | int(low, 16)


def deliver(postgres: Postgres, server: Server) -> None:
    """Everything that is committed by now."""
    postgres.sql("create table if not exists mark (n int)", "insert into mark values (1)")
    at = now(postgres)
    postgres.sql("insert into mark values (2)")
    source, mapping = source_of(postgres, stops_at=at)
    delivery = TableDelivery(server.uri, mapping=mapping, backoff=Backoff(0.01))
    asyncio.run(asyncio.wait_for(run_sources(source, delivery), HANG_SECONDS))


def theirs(postgres: Postgres) -> list[tuple[object, ...]]:
    return postgres.sql("select id, who, price, n::text, ok, at, day, big from orders order by id")


def ours(server: Server, name: str = "orders") -> list[tuple[object, ...]]:
    rows = server.table(name).to_arrow().sort_by("id")
    return list(zip(*(column.to_pylist() for column in rows.columns), strict=True))


ROW = "(%s, 'a b', 1.5, 10.250, true, '2026-01-02 03:04:05.678+01', '2026-01-02', 'x')"


def test_rows_that_are_there_and_changes_after_them(orders) -> None:
    orders.sql("insert into orders values " + ROW % 1, "insert into orders (id) values (2), (3)")
    with Server() as server:
        deliver(orders, server)
        assert ours(server) == theirs(orders)
        assert len(ours(server)) == 3
        orders.sql(
            "insert into orders values " + ROW % 4,
            "update orders set who = 'new' where id = 1",
            "update orders set id = 20 where id = 2",
            "delete from orders where id = 3",
        )
        deliver(orders, server)
        assert ours(server) == theirs(orders)
        assert [row[0] for row in ours(server)] == [1, 4, 20]
        # A transaction that is rolled back is nothing; values that JSON does not have are null.
        with contextlib.suppress(Exception):
            orders.sql("delete from orders", "select 1/0")
        orders.sql("update orders set price = 'NaN' where id = 4")
        deliver(orders, server)
        assert [row[2] for row in ours(server)] == [1.5, None, None]


def test_large_transactions_are_several_messages(orders) -> None:
    orders.sql(
        "insert into orders (id, big) select n, repeat('x', 1000) from generate_series(1, 5000) n"
    )
    with Server() as server:
        deliver(orders, server)
        assert len(ours(server)) == 5000
        orders.sql(
            "update orders set big = repeat('y', 1000)", "delete from orders where id > 4000"
        )
        deliver(orders, server)
        assert ours(server) == theirs(orders)


def test_the_slot_is_confirmed_when_it_is_safe(orders) -> None:
    def confirmed() -> int:
        ((text,),) = orders.sql("select confirmed_flush_lsn from pg_replication_slots")
        high, _, low = str(text).partition("/")
        return int(high, 16) << 32 | int(low, 16)

    with Server() as server:
        deliver(orders, server)
        before = confirmed()
        orders.sql("insert into orders (id) values (1)")
        at = now(orders)
        orders.sql("insert into orders (id) values (2)")
        deliver(orders, server)
        deliver(orders, server)
        assert before < at
        wait_until(lambda: at <= confirmed())


def test_a_connection_that_the_database_ends_is_made_anew(orders) -> None:
    async def test(server: Server) -> None:
        def is_there(number: int) -> bool:
            return "orders" in server.table_names() and number in [row[0] for row in ours(server)]

        async def until(number: int) -> None:
            async with asyncio.timeout(HANG_SECONDS):
                while not await asyncio.to_thread(is_there, number):
                    await asyncio.sleep(0.02)

        source, mapping = source_of(orders)
        delivery = TableDelivery(server.uri, mapping=mapping, backoff=Backoff(0.01))
        running = asyncio.ensure_future(run_sources(source, delivery))
        try:
            for number in (2, 3):
                await until(number - 1)
                ended = "select pg_terminate_backend(active_pid) from pg_replication_slots"
                await asyncio.to_thread(orders.sql, ended)
                await asyncio.to_thread(orders.sql, f"insert into orders (id) values ({number})")
            await until(3)
        finally:
            running.cancel()
            await asyncio.wait([running])

    orders.sql("insert into orders (id) values (1)")
    with Server() as server:
        asyncio.run(test(server))
        assert ours(server) == theirs(orders)


def test_a_lost_connection_that_the_library_tells_without_a_code(orders, monkeypatch) -> None:
    """As it does when the database is killed in the middle of a copy."""
    import psycopg2

    def cut(*_: object) -> Iterator[object]:
        yield from ()
        raise psycopg2.DatabaseError("error with status PGRES_COPY_BOTH and no message")

    monkeypatch.setattr(PostgresChanges, "_changes", cut)
    with pytest.raises(ConnectionLostError, match="PGRES_COPY_BOTH"):
        list(source_of(orders)[0].read_blocking(None))


def test_by_a_worker(orders) -> None:
    _, mapping = source_of(orders)
    orders.sql("insert into orders (id, who) values (1, 'a')")
    config = ServerConfig(connector="127.0.0.1:0")
    with Server(config=config, sources=[mapping]) as server:
        for change in ("insert into orders (id) values (2)", "delete from orders where id = 1"):
            orders.sql(change)
            orders.sql("create table if not exists mark (n int)", "insert into mark values (1)")
            at = now(orders)
            orders.sql("insert into mark values (1)")
            source, _ = source_of(orders, stops_at=at)
            delivery = WorkerDelivery(f"127.0.0.1:{server.connector_port}", program="p")
            asyncio.run(asyncio.wait_for(run_sources(source, delivery), HANG_SECONDS))
            assert ours(server) == theirs(orders)


def test_a_slot_that_is_lost(orders) -> None:
    with Server() as server:
        deliver(orders, server)
        orders.sql("select pg_drop_replication_slot('barrage')")
        with pytest.raises(SourceLostError, match="not kept slot"):
            deliver(orders, server)
    # And one that is there though nothing of it has arrived.
    with Server() as server:
        orders.sql("select pg_create_logical_replication_slot('barrage', 'pgoutput')")
        with pytest.raises(SourceLostError, match="already"):
            deliver(orders, server)


def test_a_slot_whose_log_was_too_long(orders) -> None:
    with Server() as server:
        deliver(orders, server)
        set_keep(orders, "1MB")
        try:
            for _ in range(4):
                orders.sql(
                    "insert into orders (id, big) select n + (select coalesce(max(id), 0) "
                    "from orders), repeat(md5(n::text), 100) from generate_series(1, 9000) n"
                )
                switch(orders)
            with pytest.raises(SourceLostError):
                deliver(orders, server)
        finally:
            set_keep(orders, "-1")


def set_keep(postgres: Postgres, size: str) -> None:
    import psycopg2

    with contextlib.closing(psycopg2.connect(postgres.dsn)) as connection:
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute(f"alter system set max_slot_wal_keep_size = '{size}'")
            cursor.execute("select pg_reload_conf()")


def switch(postgres: Postgres) -> None:
    import psycopg2

    with contextlib.closing(psycopg2.connect(postgres.dsn)) as connection:
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute("select pg_switch_wal()")
            cursor.execute("checkpoint")


def test_what_cannot_be_followed(orders) -> None:
    with pytest.raises(ConfigError, match="no table"):
        describe_table(orders.dsn, "none")
    orders.sql("create table if not exists keyless (n int)")
    with pytest.raises(ConfigError, match="no primary key"):
        describe_table(orders.dsn, "keyless")
    with Server() as server:
        deliver(orders, server)
        orders.sql("truncate orders")
        with pytest.raises(SourceLostError, match="truncated"):
            deliver(orders, server)


def test_large_values_that_updates_do_not_tell(orders) -> None:
    orders.sql("alter table orders alter big set storage external")
    orders.sql("insert into orders (id, big) values (1, repeat('x', 100000))")
    with Server() as server:
        deliver(orders, server)
        orders.sql("alter table orders replica identity full")
        orders.sql("update orders set who = 'a'")
        deliver(orders, server)
        assert ours(server) == theirs(orders)
        orders.sql("alter table orders replica identity default")
        orders.sql("update orders set who = 'b'")
        with pytest.raises(ConfigError, match="replica identity full"):
            deliver(orders, server)


# --- out ---


def follow(postgres: Postgres, server: Server) -> SinkFollower:
    sink = PostgresUpserts(postgres.dsn, "orders")
    follower = SinkFollower(sink, server.uri, "t")
    try:
        asyncio.run(asyncio.wait_for(follower.run(until=lambda _: True), HANG_SECONDS))
    finally:
        sink.close()
    return follower


def test_a_table_is_followed_exactly(orders) -> None:
    orders.sql("drop table if exists barrage_positions")
    orders.sql("insert into orders (id) values (99)")
    schema = {"id": "int64", "who": "string", "ok": "bool", "at": pa.timestamp("us", "UTC")}
    with Server(journal="memory") as server:
        table = server.create_table("t", schema, key="id")
        table.upsert({"id": [1, 2], "who": ["a", None], "ok": [True, None], "at": [None, None]})
        assert follow(orders, server).rows_written == 2
        # Nothing that it does not know of stays.
        assert [row[0] for row in theirs(orders)] == [1, 2]
        table.upsert({"id": [1, 3], "who": ["b", "c"], "ok": [False, None], "at": [0, 0]})
        table.upsert({"id": [3], "who": ["d"], "ok": [True], "at": [0]})
        table.remove({"id": [2]})
        follow(orders, server)
        found = orders.sql("select id, who, ok from orders order by id")
        assert found == [(1, "b", False), (3, "d", True)]
        assert follow(orders, server).rows_written == 0


def test_a_target_that_does_not_fit(orders) -> None:
    orders.sql("drop table if exists barrage_positions")
    with Server(journal="memory") as server:
        server.create_table("t", {"id": "int64", "none": "string"}, key="id").upsert(
            {"id": [1], "none": ["x"]}
        )
        with pytest.raises(ConfigError, match="none"):
            follow(orders, server)
        assert barrage.__version__
