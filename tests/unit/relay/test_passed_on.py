"""What is written at a relay is written by the owner, and only there; answers are the owner's."""

from __future__ import annotations

import asyncio
import json

import pyarrow as pa
import pytest

from barrage.client.session import aconnect
from barrage.client.writing.put import put_descriptor, put_rows, schema_frame, split_message
from barrage.errors import (
    BarrageError,
    ConnectionLostError,
    ProducerFencedError,
    RemoteProtocolError,
    RequestRefusedError,
    RowError,
    SchemaError,
    TableExistsError,
    TableNotFoundError,
    TransportError,
    UnsupportedError,
)
from barrage.limits import Limits
from barrage.server.settings.config import ServerConfig
from barrage.transport.flight_messages import Descriptor
from barrage.wire.flight_data import encode_flight_data
from barrage.wire.frame import FlightFrame
from tests.unit.relay.scene import (
    HOST,
    SCHEMA,
    Backoff,
    engine,
    follows,
    live,
    relay_of,
    rows_of,
    run,
    until,
)

AGAIN = Backoff(first_seconds=0.005, seconds_max=0.02)
NUMBERS = {"n": "int64"}


def numbers(first, last):
    return {"n": list(range(first, last + 1))}


async def numbers_at(uri):
    async with aconnect(uri) as session:
        return (await session.table("numbers").snapshot())["n"].to_pylist()


def test_a_writer_at_a_relay_writes_to_the_owner_and_is_answered_by_it():
    async def test():
        async with engine() as origin, relay_of(origin.uri) as relay:
            await origin.create_table("numbers", NUMBERS)
            await relay.wait_live("numbers")
            async with (
                aconnect(relay.uri) as session,
                session.writer("numbers", producer="p", mode="append") as writer,
                live(relay.uri, "numbers") as here,
            ):
                for number in range(50):
                    await writer.write(numbers(number, number))
                step = await writer.flush()
                assert writer.position == 49
                await until(lambda: len(here) == 50)
                # The step is that of the owner, and so the one that readers here are at.
                assert here.cursor.version == step
            assert await numbers_at(origin.uri) == list(range(50))
            # What the owner remembers of the producer is known wherever it opens.
            async with (
                aconnect(origin.uri) as session,
                session.writer("numbers", producer="p") as again,
            ):
                assert again.position == 49

    run(test)


def test_every_way_of_writing_a_client_has_is_passed_on():
    async def test():
        async with engine() as origin, relay_of(origin.uri) as relay:
            await far_connected(relay)
            async with aconnect(relay.uri) as session:
                await session.create_table("quotes", SCHEMA, key="Sym")
                # Who made the table finds it here at once.
                assert (await session.table("quotes").snapshot()).num_rows == 0
                with pytest.raises(TableExistsError):
                    await session.create_table("quotes", SCHEMA, key="Sym")
                rows = [{"Sym": name, "Price": 1.0} for name in "ABC"]
                done = await session.put("quotes", rows)
                assert done.rows == 3
                await session.put("quotes", [{"Sym": "B", "Price": 2.0}], mode="upsert")
                done = await session.put("quotes", {"Sym": ["C"]}, mode="delete")
                await follows(relay, "quotes", done.step)
                expected = [{"Sym": "A", "Price": 1.0}, {"Sym": "B", "Price": 2.0}]
                assert (await session.table("quotes").snapshot()).to_pylist() == expected
                done = await session.put("quotes", [{"Sym": "Z", "Price": 0.0}], mode="replace")
                await follows(relay, "quotes", done.step)
                await put_rows(
                    session.open_put("fixed"), "fixed", {"a": [1, 2]}, mode="create", kind="static"
                )
                assert (await session.table("fixed").snapshot())["a"].to_pylist() == [1, 2]
                async with live(relay.uri, "quotes") as here:
                    errors = []
                    here.on_error(errors.append)
                    await session.drop_table("quotes")
                    await until(lambda: any(isinstance(e, TableNotFoundError) for e in errors))
            names = [each.name for each in await tables_of(origin.uri)]
            assert [name for name in names if not name.startswith("_")] == ["fixed"]

    run(test)


async def tables_of(uri):
    async with aconnect(uri) as session:
        return await session.tables()


