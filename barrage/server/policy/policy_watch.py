"""The policy that holds: one of the program, or of a file that is read again when it changes."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from barrage.errors import ConfigError
from barrage.server.identity.users_file import stamp_of
from barrage.server.policy.access_gate import AccessGate, PolicyChangedError
from barrage.server.policy.policy_file import read_policy_and_files
from barrage.server.policy.restricted_tables import tell_anew
from barrage.server.runtime.failure import unexpected_failure
from barrage.supervision import in_own_thread

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from barrage.errors import BarrageError
    from barrage.server.identity.caller import Caller
    from barrage.server.identity.users_file import Stamp
    from barrage.server.policy.rules import Policy

    End = Callable[[Callable[[Caller], bool], BarrageError], None]

REST_S = 0.1
"""How long a file must have stayed as it is to be read."""

log = logging.getLogger(__name__)


class PolicyWatch:
    """A gate, and what happens when its policy is replaced. Used on the event loop."""

    def __init__(self, path: Path | None, policy: Policy | None) -> None:
        """Reads the file, if there is one; ConfigError. There is one of the two at most."""
        if path is not None and policy is not None:
            raise ConfigError("there are two policies: one of the program, one of a file")
        self._path = path
        self._files: tuple[Path, ...] = ()
        self._stamps: tuple[Stamp | None, ...] = ()
        self._failure: str | None = None
        """Why the newest file does not hold."""
        if path is not None:
            before = stamp_of(path)
            policy, self._files = read_policy_and_files(path)
            # A change while it was read is read again.
            self._stamps = (before, *map(stamp_of, self._files[1:]))
        self.gate = AccessGate(policy)
        self._ends: list[End] = []

    @property
    def has_file(self) -> bool:
        """Whether the rules stand in a file, which may change."""
        return self._path is not None

    def on_change(self, end: End) -> None:
        """``end`` ends what callers have open for whom other rules hold than before."""
        self._ends.append(end)

    async def refresh(self) -> None:
        """Read the file if it has changed, or one that it names, and nobody is writing. One that
        cannot be read changes nothing, is told once, and is tried again: what it names may come."""
        if self._path is None:
            return
        found = await self._look()
        if found == self._stamps and self._failure is None:
            return
        # Half of a file may allow what the whole one does not.
        await asyncio.sleep(REST_S)
        if found != await self._look():
            return
        try:
            policy, files = await in_own_thread(read_policy_and_files, self._path)
        except ConfigError as error:
            self._fail(found, str(error))
            return
        except Exception:
            if self._failure is None:
                unexpected_failure(log, "the policy stays as it was, it could not be read")
            self._stamps, self._failure = found, "it could not be read"
            return
        if found != await self._look():
            return
        self._stamps, self._failure = found, None
        if files != self._files:
            self._files = files
            self._stamps = (found[0], *map(stamp_of, files[1:]))
        self._put(policy)

    def _fail(self, found: tuple[Stamp | None, ...], failure: str) -> None:
        if failure != self._failure:
            log.error("the policy stays as it was: %s", failure)
        self._stamps, self._failure = found, failure

    async def _look(self) -> tuple[Stamp | None, ...]:
        return await in_own_thread(lambda: tuple(map(stamp_of, self._files)))

    def replace(self, policy: Policy) -> None:
        """Another policy of the program holds from now on. ConfigError where it stands in a
        file."""
        if self._path is not None:
            raise ConfigError(f"the policy stands in {self._path}: change the file")
        self._put(policy)

    def _put(self, policy: Policy) -> None:
        """Whoever has other rules than before loses what is open, with a PolicyChangedError."""
        is_meant = self.gate.replace(policy)
        tell_anew()
        for end in self._ends:
            end(is_meant, PolicyChangedError())
        log.info("the policy has %d rules now", len(policy.rules))
