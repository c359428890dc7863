"""The call that is being served: who calls, what, and which tables it was about.

Known to everything a behavior does, in its own task and in those it starts.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from barrage.server.identity.caller import ANYBODY

if TYPE_CHECKING:
    from collections.abc import Iterator

    from barrage.server.identity.caller import Caller

TABLES_MAX = 16
"""Tables of one call that are remembered."""


@dataclass(slots=True)
class CurrentCall:
    """One call."""

    caller: Caller
    tables: list[str] = field(default_factory=list)
    action: str = ""
    """Of DoAction, which."""
    stream_id: int | None = None
    """Of DoExchange, which stream."""
    span: object = None
    """What tracers know the call by."""

    def note_table(self, name: str) -> None:
        """It is about a table of this name. Any thread."""
        if len(self.tables) < TABLES_MAX and name not in self.tables:
            self.tables.append(name)


_current: ContextVar[CurrentCall | None] = ContextVar("barrage_call", default=None)


def begin_call(caller: Caller) -> CurrentCall:
    """From now on, and in tasks started from here, this is the call."""
    call = CurrentCall(caller)
    _current.set(call)
    return call


def current_call() -> CurrentCall | None:
    """The call; None outside of calls."""
    return _current.get()


@contextmanager
def within_call(call: CurrentCall | None) -> Iterator[None]:
    """For what a call has asked for and is done later: it is done as that call."""
    token = _current.set(call)
    try:
        yield
    finally:
        _current.reset(token)


def current_caller() -> Caller:
    """Who calls. Outside of calls, the program itself, it is anybody."""
    call = _current.get()
    return ANYBODY if call is None else call.caller


def note_table(name: str) -> None:
    """The call is about a table of this name."""
    call = _current.get()
    if call is not None:
        call.note_table(name)


def note_action(name: str) -> None:
    """The call is an action of this name."""
    call = _current.get()
    if call is not None:
        call.action = name
