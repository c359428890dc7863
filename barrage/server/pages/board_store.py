"""Saved boards: what a page shows, under a name, with an owner.

In memory, or in files of the data directory, one for each board, which is replaced as a whole. A
name is one board for everybody. Its owner alone saves it again, drops it, and says whether others
see it. Files are small and read once, when the server starts.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from barrage.errors import (
    BarrageError,
    LimitExceededError,
    PermissionDeniedError,
    RemoteProtocolError,
    StatusCode,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from barrage.limits import Limits

log = logging.getLogger(__name__)

DIRECTORY = "boards"
"""In the data directory."""

_NAME_BYTES_MAX = 200


class BoardNotFoundError(BarrageError):
    """There is no such board, or none that the caller may see."""

    status_code = StatusCode.NOT_FOUND

    def __init__(self, name: str) -> None:
        super().__init__(f"there is no board {name!r}")


class BoardChangedError(BarrageError):
    """Somebody else has saved the board meanwhile."""

    status_code = StatusCode.ABORTED

    def __init__(self, name: str, version: int) -> None:
        super().__init__(
            f"board {name!r} is at version {version} now: look at it before it is saved again"
        )
        self.version = version


class Board(msgspec.Struct, frozen=True, kw_only=True):
    """One board. What is in it is the page's business."""

    name: str
    owner: str
    proof: str
    """How the owner has shown who it is: another one of that name is somebody else."""
    version: int
    changed_ns: int
    is_shared: bool
    content: msgspec.Raw

    def is_owned_by(self, who: BoardOwner) -> bool:
        return (self.owner, self.proof) == (who.name, who.proof)

    def may_be_read_by(self, who: BoardOwner) -> bool:
        return self.is_shared or self.is_owned_by(who)


@dataclass(frozen=True, slots=True)
class BoardOwner:
    """Who asks."""

    name: str
    proof: str


class BoardStore:
    """Those of one server. One thread at a time."""

    def __init__(self, data: str | None, limits: Limits) -> None:
        """``data``: the data directory, if there is one."""
        self._directory = None if data is None else Path(data) / DIRECTORY
        self._limits = limits
        self._boards = {board.name: board for board in self._read_all()}

    def listed(self, who: BoardOwner) -> list[Board]:
        """Those the caller may see, by name."""
        found = [board for board in self._boards.values() if board.may_be_read_by(who)]
        return sorted(found, key=lambda board: board.name)

    def get(self, name: str, who: BoardOwner) -> Board:
        """BoardNotFoundError."""
        board = self._boards.get(name)
        if board is None or not board.may_be_read_by(who):
            raise BoardNotFoundError(name)
        return board

    def save(self, board: Board, who: BoardOwner) -> int:
        """Put ``board`` in the place of its last version; the new version. BoardChangedError,
        PermissionDeniedError, LimitExceededError."""
        before = self._boards.get(board.name)
        if before is not None:
            _check_owner(before, who)
        version = 0 if before is None else before.version
        if version != board.version:
            raise BoardChangedError(board.name, version)
        if before is None:
            self._check_room(who)
        saved = msgspec.structs.replace(board, version=version + 1)
        self._write(saved)
        self._boards[board.name] = saved
        return saved.version

    def drop(self, name: str, who: BoardOwner) -> None:
        """BoardNotFoundError, PermissionDeniedError."""
        board = self.get(name, who)
        _check_owner(board, who)
        if self._directory is not None:
            with contextlib.suppress(FileNotFoundError):
                self._path(name).unlink()
        del self._boards[name]

    def _check_room(self, who: BoardOwner) -> None:
        limits = self._limits
        own = sum(board.is_owned_by(who) for board in self._boards.values())
        for what, count, most in (
            ("number of boards", len(self._boards), limits.boards_max),
            ("number of your boards", own, limits.boards_per_caller_max),
        ):
            if count >= most:
                raise LimitExceededError(what, actual=count + 1, maximum=most, unit="boards")

    # --- files ------------------------------------------------------------------------------------

    def _path(self, name: str) -> Path:
        assert self._directory is not None
        return self._directory / f"{hashlib.sha256(name.encode()).hexdigest()[:40]}.json"

    def _read_all(self) -> Iterable[Board]:
        if self._directory is None or not self._directory.is_dir():
            return
        for path in sorted(self._directory.glob("*.json")):
            try:
                yield msgspec.json.decode(path.read_bytes(), type=Board)
            except (OSError, msgspec.DecodeError) as error:
                log.warning("%s is no board and is left alone: %s", path, error)

    def _write(self, board: Board) -> None:
        if self._directory is None:
            return
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self._path(board.name)
        fresh = path.with_suffix(".new")
        with open(fresh, "wb") as file:
            file.write(msgspec.json.encode(board))
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)


def _check_owner(board: Board, who: BoardOwner) -> None:
    if not board.is_owned_by(who):
        raise PermissionDeniedError(f"board {board.name!r} is somebody else's")


def checked_name(name: str) -> str:
    """``name`` if a board may be called so; RemoteProtocolError."""
    if not name or not name.isprintable() or len(name.encode()) > _NAME_BYTES_MAX:
        raise RemoteProtocolError(
            f"a board's name is 1 to {_NAME_BYTES_MAX} bytes of printable text, not {name[:40]!r}"
        )
    return name


def content_of(fields: dict[str, Any], limits: Limits) -> msgspec.Raw:
    """What is to be in a board, as it is kept. LimitExceededError."""
    text = msgspec.json.encode(fields)
    if len(text) > limits.board_bytes_max:
        raise LimitExceededError(
            "board", actual=len(text), maximum=limits.board_bytes_max, unit="bytes"
        )
    return msgspec.Raw(text)
