"""Bodies of record batches in memory that two processes of one host share.

The server's :class:`Arena` holds bodies in files of ``/dev/shm``; the client's
:class:`ArenaMapping` maps them read-only and lends them out as Arrow buffers without copying.
Which process may still read a body is known by leases while its stream lives, and by locks the
kernel keeps for the client, whatever becomes of either side (:mod:`.locks`).

Not here: how a client learns the arena's name and a body's place, and when a body is sent inline
instead. Source: dissociated IPC, body type 1.
"""

from __future__ import annotations

from barrage.transport.shared_memory.arena import DIRECTORY, Arena, ArenaStatistics
from barrage.transport.shared_memory.host import host_identity
from barrage.transport.shared_memory.leases import LeaseTable
from barrage.transport.shared_memory.leftovers import remove_stale
from barrage.transport.shared_memory.mapping import ArenaMapping
from barrage.transport.shared_memory.region import Region

__all__ = [
    "DIRECTORY",
    "Arena",
    "ArenaMapping",
    "ArenaStatistics",
    "LeaseTable",
    "Region",
    "host_identity",
    "remove_stale",
]
