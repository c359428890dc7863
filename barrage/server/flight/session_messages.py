"""The session messages of Barrage's 2020 draft: types 1 and 2, answered with type 3.

A new session and one that is refreshed get the same: the name of a header and the token that goes
into it, and until when it holds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from barrage.errors import RemoteProtocolError
from barrage.limits import NANOS_PER_MS
from barrage.server.identity.credentials import AUTHORIZATION, bearer
from barrage.wire.messages import NewSessionRequest, RefreshSessionRequest, SessionInfoResponse
from barrage.wire.metadata import WrongMagicError, decode_wrapper, encode_wrapper
from barrage.wire.revision import WireRevision

if TYPE_CHECKING:
    from barrage.limits import Limits

DRAFT = WireRevision.DRAFT_2020


def session_message(
    payload: bytes, limits: Limits
) -> NewSessionRequest | RefreshSessionRequest | None:
    """The message in the payload of a handshake; None when it is none of the draft's."""
    try:
        message = decode_wrapper(payload, DRAFT, limits)
    except (RemoteProtocolError, WrongMagicError):
        return None
    return message if isinstance(message, NewSessionRequest | RefreshSessionRequest) else None


def session_info(token: str, expires_ns: int) -> SessionInfoResponse:
    """The answer that gives a token, which holds until this moment of the wall clock."""
    return SessionInfoResponse(
        metadata_header=AUTHORIZATION.encode(),
        session_token=bearer(token).encode(),
        token_refresh_deadline_ms=expires_ns // NANOS_PER_MS,
    )


def encoded_session_info(answer: SessionInfoResponse) -> bytes:
    return encode_wrapper(answer, DRAFT)
