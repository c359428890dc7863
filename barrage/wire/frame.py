"""One Flight message as its four fields, before anything is known about their content.

Source: barrage-wire.md section 3.1. Absent and zero-length are different everywhere: ``None`` means
the field was not on the wire, ``b""`` that it was there with zero bytes.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class FlightFrame:
    """The fields of one FlightData message.

    ``descriptor`` is an encoded FlightDescriptor, ``header`` a bare Arrow IPC ``Message`` (no
    length prefix), ``metadata`` a Barrage wrapper or a peer's own bytes, ``body`` the concatenated
    column buffers; a body is a view of the received message wherever possible.
    """

    descriptor: bytes | None = None
    header: bytes | None = None
    metadata: bytes | None = None
    body: bytes | memoryview | None = None