def test_a_batch_is_staged_and_committed_at_the_owner():
    async def test():
        async with engine() as origin, relay_of(origin.uri) as relay:
            await origin.create_table("numbers", NUMBERS)
            stage = {"table": "numbers", "writer": "w", "batch": 0, "partition": 0, "attempt": 0}
            batch = pa.record_batch({"n": pa.array([1, 2, 3], pa.int64())})
            async with aconnect(relay.uri) as session:
                await relay.wait_live("numbers")
                stream = session.open_put("numbers")
                command = Descriptor(command=json.dumps({"stage": stage}).encode()).encode()
                await stream.write(schema_frame(batch.schema, command))
                header, body = split_message(batch.serialize())
                await stream.write(encode_flight_data(FlightFrame(header=header, body=body)))
                await stream.half_close()
                while await stream.read() is not None:
                    pass
                name = {"table": "numbers", "writer": "w", "batch": 0}
                commit = json.dumps({**name, "staged": [[0, 0]]}).encode()
                for is_duplicate in (False, True):
                    (answer,) = await session.act("stage.commit", commit)
                    assert json.loads(answer)["duplicate"] is is_duplicate
                (answer,) = await session.act("stage.abort", json.dumps(name).encode())
                assert json.loads(answer) == {"rows": 0}
            assert await numbers_at(origin.uri) == [1, 2, 3]

    run(test)


async def written(writer, rows):
    await writer.write(rows)
    await writer.flush()


def test_errors_are_those_of_the_owner():
    async def test():
        async with engine() as origin, relay_of(origin.uri, "inproc://nobody") as relay:
            quotes = await origin.create_table("quotes", SCHEMA, key="Sym")
            await origin.publish("view", await quotes.where("Price > 1"))
            await origin.create_table("fixed", SCHEMA, is_read_only=True)
            await relay.wait_live("view")
            wrong = [
                ("quotes", {"Other": [1]}, {}),
                ("quotes", {"Sym": [None], "Price": [1.0]}, {}),
                ("quotes", {"Sym": ["A"], "Price": ["x"]}, {"mode": "append"}),
                ("quotes", {"Sym": ["A"], "Price": [1.0]}, {"key": "Price"}),
                ("view", {"Sym": ["A"], "Price": [1.0]}, {}),
                ("fixed", {"Sym": ["A"], "Price": [1.0]}, {}),
                ("nothing", {"Sym": ["A"]}, {"mode": "delete"}),
                ("nothing", {"Sym": ["A"]}, {"mode": "upsert"}),
            ]
            async with aconnect(origin.uri) as there, aconnect(relay.uri) as here:
                for name, rows, options in wrong:
                    told = []
                    for session in (there, here):
                        with pytest.raises(BarrageError) as caught:
                            await session.put(name, rows, **options)
                        told.append((type(caught.value), str(caught.value)))
                    assert told[0] == told[1]
                for session in (there, here):
                    with pytest.raises(TableNotFoundError, match="did you mean 'quotes'"):
                        await session.drop_table("quote")
                async with there.writer("quotes", producer="p") as first:
                    await first.write([{"Sym": "A", "Price": 1.0}])
                    await first.flush()
                    async with here.writer("quotes", producer="p") as second:
                        await second.write([{"Sym": "B", "Price": 1.0}])
                        await second.flush()
                        with pytest.raises(ProducerFencedError):
                            await written(first, [{"Sym": "C", "Price": 1.0}])
                    assert second.position == 1
                    await first.abandon()

    run(test)


def test_what_came_before_a_bad_batch_is_answered_before_the_error():
    async def test():
        async with engine() as origin, relay_of(origin.uri) as relay:
            await origin.create_table("quotes", SCHEMA, key="Sym")
            await relay.wait_live("quotes")
            good = pa.table({"Sym": ["A"] * 1, "Price": [1.0]})
            bad = pa.table({"Sym": pa.array([None], pa.string()), "Price": [1.0]})
            told = []
            async with aconnect(relay.uri) as session:
                with pytest.raises((RowError, SchemaError), match="batch 2"):
                    await session.put(
                        "quotes", pa.concat_tables([good, bad]), on_progress=told.append
                    )
            assert [each.rows for each in told] == [0, 1]

    run(test)


def test_rows_of_a_writer_are_there_once_whichever_relay_dies():
    async def test():
        async with engine() as origin:
            await origin.create_table("numbers", NUMBERS)
            relays = [relay_of(origin.uri) for _ in range(2)]
            uris = []
            for each in relays:
                await each.start()
                await each.wait_live("numbers")
                uris.append(each.uri)
            try:
                async with (
                    aconnect(uris) as session,
                    session.writer("numbers", producer="p", mode="append", reconnect=AGAIN) as one,
                ):
                    for number in range(400):
                        await one.write(numbers(number, number))
                        if number == 200:
                            await one.flush()
                            cut = asyncio.create_task(relays[0].stop(0))
                        await asyncio.sleep(0)
                    await one.flush()
                    await cut
                    assert one.position == 399
                assert await numbers_at(origin.uri) == list(range(400))
            finally:
                for each in relays:
                    await each.stop()

    run(test)


