"""Who is told of single calls: nobody, as a rule; a tracer, where one is set up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from barrage.errors import BarrageError
    from barrage.server.identity.credentials import Metadata
    from barrage.server.identity.current_call import CurrentCall


class CallSpan(Protocol):
    """One call."""

    def admitted(self, call: CurrentCall) -> None:
        """It is known who calls."""
        ...

    def end(self, error: BarrageError | None) -> None:
        """The call has ended."""
        ...


class CallSpans(Protocol):
    """Begins spans of calls. On the event loop; must not raise."""

    def begin(self, method: str, metadata: Metadata) -> CallSpan | None:
        """A call begins, in the task of its behavior; None when it is not traced."""
        ...
