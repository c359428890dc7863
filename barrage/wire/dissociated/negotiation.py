"""How client and server agree on the way of bodies: offer, answer, claim and outcome.

Offer and answer are the bodies of one action before the stream, as JSON; the claim travels in a
header of the stream's call, the outcome in one of its answer. Keys and ways nobody knows are
skipped, so that later releases may say more. Nothing here fails a stream: whatever does not fit
means inline.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from barrage.errors import RemoteProtocolError
from barrage.json_text import JsonTextError, read_json
from barrage.wire.dissociated.location import LOCATION_CHARS_MAX
from barrage.wire.dissociated.ways import BodyWay

if TYPE_CHECKING:
    from collections.abc import Mapping

ACTION = "barrage.bodies"
"""Type of the Flight action that takes an offer and returns an answer."""

HEADER = "x-barrage-bodies"
"""Name of the header with the claim, in requests, and the outcome, in answers."""

JSON_BYTES_MAX = 16 * 1024
"""Longest offer or answer believed."""

TEXT_CHARS_MAX = 256
"""Longest identity, release, name or value of a setting."""

SETTINGS_MAX = 64
"""Most settings one side names."""

REASON_CHARS_MAX = 200

WINDOW_MAX = 2**62
"""Larger numbers are no window."""

_CHANNEL_ID = re.compile(r"[0-9a-f]{32}")
_PROOF = re.compile(r"(?:[0-9a-f]{2}){1,64}")
_NO_PROOF = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostIdentity:
    """What two processes must have in common to share memory."""

    boot_id: str
    user_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionTerms:
    """What must be equal on both sides before one connects to the other by some way."""

    release: str
    settings: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What a client can do, best first in ``order``."""

    shm: HostIdentity | None = None
    terms: Mapping[BodyWay, ConnectionTerms] = field(default_factory=dict)
    """For the ways that connect."""
    order: tuple[BodyWay, ...] = ()

    def to_json(self) -> bytes:
        """The body of the action."""
        content: dict[str, object] = {"order": [way.value for way in self.order]}
        if self.shm is not None:
            content["shm"] = {"boot_id": self.shm.boot_id, "user_id": self.shm.user_id}
        for way, terms in self.terms.items():
            content[way.value] = {"release": terms.release, "settings": dict(terms.settings)}
        return json.dumps(content).encode()

    @classmethod
    def from_json(cls, buffer: bytes | memoryview) -> Offer:
        """Read the body of the action; raises RemoteProtocolError."""
        content = _object(buffer)
        return cls(
            shm=_host_identity(content.get("shm")),
            terms=_terms(content),
            order=_order(content.get("order")),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The way the server has chosen and what its client needs for it."""

    way: BodyWay
    reason: str = ""
    """Why it is inline, for people."""
    channel_id: str = ""
    """32 hexadecimal digits that name the channel; empty when inline."""
    arena: str | None = None
    """Name of the shared memory."""
    location: str | None = None
    """Where to connect to, as that way writes it."""
    ticket: bytes | None = None
    """What the connection must show; good for one."""
    window_bytes: int = 0
    window_count: int = 0
    """Bodies and their bytes that may be out and not given back."""

    def to_json(self) -> bytes:
        """The result of the action."""
        content: dict[str, object] = {
            "way": self.way.value,
            "reason": self.reason,
            "channel_id": self.channel_id,
            "window_bytes": self.window_bytes,
            "window_count": self.window_count,
        }
        if self.arena is not None:
            content["arena"] = self.arena
        if self.location is not None:
            content["location"] = self.location
        if self.ticket is not None:
            content["ticket"] = self.ticket.hex()
        return json.dumps(content).encode()

    @classmethod
    def from_json(cls, buffer: bytes | memoryview) -> Answer:
        """Read the result of the action; raises RemoteProtocolError, also for a way that lacks what
        it needs."""
        content = _object(buffer)
        way = _known_way(_text(content, "way"))
        if way is None:
            raise RemoteProtocolError("the server chose a way of bodies nobody knows")
        answer = cls(
            way=way,
            reason=printable(_text(content, "reason", "")),
            channel_id=_text(content, "channel_id", ""),
            arena=_optional_text(content, "arena", TEXT_CHARS_MAX),
            location=_optional_text(content, "location", LOCATION_CHARS_MAX),
            ticket=_ticket(content),
            window_bytes=_number(content, "window_bytes"),
            window_count=_number(content, "window_count"),
        )
        answer._check()
        return answer

    def _check(self) -> None:
        if self.way is BodyWay.INLINE:
            return
        if not _CHANNEL_ID.fullmatch(self.channel_id):
            raise RemoteProtocolError("the id of a body channel is not 32 hexadecimal digits")
        if self.way is BodyWay.SHM:
            if not self.arena:
                raise RemoteProtocolError("a channel in shared memory without the memory's name")
        elif not (self.location and self.ticket):
            raise RemoteProtocolError(f"a {self.way.name} channel without location or ticket")


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What a stream shows of its channel."""

    channel_id: str
    proof: bytes | None = None
    """What only a reader of the shared memory knows."""

    def header(self) -> str:
        """Value of the request's header."""
        return f"{self.channel_id} {_NO_PROOF if self.proof is None else self.proof.hex()}"

    @classmethod
    def parse(cls, text: str) -> Claim | None:
        """Read the header; None for what is no claim."""
        channel_id, _, proof = text.partition(" ")
        if not _CHANNEL_ID.fullmatch(channel_id):
            return None
        if proof == _NO_PROOF:
            return cls(channel_id=channel_id)
        if not _PROOF.fullmatch(proof):
            return None
        return cls(channel_id=channel_id, proof=bytes.fromhex(proof))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimOutcome:
    """The way a stream really takes."""

    way: BodyWay
    reason: str = ""
    """Why it is inline, for people."""

    def header(self) -> str:
        """Value of the answer's header."""
        return f"{self.way.value} {printable(self.reason)}".rstrip()

    @classmethod
    def parse(cls, text: str | None) -> ClaimOutcome:
        """Read the header; its absence, and whatever is not understood, means inline."""
        if text is None:
            return cls(way=BodyWay.INLINE, reason="the server did not answer the claim")
        name, _, reason = text.partition(" ")
        way = _known_way(name)
        if way is None:
            return cls(way=BodyWay.INLINE, reason="the server chose a way of bodies nobody knows")
        return cls(way=way, reason=printable(reason))


def _known_way(name: str) -> BodyWay | None:
    """The way of that name, if this process knows one."""
    try:
        return BodyWay(name)
    except ValueError:
        return None


def printable(text: str) -> str:
    """``text`` fit for a header and for a terminal: ASCII that shows, of bounded length."""
    shown = "".join(c if " " <= c <= "~" else "?" for c in text[:REASON_CHARS_MAX])
    return shown.strip()


# --- JSON of a peer -----------------------------------------------------------------------------


def _object(buffer: bytes | memoryview) -> dict[str, Any]:
    if len(buffer) > JSON_BYTES_MAX:
        raise RemoteProtocolError(
            f"what is said about bodies has {len(buffer)} bytes, the limit is {JSON_BYTES_MAX}"
        )
    try:
        content = read_json(buffer)
    except JsonTextError as error:
        raise RemoteProtocolError("what is said about bodies is not JSON") from error
    return _mapping(content)


def _mapping(content: object) -> dict[str, Any]:
    if not isinstance(content, dict):
        raise RemoteProtocolError("a JSON object was expected")
    return content


def _text(content: dict[str, Any], key: str, default: str | None = None) -> str:
    value = content.get(key, default)
    if not isinstance(value, str) or len(value) > TEXT_CHARS_MAX:
        raise RemoteProtocolError(f"{key!r} is no text of at most {TEXT_CHARS_MAX} characters")
    return value


def _optional_text(content: dict[str, Any], key: str, chars_max: int) -> str | None:
    value = content.get(key)
    if value is not None and (not isinstance(value, str) or len(value) > chars_max):
        raise RemoteProtocolError(f"{key!r} is no text of at most {chars_max} characters")
    return value


def _number(content: dict[str, Any], key: str) -> int:
    value = content.get(key, 0)
    if type(value) is not int or not 0 <= value <= WINDOW_MAX:
        raise RemoteProtocolError(f"{key!r} is no number from 0 to {WINDOW_MAX}")
    return value


def _ticket(content: dict[str, Any]) -> bytes | None:
    text = _optional_text(content, "ticket", 2 * TEXT_CHARS_MAX)
    if text is None:
        return None
    try:
        return bytes.fromhex(text)
    except ValueError as error:
        raise RemoteProtocolError("'ticket' is not hexadecimal") from error


def _host_identity(content: object) -> HostIdentity | None:
    if content is None:
        return None
    fields = _mapping(content)
    return HostIdentity(boot_id=_text(fields, "boot_id"), user_id=_number(fields, "user_id"))


def _terms(content: dict[str, Any]) -> dict[BodyWay, ConnectionTerms]:
    """Those of the ways that connect, as far as they are known here."""
    connecting = [way for way in BodyWay.known() if way not in (BodyWay.INLINE, BodyWay.SHM)]
    return {
        way: _connection_terms(content[way.value])
        for way in connecting
        if content.get(way.value) is not None
    }


def _connection_terms(content: object) -> ConnectionTerms:
    fields = _mapping(content)
    settings = _mapping(fields.get("settings", {}))
    if len(settings) > SETTINGS_MAX:
        raise RemoteProtocolError(f"{len(settings)} settings, the limit is {SETTINGS_MAX}")
    if any(len(key) > TEXT_CHARS_MAX for key in settings):
        raise RemoteProtocolError("the name of a setting is too long")
    return ConnectionTerms(
        release=_text(fields, "release"), settings={key: _text(settings, key) for key in settings}
    )


def _order(content: object) -> tuple[BodyWay, ...]:
    """The ways we know, each once, in the client's order."""
    if content is None:
        return ()
    if not isinstance(content, list):
        raise RemoteProtocolError("'order' is no list")
    ways = [_known_way(name) for name in content if isinstance(name, str)]
    return tuple(dict.fromkeys(way for way in ways if way is not None))
