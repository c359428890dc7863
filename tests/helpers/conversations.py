"""The recorded conversations with a real server, as frames (see the README of the vectors)."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from barrage.wire.flight_data import encode_varint
from barrage.wire.frame import FlightFrame

VECTORS = Path(__file__).parent.parent / "vectors" / "barrage"

_FIELDS = {1: "flight_descriptor", 2: "data_header", 3: "app_metadata", 1000: "data_body"}
_TAGS = {1: b"\x0a", 2: b"\x12", 3: b"\x1a", 1000: b"\xc2\x3e"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedMessage:
    """One message. ``frame`` is None for a half-close or a cancellation."""

    index: int
    is_request: bool
    frame: FlightFrame | None
    raw: bytes
    """The FlightData bytes as they were on the wire."""
    decoded: dict[str, Any]
    is_half_close: bool
    is_cancel: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """One recorded call; ``document`` is the JSON object for everything not spelled out."""

    name: str
    file: str
    rpc: str
    messages: tuple[RecordedMessage, ...]
    document: dict[str, Any]

    @property
    def requests(self) -> list[RecordedMessage]:
        """Messages of the client that carry metadata."""
        return [m for m in self.messages if m.is_request and m.frame and m.frame.metadata]

    @property
    def answers(self) -> list[RecordedMessage]:
        return [m for m in self.messages if not m.is_request and m.frame]

    @property
    def updates(self) -> list[dict[str, Any]]:
        return self.document.get("updates") or []

    def truth(self, step: int) -> dict[str, Any]:
        """Table contents after an engine step."""
        return next(entry for entry in self.document["truth"] if entry["step"] == step)


def _message(document: dict[str, Any]) -> RecordedMessage:
    order = document.get("field_order", [])
    fields = {number: base64.b64decode(document[_FIELDS[number]]) for number in order}
    frame = FlightFrame(
        descriptor=fields.get(1),
        header=fields.get(2),
        metadata=fields.get(3),
        body=fields.get(1000),
    )
    raw = b"".join(
        _TAGS[number] + encode_varint(len(fields[number])) + fields[number] for number in order
    )
    is_silent = bool(document.get("half_close") or document.get("cancel"))
    return RecordedMessage(
        index=document["i"],
        is_request=document["dir"] == "c2s",
        frame=None if is_silent else frame,
        raw=raw,
        decoded=document.get("decoded") or {},
        is_half_close=bool(document.get("half_close")),
        is_cancel=bool(document.get("cancel")),
    )


@cache
def conversations(file: str) -> tuple[Conversation, ...]:
    """All conversations of one file, named without ``.json``."""
    document = json.loads((VECTORS / "conversations" / f"{file}.json").read_text())
    return tuple(
        Conversation(
            name=entry["name"],
            file=file,
            rpc=entry["rpc"],
            messages=tuple(_message(message) for message in entry["messages"]),
            document=entry,
        )
        for entry in document["conversations"]
    )


@cache
def all_conversations() -> tuple[Conversation, ...]:
    """All 129, in file order."""
    files = sorted(path.stem for path in (VECTORS / "conversations").glob("*.json"))
    return tuple(entry for file in files for entry in conversations(file))


def conversation(name: str) -> Conversation:
    """The conversation of that name."""
    return next(entry for entry in all_conversations() if entry.name == name)
