"""How many past versions are made at once."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from barrage.errors import LimitExceededError
from barrage.limits import Limits
from barrage.model.cursor import Cursor
from barrage.server.history.past_tables import PastTables
from tests.helpers.page_client import on_a_loop

EPOCH = "0" * 16


class Access:
    """A journal that has every version."""

    def journal(self, _name, epoch):
        return SimpleNamespace(epoch=epoch)

    async def settle(self, _journal, version):
        return version


class SlowReaders:
    """Reads that take until they are let go on."""

    def __init__(self):
        self.reads = 0
        self.has_two = asyncio.Event()
        self.failing = asyncio.Event()

    async def run(self, _work):
        self.reads += 1
        if self.reads == 2:
            self.has_two.set()
        await self.failing.wait()
        raise ValueError("the end of the test")


@on_a_loop
async def test_so_many_at_once_and_one_read_for_all_who_ask():
    readers = SlowReaders()
    past = PastTables(None, Access(), readers, limits=Limits(past_tables_max=2))
    asked = [
        asyncio.create_task(past.table(("t", Cursor(EPOCH, version)))) for version in (1, 2, 2, 1)
    ]
    await readers.has_two.wait()
    with pytest.raises(LimitExceededError, match="past tables under way"):
        await past.table(("t", Cursor(EPOCH, 3)))
    assert readers.reads == 2
    readers.failing.set()
    outcomes = await asyncio.gather(*asked, return_exceptions=True)
    assert [type(each) for each in outcomes] == [ValueError] * 4
    # What has failed is not kept, and makes room.
    with pytest.raises(ValueError, match="the end"):
        await past.table(("t", Cursor(EPOCH, 1)))
    assert readers.reads == 3
