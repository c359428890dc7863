"""What a relay keeps in its directory: the rows of each relayed table at one step.

A relay that starts serves them at once and goes on from their cursor, so it asks its upstream
server for what changed since and not for all rows, and it starts while that server is away. It is
no history: that begins with the state kept, and is in memory.

Each table has a directory with ``table.json``, which says what the table is, and one checkpoint in
the format of journals (:mod:`barrage.journal.files.checkpoint`). What counts is the newest
checkpoint of the epoch that ``table.json`` names; it is replaced as a whole. All methods block.
"""

from __future__ import annotations

import base64
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from barrage.engine.resume.relayed import RelayedForm
from barrage.engine.tables.table import TableTraits
from barrage.errors import ConfigError, JournalCorruptError
from barrage.journal.disk.storage import LocalStorage
from barrage.journal.files.checkpoint import (
    CheckpointFile,
    list_checkpoints,
    read_checkpoint,
    write_checkpoint,
)
from barrage.journal.files.opening import TABLES
from barrage.journal.records.identity import decode_facts, directory_of, encode_facts

if TYPE_CHECKING:
    from pathlib import Path

    from barrage.journal.records.table_state import TableState

log = logging.getLogger(__name__)

FORMAT_VERSION: Final = 1
RELAYED: Final = "relayed"
FACTS: Final = "table.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptTable:
    """A relayed table at one step, and what it is."""

    name: str
    form: RelayedForm
    epoch: str
    state: TableState


class KeptStates:
    """The directory of one relay."""

    def __init__(self, directory: Path) -> None:
        self._storage = LocalStorage(directory)
        self._kept: dict[str, str] = {}
        """By table: the epoch that its ``table.json`` names."""

    def open(self) -> list[KeptTable]:
        """Take the directory and read what is kept. ConfigError when another process has it, or it
        is that of a server. A state that is damaged is left out, said so in the log, and fetched
        anew."""
        storage = self._storage
        if storage.list(TABLES):
            raise ConfigError(
                f"{storage.name} is the data directory of a server: a relay needs one of its own"
            )
        storage.lock()
        try:
            places = [f"{RELAYED}/{each}" for each in storage.list(RELAYED)]
            return [kept for place in places if (kept := self._read(place)) is not None]
        except BaseException:
            storage.unlock()
            raise

    def close(self) -> None:
        """Let others have the directory."""
        self._storage.unlock()

    def save(self, kept: KeptTable) -> None:
        """Keep this state in place of the one of before; after a crash it is either of them.
        OSError."""
        storage, place = self._storage, _place(kept.name)
        storage.check_place()
        if self._kept.get(kept.name) != kept.epoch:
            # What is of another history must not be taken for this one's.
            storage.remove(place)
            storage.replace(f"{place}/{FACTS}", _encode(kept))
            self._kept[kept.name] = kept.epoch
        before = list_checkpoints(storage, place)
        made = write_checkpoint(storage, place, kept.state, table=kept.name, epoch=kept.epoch)
        now = made.finish(storage)
        for file in before:
            if file.path != now.path:
                storage.remove(file.path)

    def forget(self, name: str) -> None:
        """There is no such table any more. OSError."""
        self._kept.pop(name, None)
        self._storage.remove(_place(name))

    def _read(self, place: str) -> KeptTable | None:
        storage = self._storage
        try:
            name, epoch, form = _decode(bytes(storage.read(f"{place}/{FACTS}")), path=place)
            files = list_checkpoints(storage, place)
            if place != _place(name) or not files:
                return None
            state = read_checkpoint(storage, _newest(files), table=name, epoch=epoch)
        except (JournalCorruptError, OSError) as error:
            log.warning(
                "%s/%s is left out, its table is fetched anew: %s", storage.name, place, error
            )
            return None
        self._kept[name] = epoch
        return KeptTable(name=name, form=form, epoch=epoch, state=state)


def _place(name: str) -> str:
    return f"{RELAYED}/{directory_of(name)}"


def _newest(files: list[CheckpointFile]) -> CheckpointFile:
    return max(files, key=lambda file: file.version)


def _encode(kept: KeptTable) -> bytes:
    traits = kept.form.traits
    return encode_facts(
        {
            "format": FORMAT_VERSION,
            "name": kept.name,
            "epoch": kept.epoch,
            "kind": kept.form.kind,
            "schema": base64.b64encode(kept.form.schema.serialize().to_pybytes()).decode(),
            "key": list(traits.key_columns),
            "is_static": traits.is_static,
            "is_append_only": traits.is_append_only,
            "is_flat": traits.is_flat,
        }
    )


def _decode(content: bytes, *, path: str) -> tuple[str, str, RelayedForm]:
    """Name, epoch and form; JournalCorruptError."""
    facts = decode_facts(content, path=path)
    try:
        if facts["format"] != FORMAT_VERSION:
            raise ValueError(f"format {facts['format']}, this version reads {FORMAT_VERSION}")
        traits = TableTraits(
            is_static=facts["is_static"],
            is_append_only=facts["is_append_only"],
            is_flat=facts["is_flat"],
            key_columns=tuple(facts["key"]),
        )
        schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(facts["schema"])))
        form = RelayedForm(schema=schema, traits=traits, kind=facts["kind"])
        return str(facts["name"]), str(facts["epoch"]), form
    except (KeyError, TypeError, ValueError, OSError) as error:
        raise JournalCorruptError(path, offset=0, reason=str(error)) from error