def test_a_writer_waits_while_the_owner_is_away_and_loses_nothing(tmp_path):
    async def test():
        if not HOST.startswith("inproc"):
            pytest.skip("a port is not kept for the next server")
        place = {"host": "inproc://owner-away", "data": str(tmp_path), "journal": None}
        relay = relay_of(place["host"])
        await relay.start()
        try:
            async with engine(**place) as origin:
                await origin.create_table("numbers", NUMBERS)
                await relay.wait_live("numbers")
                session = await aconnect(relay.uri)
                writer = await session.writer(
                    "numbers", producer="p", mode="append", reconnect=AGAIN
                )
                for number in range(20):
                    await writer.write(numbers(number, number))
                await writer.flush()
            for number in range(20, 40):
                await writer.write(numbers(number, number))
            async with aconnect(relay.uri) as other:
                # Who does not wait is told in words.
                await until(lambda: relay.link.address is None)
                with pytest.raises(ConnectionLostError, match="cannot be reached from this relay"):
                    await other.put("numbers", numbers(1, 1))
                with pytest.raises(ConnectionLostError, match="cannot be reached from this relay"):
                    await other.drop_table("numbers")
            assert writer.position == 19
            async with engine(**place) as origin:
                await writer.flush(60)
                await writer.close()
                assert await numbers_at(origin.uri) == list(range(40))
            await session.close()
        finally:
            await relay.stop()

    run(test)


def test_a_relay_without_the_table_knows_how_far_a_producer_has_got():
    async def test():
        async with engine() as origin:
            table = await origin.create_table("numbers", NUMBERS)
            async with (
                aconnect(origin.uri) as session,
                session.writer("numbers", producer="p", mode="append") as writer,
            ):
                for number in range(5):
                    await writer.write(numbers(number, number))
            async with relay_of(origin.uri, lag_ms_max=1000) as relay:
                follower = await relay.wait_live("numbers")
                await follower._withdraw(TransportError("far behind"))
                # Nothing ever comes back: the follower's task is busy with its stream.
                async with aconnect(relay.uri) as session:
                    assert "numbers" not in [each.name for each in await session.tables()]
                    async with session.writer("numbers", producer="p") as writer:
                        assert writer.position == 4
                        assert await writer.write(numbers(5, 5)) == 5
                    assert (await session.info("numbers")).schema.names == ["n"]
                    with pytest.raises(TableNotFoundError):
                        await session.info("no_numbers")
            del table
            assert await numbers_at(origin.uri) == list(range(6))

    run(test)


def test_chains_pass_on_to_the_owner():
    async def test():
        async with (
            engine() as origin,
            relay_of(origin.uri) as near,
            relay_of(near.uri) as far,
        ):
            async with aconnect(far.uri) as session:
                await far_connected(near, far)
                await session.create_table("numbers", NUMBERS)
                async with session.writer("numbers", producer="p", mode="append") as writer:
                    for number in range(10):
                        await writer.write(numbers(number, number))
                    step = await writer.flush()
                await follows(far, "numbers", step)
            assert await numbers_at(origin.uri) == list(range(10)) == await numbers_at(far.uri)

    run(test)


async def far_connected(*relays):
    await until(lambda: all(each.link.address is not None for each in relays))


def test_a_relay_makes_no_tables_for_peers_but_its_own_are_written_here():
    async def test():
        async with engine() as origin, relay_of(origin.uri, tables="quotes*") as relay:
            await far_connected(relay)
            notes = await relay.create_table("notes", SCHEMA)
            async with aconnect(relay.uri) as session:
                for name in ("other", "_hidden"):
                    with pytest.raises(UnsupportedError, match="none of those that this relay"):
                        await session.create_table(name, SCHEMA)
                    with pytest.raises(UnsupportedError, match="none of those that this relay"):
                        await session.put(name, {"a": [1]})
                    with pytest.raises(UnsupportedError, match="none of those that this relay"):
                        await session.drop_table(name)
                await session.put("notes", [{"Sym": "A", "Price": 1.0}])
                assert (await session.table("notes").snapshot()).num_rows == 1
                # It is only the name that counts: a session's own tables are its own.
                async with await session.upload({"a": [1, 2]}) as uploaded:
                    assert (await uploaded.snapshot()).num_rows == 2
            names = {each.name for each in await tables_of(relay.uri)}
            assert {name for name in names if not name.startswith("_")} == {"notes"}
            names = {each.name for each in await tables_of(origin.uri)}
            assert {name for name in names if not name.startswith("_")} == set()
            del notes

    run(test)


