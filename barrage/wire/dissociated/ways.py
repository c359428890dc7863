"""The ways the body of a record batch can take."""

from __future__ import annotations

from enum import Enum


class BodyWay(Enum):
    """How bodies travel. Every stream may use ``INLINE`` at any message, whatever was agreed."""

    INLINE = "inline"
    """Inside the FlightData message, as Flight has it."""
    SHM = "shm"
    """In shared memory of the server, which the client maps."""
    UCX = "ucx"
    """As tagged messages over UCX."""
