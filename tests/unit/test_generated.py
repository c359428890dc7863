"""What scripts write is what stands in the repository."""

from __future__ import annotations

from pathlib import Path

import pytest

import barrage.client
from scripts.generated import TEXTS
from scripts.sync_client import FORMS
from scripts.writing import ROOT, TOP, formatted, without

ASYNCHRONOUS_ONLY = {
    "Session": {
        *("act", "info", "spawn"),  # of the loop and of actions, which have calls of their own
        *("fail", "forget_writer", "open", "open_put", "publish", "subscribe"),  # for its tables
        *("follow", "unary"),  # for relays
    },
    "RemoteTable": {"give_back", "history"},
    "TickingTable": {"finish", "note_callback_error", "open_queue", "start"},
    "Writer": {"open"},
}
"""What synchronous classes do without."""


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_written_code_is_what_its_source_says(path: Path) -> None:
    text = path.read_text()
    assert text == formatted(path, TEXTS[path]()), "run 'make generated'"
    first = text.split("\n", 1)[0]
    assert first.startswith("# Written by scripts/")
    assert (TOP / first.split()[3]).exists()


def test_no_file_says_so_that_nobody_writes() -> None:
    said = {path for path in ROOT.rglob("*.py") if path.read_text().startswith("# Written by ")}
    assert said == set(TEXTS)


@pytest.mark.parametrize("name", FORMS)
def test_each_method_for_callers_has_both_forms(name: str) -> None:
    source = vars(getattr(barrage.client, f"Async{name}"))
    written = getattr(barrage.client, name)
    names = {each for each in source if not each.startswith("_")}
    missing = {each for each in names if not hasattr(written, each)}
    assert missing == ASYNCHRONOUS_ONLY.get(name, set())


def test_a_passage_that_is_said_in_another_way_stands_in_the_source() -> None:
    assert without("Once upon a time.", "Once", "Twice") == "Twice upon a time."
    for text in ("Never.", "Once and Once."):
        with pytest.raises(ValueError, match="where it should once"):
            without(text, "Once", "Twice")
