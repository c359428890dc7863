"""The actions about saved boards (docs/web-protocol.md section 4)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from barrage.server.access.method_table import Action
from barrage.server.identity.current_call import current_caller
from barrage.server.pages.board_store import Board, BoardOwner, checked_name, content_of
from barrage.server.settings.json_fields import Fields
from barrage.supervision import in_thread

if TYPE_CHECKING:
    from collections.abc import Mapping

    from barrage.clock import Clock
    from barrage.limits import Limits
    from barrage.server.pages.board_store import BoardStore

_BODY = "action body"
_BODY_MARGIN_BYTES = 4096


class BoardCalls:
    """The behaviors. One of them writes at a time."""

    def __init__(self, store: BoardStore, limits: Limits, clock: Clock) -> None:
        self._store = store
        self._limits = limits
        self._clock = clock
        self._writing = asyncio.Lock()

    @property
    def actions(self) -> Mapping[str, Action]:
        return {
            "barrage.boards": Action(
                "The saved boards the caller may see. No body. Result: JSON list of objects with "
                "name, owner, version, changed_ns, is_shared, is_own.",
                self._list,
            ),
            "barrage.board": Action(
                'One board. Body: JSON {"name"}. Result: the same with content.', self._get
            ),
            "barrage.save_board": Action(
                'Save a board. Body: JSON {"name", "content": an object, "version": the one that '
                'is replaced, 0 for a new one, "is_shared"}. Result: JSON {"version"}.',
                self._save,
            ),
            "barrage.drop_board": Action('Forget a board. Body: JSON {"name"}.', self._drop),
        }

    async def _list(self, _body: bytes) -> bytes:
        who = _who()
        return msgspec.json.encode([_told(board, who) for board in self._store.listed(who)])

    async def _get(self, body: bytes) -> bytes:
        fields = Fields.parse(body, _BODY, bytes_max=_BODY_MARGIN_BYTES)
        name, who = fields.get("name", str), _who()
        fields.finish()
        board = self._store.get(name, who)
        return msgspec.json.encode({**_told(board, who), "content": board.content})

    async def _save(self, body: bytes) -> bytes:
        most = self._limits.board_bytes_max + _BODY_MARGIN_BYTES
        fields = Fields.parse(body, _BODY, bytes_max=most)
        who = _who()
        board = Board(
            name=checked_name(fields.get("name", str)),
            owner=who.name,
            proof=who.proof,
            version=fields.get("version", int, 0),
            changed_ns=self._clock.wall_ns(),
            is_shared=fields.get("is_shared", bool, False),
            content=content_of(fields.get("content", dict[str, Any]), self._limits),
        )
        fields.finish()
        async with self._writing:
            version = await in_thread(self._store.save, board, who)
        return msgspec.json.encode({"version": version})

    async def _drop(self, body: bytes) -> bytes:
        fields = Fields.parse(body, _BODY, bytes_max=_BODY_MARGIN_BYTES)
        name, who = fields.get("name", str), _who()
        fields.finish()
        async with self._writing:
            await in_thread(self._store.drop, name, who)
        return b"{}"


def _who() -> BoardOwner:
    caller = current_caller()
    return BoardOwner(caller.name, caller.proof.value)


def _told(board: Board, who: BoardOwner) -> dict[str, Any]:
    return {
        "name": board.name,
        "owner": board.owner,
        "version": board.version,
        "changed_ns": board.changed_ns,
        "is_shared": board.is_shared,
        "is_own": board.is_owned_by(who),
    }
