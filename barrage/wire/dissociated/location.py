"""Locations of dissociated streams:
``ucx://host:port?want_data=U64&free_data=U64&remote_handle=BASE64``.

Source: Arrow's Dissociated IPC Protocol. Numbers are decimal. The handle is written percent-encoded
in the standard alphabet; both alphabets are read, without padding too, and a space for the plus
sign that a form decoder made one of.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from barrage.errors import RemoteProtocolError

SCHEME = "ucx"

LOCATION_CHARS_MAX = 8 * 1024

_U64_MAX = 2**64 - 1
_FIELDS_MAX = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class UcxLocation:
    """Where a stream is to be had and the tags of the messages that ask for it and give back."""

    host: str
    """Name or literal address, without brackets."""
    port: int
    want_data: int
    free_data: int | None = None
    remote_handle: bytes | None = None
    """What makes the addresses of type-1 bodies usable: a packed key, or a name of shared
    memory."""

    def encode(self) -> str:
        """The location as text."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        text = f"{SCHEME}://{host}:{self.port}?want_data={self.want_data}"
        if self.free_data is not None:
            text += f"&free_data={self.free_data}"
        if self.remote_handle is not None:
            handle = base64.b64encode(self.remote_handle).decode()
            text += f"&remote_handle={quote(handle, safe='')}"
        return text

    @classmethod
    def parse(cls, text: str) -> UcxLocation:
        """Read a peer's location; raises RemoteProtocolError. Fields nobody knows are skipped."""
        if len(text) > LOCATION_CHARS_MAX:
            raise RemoteProtocolError(
                f"location of {len(text)} characters, the limit is {LOCATION_CHARS_MAX}"
            )
        try:
            parts = urlsplit(text)
            host, port = parts.hostname, parts.port
            fields = dict(parse_qsl(parts.query, True, True, max_num_fields=_FIELDS_MAX))
        except ValueError as error:
            raise RemoteProtocolError("a location is no URI") from error
        if parts.scheme != SCHEME or not host or not port:
            raise RemoteProtocolError(f"a location is not of the form {SCHEME}://host:port")
        if "want_data" not in fields:
            raise RemoteProtocolError("a location without want_data")
        free_data = fields.get("free_data")
        handle = fields.get("remote_handle")
        return cls(
            host=unquote(host),
            port=port,
            want_data=_number(fields["want_data"]),
            free_data=None if free_data is None else _number(free_data),
            remote_handle=None if handle is None else _handle(handle),
        )


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 20 and int(text) <= _U64_MAX):
        raise RemoteProtocolError("a tag in a location is no unsigned 64-bit number")
    return int(text)


def _handle(text: str) -> bytes:
    plain = text.replace(" ", "+").replace("-", "+").replace("_", "/").rstrip("=")
    try:
        return base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except (ValueError, binascii.Error) as error:
        raise RemoteProtocolError("remote_handle in a location is not base64") from error
