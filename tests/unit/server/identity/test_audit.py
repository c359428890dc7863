"""The audit log: what is written, how it is rotated, and what a bad disk costs."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager

import pytest

from barrage.limits import Limits
from barrage.server.identity import audit
from barrage.server.identity.audit import FILES_KEPT, AuditLog
from barrage.supervision import no_dependants
from tests.helpers.virtual_clock import VirtualClock


@pytest.fixture
def path(tmp_path):
    return tmp_path / "audit.log"


@asynccontextmanager
async def writing(path, *, bytes_max: int = 4096, **limits: int):
    log = AuditLog(path, Limits(**limits), VirtualClock(1_500_000_000), bytes_max=bytes_max)
    log.start(on_death=no_dependants)
    try:
        yield log
    finally:
        await log.close()
        await log.close()


async def until(is_so) -> None:
    while not is_so():  # noqa: ASYNC110
        await asyncio.sleep(0.001)


def lines(path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_record_is_a_line_with_its_time(path):
    async def scene():
        async with writing(path) as log:
            log.record(user="a\nb", method="/x", tables=[], action="", outcome="OK")

    asyncio.run(scene())
    assert lines(path) == [
        {"time": "1970-01-01T00:00:01.500000Z", "user": "a\nb", "method": "/x", "outcome": "OK"}
    ]
    assert path.stat().st_mode & 0o777 == 0o600


def test_what_one_past_the_limit_costs_is_told(path):
    async def scene():
        async with writing(path, audit_records_max=3) as log:
            for number in range(5):
                log.record(number=number)
            assert log.dropped_in_all == 2

    asyncio.run(scene())
    *written, last = lines(path)
    assert [each["number"] for each in written] == [0, 1, 2]
    assert last["dropped"] == 2


def test_it_is_rotated_by_size_and_few_files_are_kept(path, monkeypatch):
    monkeypatch.setattr(audit, "PAUSE_S", 0.0)

    async def scene():
        async with writing(path, bytes_max=200) as log:
            for number in range(FILES_KEPT + 3):
                log.record(number=number, text="x" * 150)
                await until(lambda: not log._waiting)

    asyncio.run(scene())
    files = sorted(path.parent.iterdir())
    assert len(files) == FILES_KEPT + 1
    numbers = [line["number"] for file in files for line in lines(file)]
    assert sorted(numbers) == list(range(2, FILES_KEPT + 3))


def test_a_disk_that_fails_costs_records_and_no_calls(path, monkeypatch, caplog):
    monkeypatch.setattr(audit, "PAUSE_S", 0.0)
    monkeypatch.setattr(audit, "AGAIN_S", 0.0)
    whole, is_full = AuditLog._write, [True]

    def write(log, records):
        if is_full[0]:
            raise OSError("no space")
        whole(log, records)

    monkeypatch.setattr(AuditLog, "_write", write)

    async def scene():
        async with writing(path) as log:
            log.record(number=0)
            await until(lambda: log.dropped_in_all)
            is_full[0] = False
            log.record(number=1)

    asyncio.run(scene())
    assert any(each.get("dropped") for each in lines(path))
    assert [each["number"] for each in lines(path) if "number" in each] == [1]
    assert caplog.text.count("no space") == 1
