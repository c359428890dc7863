"""A data directory that an older version wrote is read as that version read it."""

from __future__ import annotations

import json
import runpy
import shutil
from pathlib import Path
from typing import Any

import pytest

from barrage.journal import JournalStore
from barrage.server import Server, ServerConfig
from tests.helpers.memory_storage import DiskFile, MemoryStorage
from tests.helpers.simulated_disk import SimulatedDisk
from tests.unit.journal.test_power_cuts import Harsh

VECTORS = Path(__file__).parents[2] / "vectors" / "journals"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    shutil.copytree(VECTORS / "data", tmp_path / "data")
    return tmp_path / "data"


def expected() -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((VECTORS / "facts.json").read_text())
    return facts


def found(data: Path) -> dict[str, Any]:
    """What there is, in the words of who wrote the facts."""
    facts: dict[str, Any] = runpy.run_path(str(VECTORS / "make_directory.py"))["facts_of"](data)
    return json.loads(json.dumps(facts))  # type: ignore[no-any-return]


def test_it_is_read_as_it_was_written(data: Path) -> None:
    assert found(data) == expected()
    assert (data / "commits").exists()
    # The torn tail is gone, and steps go on where those of the first start were set aside.
    again = found(data)
    assert again["tables"] == expected()["tables"]
    assert again["first_step"] == expected()["first_step"]


def test_a_power_cut_after_the_first_start_takes_nothing_back(data: Path) -> None:
    disk = SimulatedDisk(Harsh())
    storage = MemoryStorage(disk=disk)
    for path in sorted(each for each in data.rglob("*") if each.is_file()):
        content = bytearray(path.read_bytes())
        name = str(path.relative_to(data))
        storage.files[name] = DiskFile(content=content, platter=bytearray(content))
    JournalStore(storage).open_all()
    disk.cut()
    store = JournalStore(MemoryStorage(disk=disk))
    store.open_all()
    tables = expected()["tables"]
    assert {name: journal.epoch for name, journal in store.journals.items()} == {
        name: facts["epoch"] for name, facts in tables.items()
    }
    for name, journal in store.journals.items():
        state = journal.state_at(journal.latest_version)
        assert state.version == tables[name]["state"]["version"]
        assert state.rows.to_pylist() == tables[name]["state"]["rows"]
        assert dict(state.positions) == tables[name]["state"]["positions"]


def test_a_server_goes_on_with_it(data: Path) -> None:
    config = ServerConfig(data=str(data), port=0, journal_reserve_bytes=0)
    row = {"n": [7], "text": ["new"]}
    with Server(config=config) as server:
        events, book = server.table("events"), server.table("book")
        assert events.position("feed") == 5
        events.add(row, producer="feed", sequence=5)
        with server.transaction(producer="pair", sequence=8) as transaction:
            transaction.add(events, row)
            transaction.upsert(book, row)
    after = found(data)["tables"]
    before = expected()["tables"]
    for name, facts in after.items():
        assert facts["epoch"] == before[name]["epoch"]
        is_changed = name in ("events", "book")
        new = [{"n": 7, "text": "new"}] if is_changed else []
        rows = [row for row in before[name]["state"]["rows"] if name != "book" or row["n"] != 7]
        assert facts["state"]["rows"] == rows + new
    assert after["events"]["state"]["positions"] == {"pair": 8, "feed": 5}
