"""Messages to the receivers of alerts: JSON, and headers that say who sent it and when.

docs/alerts.md has the format. A receiver that has the secret computes the signature over
``<X-Barrage-Timestamp>.<body>``, so that an old message cannot be sent again as a new one.
"""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING, Any

import msgspec

from barrage.server.alerting.iso_time import iso_time

if TYPE_CHECKING:
    from collections.abc import Sequence

    from barrage.server.alerting.alert import Alert
    from barrage.server.alerting.firing_keys import AlertEvent

MESSAGE_VERSION = 1

TIMESTAMP_HEADER = "X-Barrage-Timestamp"
SIGNATURE_HEADER = "X-Barrage-Signature"

_NANOS_PER_S = 1_000_000_000


def message_body(
    alert: Alert,
    events: Sequence[AlertEvent],
    *,
    server: str,
    wall_ns: int,
    attempt: int,
    dropped: int,
    further_count: int,
) -> bytes:
    """The message; ``server`` is another text after each start."""
    head: dict[str, Any] = {
        "version": MESSAGE_VERSION,
        "alert": alert.name,
        "table": alert.parsed.table,
        "where": alert.where,
        "server": server,
        "sent_at": iso_time(wall_ns),
        "attempt": attempt,
        "dropped": dropped,
        "further_keys": further_count,
    }
    told = b",".join(event.text for event in events)
    return msgspec.json.encode(head)[:-1] + b',"events":[' + told + b"]}"


def message_headers(alert: Alert, body: bytes, *, wall_ns: int) -> dict[str, str]:
    """What goes with a message besides what HTTP needs."""
    timestamp = str(wall_ns // _NANOS_PER_S)
    headers = {
        "Content-Type": "application/json",
        "User-Agent": "barrage",
        TIMESTAMP_HEADER: timestamp,
        **alert.headers,
    }
    if alert.secret is not None:
        headers[SIGNATURE_HEADER] = signature(alert.secret, timestamp, body)
    return headers


def signature(secret: str, timestamp: str, body: bytes) -> str:
    """HMAC-SHA256 in hexadecimal digits, behind the version of what is signed."""
    digest = hmac.new(secret.encode(), timestamp.encode() + b"." + body, "sha256").hexdigest()
    return f"v1={digest}"
