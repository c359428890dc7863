"""Kinds of values that settings have: types with their bounds, and what to call them in errors."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

JOURNAL_BYTES_MIN = 64 * 1024
"""Smallest journal file, and smallest journal in memory."""


Port = Annotated[int, Meta(ge=0, le=65_535)]
Lifetime = Annotated[int, Meta(ge=1000)]
JournalBytes = Annotated[int, Meta(ge=JOURNAL_BYTES_MIN)]
Address = Annotated[str, Meta(min_length=1, description="an address")]
Directory = Annotated[str, Meta(min_length=1, description="a directory")]
AuditBytes = Annotated[int, Meta(ge=4096)]
File = Annotated[str, Meta(min_length=1, description="a file")]
CertificateName = Literal["cn", "dns", "email", "uri", "none"]
PemFile = Annotated[str, Meta(min_length=1, description="a PEM file")]
Percent = Annotated[int, Meta(ge=0, le=100)]
Word = Annotated[str, Meta(min_length=1, description="a level")]
FlightLocation = Annotated[
    str,
    Meta(
        pattern=r"^(grpc(\+(tcp|tls|unix))?://.+|arrow-flight-reuse-connection://\?)$",
        description="a URI such as grpc+tls://host:port, or arrow-flight-reuse-connection://?",
    ),
]
Devices = Annotated[str, Meta(min_length=1, description="names of network devices")]
