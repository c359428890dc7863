"""Body channels that were offered and claimed: ids, ages and their number.

A channel for shared memory may be claimed by any number of streams of the client that asked for it,
and is forgotten when nobody claims it in time, or when it is idle and there is no room for another.
One of any other way is claimed by one stream, which takes over its connection.
"""

from __future__ import annotations

import hmac
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from barrage.errors import BarrageError
from barrage.wire.dissociated.ways import BodyWay

if TYPE_CHECKING:
    from collections.abc import Callable

    from barrage.clock import Clock
    from barrage.limits import Limits
    from barrage.server.identity.caller import Caller
    from barrage.wire.dissociated.negotiation import Claim

ConnectionT = TypeVar("ConnectionT")

UNKNOWN = "the channel is unknown or its time is up"
WRONG_PROOF = "the proof is not that of the shared memory"
NOT_CONNECTED = "the channel has no connection"
TOO_MANY = "there are too many body channels"


class ClaimRefusedError(BarrageError):
    """A stream cannot have the channel it names; its bodies stay inline."""


@dataclass(slots=True, eq=False)
class Channel(Generic[ConnectionT]):
    """One channel. ``connection`` is that of its client, once it has proven itself."""

    channel_id: str
    way: BodyWay
    expires_ns: int
    """When it is forgotten while no stream has claimed it."""
    caller: Caller
    """Who asked for it: nobody else's streams get it."""
    is_claimed: bool = False
    stream_count: int = 0
    connection: ConnectionT | None = None


class BodyChannels(Generic[ConnectionT]):
    """The channels of one server. Runs on the event loop."""

    def __init__(self, limits: Limits, clock: Clock) -> None:
        self._limits = limits
        self._clock = clock
        self._channels: dict[str, Channel[ConnectionT]] = {}
        """In order of their last use."""

    def __len__(self) -> int:
        return len(self._channels)

    def count(self, way: BodyWay) -> int:
        """Channels of one way."""
        return sum(channel.way is way for channel in self._channels.values())

    def add(self, way: BodyWay, caller: Caller) -> Channel[ConnectionT] | None:
        """A new channel for ``caller``; None when there are too many."""
        if len(self._channels) >= self._limits.body_channels_max and not self._forget_idle():
            return None
        expires_ns = self._clock.monotonic_ns() + self._limits.body_ticket_ns
        channel = Channel[ConnectionT](secrets.token_hex(16), way, expires_ns, caller)
        self._channels[channel.channel_id] = channel
        return channel

    def _forget_idle(self) -> bool:
        """Forget the channel that was used longest ago, has been claimed and has no stream."""
        for channel in self._channels.values():
            if channel.is_claimed and not channel.stream_count:
                del self._channels[channel.channel_id]
                return True
        return False

    def claim(self, claim: Claim, proof: bytes, caller: Caller) -> Channel[ConnectionT]:
        """The channel a stream names, which is its own from now on. ``proof`` is what those for
        shared memory must know. ClaimRefusedError."""
        channel = self._channels.get(claim.channel_id)
        if channel is None or self._is_expired(channel, self._clock.monotonic_ns()):
            raise ClaimRefusedError(UNKNOWN)
        if channel.caller.owner != caller.owner:
            raise ClaimRefusedError(UNKNOWN)
        if channel.way is BodyWay.SHM:
            if not hmac.compare_digest(claim.proof or b"", proof):
                raise ClaimRefusedError(WRONG_PROOF)
            # Moves to the end: used last.
            self._channels[channel.channel_id] = self._channels.pop(channel.channel_id)
        else:
            del self._channels[channel.channel_id]
            if channel.connection is None:
                raise ClaimRefusedError(NOT_CONNECTED)
        channel.is_claimed = True
        channel.stream_count += 1
        return channel

    def take_expired(self) -> list[Channel[ConnectionT]]:
        """Forget the channels nobody has claimed in time; they are returned."""
        now_ns = self._clock.monotonic_ns()
        expired = [each for each in self._channels.values() if self._is_expired(each, now_ns)]
        for channel in expired:
            del self._channels[channel.channel_id]
        return expired

    def take_of(self, is_meant: Callable[[Caller], bool]) -> list[Channel[ConnectionT]]:
        """Forget the channels of some callers; they are returned."""
        taken = [each for each in self._channels.values() if is_meant(each.caller)]
        for channel in taken:
            del self._channels[channel.channel_id]
        return taken

    def take_all(self) -> list[Channel[ConnectionT]]:
        """Forget every channel."""
        channels = list(self._channels.values())
        self._channels.clear()
        return channels

    def discard(self, channel: Channel[ConnectionT]) -> None:
        """Forget one channel, if it is still known."""
        self._channels.pop(channel.channel_id, None)

    def is_known(self, channel: Channel[ConnectionT]) -> bool:
        return channel.channel_id in self._channels

    @staticmethod
    def _is_expired(channel: Channel[ConnectionT], now_ns: int) -> bool:
        return not channel.is_claimed and now_ns >= channel.expires_ns
