"""gRPC over HTTP: what the headers of a request say, and those of answers (gRPC's
PROTOCOL-HTTP2.md, and PROTOCOL-WEB.md for gRPC-web, whose trailers are the last frame of a body).
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from hpack.struct import NeverIndexedHeaderTuple

from barrage.errors import StatusCode
from barrage.transport.over_http2.grpc_web import metadata_frame

if TYPE_CHECKING:
    from collections.abc import Iterable

    from barrage.transport.over_http2.http2_events import Headers

Metadata: TypeAlias = "tuple[tuple[str, str | bytes], ...]"

_BINARY = "-bin"
_CONTENT_TYPE = b"application/grpc"
_WEB_CONTENT_TYPE = b"application/grpc-web"
WEB_CONTENT_TYPE = b"application/grpc-web+proto"
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
_OF_PAGES = frozenset({b"cookie", b"x-grpc-web"})
"""What browsers add: a page shows who it is by headers of its own, and by nothing that goes along
with whatever it asks for."""
_SECRET = frozenset({"authorization"})
_STATUS_OK = (b":status", b"200")
_IDENTITY_ONLY = (b"grpc-accept-encoding", b"identity")
_ANSWER = (_STATUS_OK, (b"content-type", _CONTENT_TYPE), _IDENTITY_ONLY)
_WEB_ANSWER = (_STATUS_OK, (b"content-type", WEB_CONTENT_TYPE))

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
    is_web: bool = False
    """Whether it is gRPC-web."""
    answer: Headers = field(default_factory=lambda: list(_ANSWER))
    """What every answer begins with."""


class RequestRefusal(Exception):  # noqa: N818 - a way out, never seen outside of this package
    """The whole answer to a request that is none."""

    def __init__(self, answer: Headers) -> None:
        self.answer = answer
        super().__init__()


def read_request(headers: Headers) -> RequestHead:
    """The call that is asked for; RequestRefusal when there is none."""
    fields = dict(reversed(headers))
    if not is_well_formed(headers, fields):
        raise RequestRefusal([(b":status", b"400")])
    content_type = fields.get(b"content-type", b"")
    is_web = is_grpc_web(content_type)
    if not is_web and not _is_kind(content_type, _CONTENT_TYPE):
        raise RequestRefusal([(b":status", b"415")])
    if fields[b":method"] != b"POST":
        raise RequestRefusal([(b":status", b"405"), (b"allow", b"POST")])
    answer = list(_WEB_ANSWER if is_web else _ANSWER)
    if not is_web and fields.get(b"te") != b"trailers":
        raise _refused(StatusCode.INTERNAL, "the request has no te: trailers", answer)
    encoding = fields.get(b"grpc-encoding", b"identity")
    if encoding != b"identity":
        text = f"messages are taken without compression only, not as {_text(encoding)!r}"
        raise _refused(StatusCode.UNIMPLEMENTED, text, answer)
    timeout = fields.get(b"grpc-timeout")
    try:
        return RequestHead(
            method=_text(fields[b":path"]),
            metadata=_metadata(headers, _OWN | _OF_PAGES if is_web else _OWN),
            timeout_s=None if timeout is None else _seconds(timeout),
            is_web=is_web,
            answer=answer,
        )
    except ValueError as error:
        raise _refused(StatusCode.INTERNAL, str(error), answer) from error


def is_well_formed(headers: Headers, fields: dict[bytes, bytes]) -> bool:
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


def is_grpc_web(content_type: bytes) -> bool:
    """Whether a request with this content type is a call of gRPC-web. Its form in text, which is
    for browsers that cannot read a body as it comes, is none."""
    return _is_kind(content_type, _WEB_CONTENT_TYPE)


def _is_kind(content_type: bytes, kind: bytes) -> bool:
    rest = content_type.lower()
    return rest.startswith(kind) and rest[len(kind) :][:1] in (b"", b"+", b";")


def _seconds(timeout: bytes) -> float:
    match = _TIMEOUT.fullmatch(timeout)
    if match is None:
        raise ValueError(f"grpc-timeout is {_text(timeout)!r}")
    return int(match[1]) * _UNIT_SECONDS[match[2]]


def _metadata(headers: Headers, own: frozenset[bytes]) -> Metadata:
    """What the client itself says. ValueError."""
    found: list[tuple[str, str | bytes]] = []
    for name, value in headers:
        if name[:1] == b":" or name in own:
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


def answer_headers(head: RequestHead, metadata: Iterable[tuple[str, str | bytes]]) -> Headers:
    """Ahead of the first message. ValueError when a name or a value cannot travel."""
    return [*head.answer, *_fields(metadata)]


def status_trailers(
    code: StatusCode | None,
    details: str,
    metadata: Iterable[tuple[str, str | bytes]] = (),
    *,
    ahead: Headers,
) -> Headers:
    """How a call ends; None is OK. ``ahead``: what every answer begins with, where nothing was sent
    before. ValueError."""
    trailers: Headers = [*ahead, (b"grpc-status", b"%d" % (0 if code is None else code.value))]
    if details:
        text = _ESCAPED.sub(_escape, details.encode("utf-8", "replace"))
        trailers.append((b"grpc-message", text))
    trailers += _fields(metadata)
    return trailers


def web_trailers(trailers: Headers) -> bytes:
    """The same as the last frame of a body."""
    return metadata_frame(b"".join(b"%s: %s\r\n" % pair for pair in trailers))


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


def _refused(code: StatusCode, text: str, answer: Headers) -> RequestRefusal:
    return RequestRefusal(status_trailers(code, text, ahead=answer))
