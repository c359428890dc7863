"""A policy that stands in a file, read again when the file changes."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from barrage.errors import ConfigError
from barrage.server.identity.users_file import stamp_of
from barrage.server.policy.access_gate import AccessGate, PolicyChangedError
from barrage.server.policy.policy_file import read_policy
from barrage.supervision import in_thread

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from barrage.errors import BarrageError
    from barrage.server.identity.caller import Caller
    from barrage.server.identity.users_file import Stamp
    from barrage.server.policy.rules import Policy

    End = Callable[[Callable[[Caller], bool], BarrageError], None]

log = logging.getLogger(__name__)


class PolicyWatch:
    """A gate whose policy is that of a file. Used on the event loop."""

    def __init__(self, path: Path, ends: tuple[End, ...]) -> None:
        """Reads the file; ConfigError. ``ends`` end what callers have open for whom other rules
        hold than before."""
        self._path = path
        self._ends = ends
        self._read: Stamp | None = stamp_of(path)
        self.gate = AccessGate(read_policy(path))

    def on_change(self, end: End) -> None:
        """A further one that ends what callers have."""
        self._ends = (*self._ends, end)

    async def refresh(self) -> None:
        """Read the file if it has changed. One that cannot be read changes nothing, and is told
        once."""
        found = await in_thread(stamp_of, self._path)
        if found == self._read:
            return
        self._read = found
        try:
            policy = await in_thread(read_policy, self._path)
        except ConfigError as error:
            log.error("the policy stays as it was: %s", error)
            return
        self.put(policy)

    def put(self, policy: Policy) -> None:
        """The policy that holds from now on. Whoever has other rules than before loses what is
        open, with a PolicyChangedError."""
        is_meant = self.gate.replace(policy)
        for end in self._ends:
            end(is_meant, PolicyChangedError())
        log.info("the policy has %d rules now", len(policy.rules))
