"""The ways out for the bodies of one stream: leases of shared memory, or a connection of its own.

An outlet sends one body and says under which number the client gives it back. It belongs to one
stream and to the event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from barrage.proto.outgoing_bodies import BodyOutlet
from barrage.server.bodies.body_frames import LooseFrame, PlacedFrame
from barrage.wire.dissociated.ways import BodyWay

if TYPE_CHECKING:
    from collections.abc import Sequence

    from barrage.server.bodies.body_frames import BodyFrame
    from barrage.transport.bodies import BodySender
    from barrage.transport.shared_memory import LeaseTable


class Outlet(BodyOutlet[PlacedFrame | LooseFrame], Protocol):
    """One way out."""

    way: BodyWay


class SharedMemoryOutlet:
    """Bodies the client maps: sending one is a lease."""

    way = BodyWay.SHM
    is_lost = False

    def __init__(self, leases: LeaseTable) -> None:
        self._leases = leases

    def send(self, sequence: int, frame: BodyFrame) -> tuple[int, bytes]:
        assert isinstance(frame, PlacedFrame)
        self._leases.grant(frame.region)
        return frame.region.address, frame.message()

    def release(self, ids: Sequence[int]) -> None:
        self._leases.release(ids)

    def close(self) -> None:
        """What the client still has is used again when it no longer reads it."""
        self._leases.close()


class ConnectedOutlet:
    """Bodies that are sent under the numbers of their messages."""

    def __init__(self, way: BodyWay, sender: BodySender) -> None:
        self.way = way
        self._sender = sender

    @property
    def is_lost(self) -> bool:
        return self._sender.is_lost

    def send(self, sequence: int, frame: BodyFrame) -> tuple[int, bytes]:
        assert isinstance(frame, LooseFrame)
        self._sender.send(sequence, frame.detached)
        return sequence, frame.message()

    def release(self, ids: Sequence[int]) -> None:
        """The sender keeps nothing that has gone."""

    def close(self) -> None:
        self._sender.close()