def test_a_session_of_deephavens_clients_names_and_writes_nothing_here():
    async def test():
        loopback = ServerConfig(host="127.0.0.1")
        async with engine() as origin, relay_of(origin.uri, config=loopback) as relay:
            await origin.create_table("quotes", SCHEMA, key="Sym")
            await relay.wait_live("quotes")
            async with aconnect(f"dh://{relay.address}") as session:
                with pytest.raises(UnsupportedError, match="table of this relay alone"):
                    await session.create_table("mine", SCHEMA, key="Sym")
                with pytest.raises(UnsupportedError, match="no input table"):
                    await session.open_input_table("quotes")
                # What has no name is the session's own.
                own = await session.input_table(SCHEMA, key="Sym")
                await own.add([{"Sym": "A", "Price": 1.0}])
                await own.close()
            names = {each.name for each in await tables_of(relay.uri)}
            assert {name for name in names if not name.startswith("_")} == {"quotes"}

    run(test)


async def sent_late(stream, batch):
    await stream.write(schema_frame(batch.schema, put_descriptor("x", keys=(), mode="create")))
    while await stream.read() is not None:
        pass


def test_an_upload_that_names_its_table_late_is_refused():
    async def test():
        async with engine() as origin, relay_of(origin.uri, tables="quotes") as relay:
            await far_connected(relay)
            batch = pa.record_batch({"a": [1]})
            async with aconnect(relay.uri) as session:
                stream = session.open_put("x")
                await stream.write(encode_flight_data(FlightFrame(metadata=b"")))
                with pytest.raises((RequestRefusedError, RemoteProtocolError), match="first"):
                    await sent_late(stream, batch)
            assert "x" not in {each.name for each in await tables_of(relay.uri)}

    run(test)


def test_uploads_are_passed_on_up_to_a_limit():
    async def test():
        config = ServerConfig(host=HOST, limits=Limits(relayed_writes_max=2))
        async with engine() as origin, relay_of(origin.uri, config=config) as relay:
            await origin.create_table("numbers", NUMBERS)
            await relay.wait_live("numbers")
            async with aconnect(relay.uri) as session:
                writers = [
                    await session.writer("numbers", producer=f"p{at}", mode="append")
                    for at in range(2)
                ]
                with pytest.raises(RequestRefusedError, match="limit"):
                    await session.put("numbers", numbers(0, 0))
                await writers.pop().close()
                passed_on = relay._passed_on
                await until(lambda: passed_on.calls_count == 1)
                await session.put("numbers", numbers(0, 0))
                await writers.pop().close()
                await until(lambda: passed_on.calls_count == 0)

    run(test)


def test_a_relay_that_stops_does_not_wait_for_idle_writers():
    async def test():
        async with engine() as origin:
            await origin.create_table("numbers", NUMBERS)
            config = ServerConfig(host=HOST, drain_grace_ms=600_000)
            relay = await relay_of(origin.uri, config=config).start()
            await relay.wait_live("numbers")
            async with aconnect(relay.uri) as session:
                writer = await session.writer(
                    "numbers", producer="p", mode="append", reconnect=AGAIN
                )
                await writer.write(numbers(0, 0))
                await writer.flush()
                async with asyncio.timeout(60):
                    await relay.stop()
                await writer.abandon()
            assert await numbers_at(origin.uri) == [0]

    run(test)


def test_readers_are_told_of_writes_they_made_here():
    async def test():
        async with engine() as origin, relay_of(origin.uri) as relay:
            await origin.create_table("quotes", SCHEMA, key="Sym")
            await relay.wait_live("quotes")
            async with live(relay.uri, "quotes") as here, aconnect(relay.uri) as session:
                tasks = [
                    session.put("quotes", [{"Sym": f"S{at:02}", "Price": float(at)}])
                    for at in range(20)
                ]
                await asyncio.gather(*tasks)
                await until(lambda: len(here) == 20)
                names = {row["Sym"] for row in rows_of(here)}
                assert names == {f"S{at:02}" for at in range(20)}

    run(test)
