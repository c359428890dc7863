"""gRPC over HTTP/2: what the headers of a request say, and those of answers (gRPC's
PROTOCOL-HTTP2.md)."""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from hpack.struct import NeverIndexedHeaderTuple

from barrage.errors import StatusCode

if TYPE_CHECKING:
    from collections.abc import Iterable

    from barrage.transport.over_http2.http2_events import Headers

Metadata: TypeAlias = "tuple[tuple[str, str | bytes], ...]"

_BINARY = "-bin"
_CONTENT_TYPE = b"application/grpc"
_OWN = frozenset(
    {
        b"content-type",
        b"te",
        b"grpc-timeout",
        b"grpc-encoding",
        b"grpc-accept-encoding",
        b"content-length",
    }
)
_SECRET = frozenset({"authorization"})
_STATUS_OK = (b":status", b"200")
_IDENTITY_ONLY = (b"grpc-accept-encoding", b"identity")
_ANSWER = (_STATUS_OK, (b"content-type", _CONTENT_TYPE), _IDENTITY_ONLY)

_TIMEOUT = re.compile(rb"([0-9]{1,8})([HMSmun])")
_UNIT_SECONDS = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_ESCAPED = re.compile(rb"[^\x20-\x24\x26-\x7e]")
_FIELD_NAME = re.compile(rb":?[0-9a-z!#$%&'*+.^_`|~-]+")
_WHITE = b" \t"
_UNSAFE = re.compile(rb"[\x00\r\n]")
_NEEDED = frozenset({b":method", b":path", b":scheme"})
_PSEUDO = _NEEDED | {b":authority"}
_OF_CONNECTIONS = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-connection",
        b"transfer-encoding",
        b"upgrade",
    }
)
_NAME = re.compile(r"[0-9a-z_.-]+")


@dataclass(slots=True, kw_only=True)
class RequestHead:
    """What a client asks for."""

    method: str
    metadata: Metadata
    timeout_s: float | None


class RequestRefusal(Exception):  # noqa: N818 - a way out, never seen outside of this package
    """The whole answer to a request that is none."""

    def __init__(self, answer: Headers) -> None:
        self.answer = answer
        super().__init__()


def read_request(headers: Headers) -> RequestHead:
    """The call that is asked for; RequestRefusal when there is none."""
    fields = dict(reversed(headers))
    if not _is_well_formed(headers, fields):
        raise RequestRefusal([(b":status", b"400")])
    if not _is_grpc(fields.get(b"content-type", b"")):
        raise RequestRefusal([(b":status", b"415")])
    if fields[b":method"] != b"POST":
        raise RequestRefusal([(b":status", b"405"), (b"allow", b"POST")])
    if fields.get(b"te") != b"trailers":
        raise _refused(StatusCode.INTERNAL, "the request has no te: trailers")
    encoding = fields.get(b"grpc-encoding", b"identity")
    if encoding != b"identity":
        text = f"messages are taken without compression only, not as {_text(encoding)!r}"
        raise _refused(StatusCode.UNIMPLEMENTED, text)
    timeout = fields.get(b"grpc-timeout")
    try:
        return RequestHead(
            method=_text(fields[b":path"]),
            metadata=_metadata(headers),
            timeout_s=None if timeout is None else _seconds(timeout),
        )
    except ValueError as error:
        raise _refused(StatusCode.INTERNAL, str(error)) from error


def _is_well_formed(headers: Headers, fields: dict[bytes, bytes]) -> bool:
    """RFC 9113, sections 8.2 and 8.3: each pseudo-header once and ahead of the others, names in
    lower case, nothing that belongs to a connection. White space around values, which gRPC clients
    do send, is taken."""
    names = [name for name, _ in headers]
    pseudo = [name for name in names if name[:1] == b":"]
    return (
        len(pseudo) == len(set(pseudo))
        and names[: len(pseudo)] == pseudo
        and _NEEDED <= set(pseudo) <= _PSEUDO
        and fields[b":path"][:1] == b"/"
        and not _OF_CONNECTIONS & fields.keys()
        and all(_FIELD_NAME.fullmatch(name) for name in fields)
        and not any(_UNSAFE.search(value) for _, value in headers)
    )


def _is_grpc(content_type: bytes) -> bool:
    rest = content_type.lower()
    return rest.startswith(_CONTENT_TYPE) and rest[len(_CONTENT_TYPE) :][:1] in (b"", b"+", b";")


def _seconds(timeout: bytes) -> float:
    match = _TIMEOUT.fullmatch(timeout)
    if match is None:
        raise ValueError(f"grpc-timeout is {_text(timeout)!r}")
    return int(match[1]) * _UNIT_SECONDS[match[2]]


def _metadata(headers: Headers) -> Metadata:
    """What the client itself says. ValueError."""
    found: list[tuple[str, str | bytes]] = []
    for name, value in headers:
        if name[:1] == b":" or name in _OWN:
            continue
        key = _text(name)
        if key.endswith(_BINARY):
            found += ((key, _binary(key, part)) for part in value.split(b","))
        else:
            found.append((key, _text(value.strip(_WHITE))))
    return tuple(found)


def _binary(name: str, value: bytes) -> bytes:
    try:
        return base64.b64decode(value.strip() + b"=" * (-len(value.strip()) % 4), validate=True)
    except binascii.Error as error:
        raise ValueError(f"{name} is not base64") from error


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def answer_headers(metadata: Iterable[tuple[str, str | bytes]]) -> Headers:
    """Ahead of the first message. ValueError when a name or a value cannot travel."""
    return [*_ANSWER, *_fields(metadata)]


def status_trailers(
    code: StatusCode | None,
    details: str,
    metadata: Iterable[tuple[str, str | bytes]] = (),
    *,
    is_whole: bool,
) -> Headers:
    """How a call ends; None is OK. ``is_whole``: nothing was sent before. ValueError."""
    trailers: Headers = list(_ANSWER) if is_whole else []
    trailers.append((b"grpc-status", b"%d" % (0 if code is None else code.value)))
    if details:
        text = _ESCAPED.sub(_escape, details.encode("utf-8", "replace"))
        trailers.append((b"grpc-message", text))
    trailers += _fields(metadata)
    return trailers


def _escape(match: re.Match[bytes]) -> bytes:
    return b"%%%02X" % match[0][0]


def _fields(metadata: Iterable[tuple[str, str | bytes]]) -> Headers:
    fields: Headers = []
    for name, value in metadata:
        key = name.lower()
        if not _NAME.fullmatch(key) or key.startswith("grpc-") or key.encode() in _OWN:
            raise ValueError(f"metadata cannot be named {name!r}")
        if key.endswith(_BINARY):
            raw = value if isinstance(value, bytes) else value.encode()
            encoded = base64.b64encode(raw).rstrip(b"=")
        else:
            encoded = value if isinstance(value, bytes) else value.encode()
            if not encoded.isascii() or not _text(encoded).isprintable():
                raise ValueError(f"the value of {name!r} is not printable ASCII")
        if key in _SECRET:
            fields.append(NeverIndexedHeaderTuple(key.encode(), encoded))
        else:
            fields.append((key.encode(), encoded))
    return fields


def _refused(code: StatusCode, text: str) -> RequestRefusal:
    return RequestRefusal(status_trailers(code, text, is_whole=True))
