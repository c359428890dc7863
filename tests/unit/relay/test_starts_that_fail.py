"""Relays that are stopped, cancelled or refused while they start."""

from __future__ import annotations

import asyncio

import pytest

from barrage.relay.kept_states import KeptStates
from barrage.relay.relay_server import Relay
from tests.unit.relay.scene import SCHEMA, engine, follows, relay_of, run


def relay_tasks():
    return {task for task in asyncio.all_tasks() if task.get_name().startswith("barrage-relay")}


async def quotes_at(origin):
    quotes = await origin.create_table("quotes", SCHEMA, key="Sym")
    return await quotes.upsert([{"Sym": "A", "Price": 1.0}])


async def can_be_had(directory, uri):
    """Whether another relay may have the directory."""
    async with relay_of(uri, data=directory):
        return True


def test_a_disk_that_does_not_forget_is_logged(tmp_path, monkeypatch, caplog):
    async def test():
        async with engine() as origin:
            step = await quotes_at(origin)
            async with relay_of(origin.uri, data=tmp_path) as relay:
                await follows(relay, "quotes", step)

            def forget(*_):
                raise OSError(30, "Read-only file system")

            monkeypatch.setattr(KeptStates, "forget", forget)
            async with relay_of(origin.uri, tables="other*", data=tmp_path):
                assert "Read-only file system" in caplog.text

    run(test)


def test_a_start_that_fails_leaves_nothing(tmp_path, monkeypatch):
    async def test():
        async with engine() as origin:
            before = relay_tasks()

            async def fails(*_):
                raise RuntimeError("nobody expected this")

            with monkeypatch.context() as patch:
                patch.setattr(Relay, "_begin_with", fails)
                relay = relay_of(origin.uri, data=tmp_path)
                with pytest.raises(RuntimeError):
                    await relay.start()
            assert relay_tasks() == before
            assert await can_be_had(tmp_path, origin.uri)

    run(test)


@pytest.mark.parametrize("turns", [0, 1, 2, 5, 20, 100])
def test_a_start_that_is_cancelled_gives_the_directory_back(tmp_path, turns):
    async def test():
        async with engine() as origin:
            relay = relay_of(origin.uri, data=tmp_path)
            starting = asyncio.create_task(relay.start())
            for _ in range(turns):
                await asyncio.sleep(0)
            starting.cancel()
            (outcome,) = await asyncio.gather(starting, return_exceptions=True)
            if outcome is relay:
                await relay.stop()
            assert await can_be_had(tmp_path, origin.uri)

    run(test)


@pytest.mark.parametrize("turns", [1, 5, 30, 200])
@pytest.mark.parametrize("is_kept", [False, True])
def test_a_stop_beside_a_start_leaves_no_task(tmp_path, turns, is_kept):
    async def test():
        async with engine() as origin:
            await quotes_at(origin)
            before = relay_tasks()
            relay = relay_of(origin.uri, **({"data": tmp_path} if is_kept else {}))
            starting = asyncio.create_task(relay.start())
            for _ in range(turns):
                await asyncio.sleep(0)
            await relay.stop()
            await asyncio.gather(starting, return_exceptions=True)
            assert relay_tasks() == before

    run(test)
