"""Comparing what a client showed with the states the tables really had."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from tests.interop.digests import Digest, digest
from tests.interop.driven_server import View, whole

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.interop.driven_server import DrivenServer


@dataclass(frozen=True)
class Shown:
    """One state a client showed; ``ordered`` is None when the client gives no order."""

    rows: int
    multiset: int
    ordered: int | None

    def is_state(self, state: Digest) -> bool:
        return (self.rows, self.multiset) == (state.rows, state.multiset) and (
            self.ordered is None or self.ordered == state.ordered
        )

    @classmethod
    def of(cls, table: pa.Table) -> Shown:
        found = digest(table)
        return cls(found.rows, found.multiset, found.ordered)


class History:
    """The states of one table (or of a view of it) since this object was made."""

    def __init__(self, server: DrivenServer, name: str, view: View = whole) -> None:
        self._server = server
        self.name = name
        self._view = view
        self._start = server.versions[name]

    @property
    def server_kind(self) -> str:
        """ "deephaven" or "barrage"."""
        return self._server.kind

    def states(self) -> list[Digest]:
        last = self._server.versions[self.name]
        return [self._state(version) for version in range(self._start, last + 1)]

    def _state(self, version: int) -> Digest:
        return self._server.digests(self.name, version, self._view)

    @property
    def last(self) -> Digest:
        return self._state(self._server.versions[self.name])

    def check(self, shown: Sequence[Shown]) -> None:
        """Each state is one of the table's, never an older one than before; the last is the
        table's last."""
        states = self.states()
        assert shown, f"{self.name}: nothing was shown"
        place = 0
        for number, state in enumerate(shown):
            found = next((i for i in range(place, len(states)) if state.is_state(states[i])), None)
            assert found is not None, self._complaint(number, len(shown), state, states, place)
            place = found
        assert shown[-1].is_state(states[-1]), f"{self.name}: the last state never came"

    def _complaint(
        self, number: int, count: int, state: Shown, states: list[Digest], place: int
    ) -> str:
        older = [i for i in range(place) if state.is_state(states[i])]
        same_rows = [
            i for i, s in enumerate(states) if (s.rows, s.multiset) == (state.rows, state.multiset)
        ]
        return (
            f"{self.name}: state {number} of {count} shown ({state}) is none of the versions "
            f"{place}..{len(states) - 1}; older versions like it: {older}; versions with these "
            f"rows in another order: {same_rows}"
        )


class LogHistory(History):
    """For a blink table: the state is everything it has brought since this object was made."""

    def _state(self, version: int) -> Digest:
        brought = [self._server.rows(self.name, v) for v in range(self._start + 1, version + 1)]
        empty = self._server.rows(self.name, version).slice(0, 0)
        return digest(pa.concat_tables([empty, *brought]))


def history_of(server: DrivenServer, name: str, view: View = whole) -> History:
    return LogHistory(server, name) if name == "feed" else History(server, name, view)


def rows_of(start: int, stop: int) -> Callable[[pa.Table], pa.Table]:
    """The view of a viewport."""
    return lambda table: table.slice(start, stop - start)


def last_rows_of(count: int) -> Callable[[pa.Table], pa.Table]:
    """The view of a reverse viewport."""
    return lambda table: table.slice(max(0, table.num_rows - count))
