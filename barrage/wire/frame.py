"""One Flight message as its four fields, before anything is known about their content.

Source: barrage-wire.md section 3.1. Absent and zero-length are different everywhere: ``None`` means
the field was not on the wire, ``b""`` that it was there with zero bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True, kw_only=True)
class FlightFrame:
    """The fields of one FlightData message.

    ``descriptor`` is an encoded FlightDescriptor, ``header`` a bare Arrow IPC ``Message`` (no
    length prefix), ``metadata`` a Barrage wrapper or a peer's own bytes, ``body`` the concatenated
    column buffers; a body is a view of the received message wherever possible, or of memory it was
    lent. The last three fields are ours alone: ``body_reference`` says that the body travels
    elsewhere and where, ``released`` which bodies its sender has done with (unsigned 64-bit
    numbers), ``inline_reason`` why this body and all later ones are in their messages.
    """

    descriptor: bytes | None = None
    header: bytes | None = None
    metadata: bytes | None = None
    body: bytes | memoryview | pa.Buffer | None = None
    body_reference: bytes | None = None
    released: bytes | None = None
    inline_reason: bytes | None = None

    @property
    def is_detached(self) -> bool:
        """The body travels elsewhere. A body that is here wins over a reference to one."""
        return self.body_reference is not None and not (self.body is not None and len(self.body))

    @property
    def is_release_only(self) -> bool:
        """Nothing is said but which bodies are done with."""
        return (
            self.released is not None
            and self.descriptor is None
            and self.header is None
            and self.metadata is None
            and self.body is None
            and self.body_reference is None
        )
