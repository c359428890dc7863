"""TLS of a client: what its files hold, and what a handshake that failed means to who reads it.

gRPC and Arrow tell of a handshake in their own words, and of some failures only that the connection
was closed: a server that expects TLS says nothing to who does not speak it, and one that refuses a
client's certificate does so behind the client's own handshake. For these the server is asked once
more, by a handshake that carries no credentials (:func:`explained`).
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from barrage.errors import ConfigError, ConnectionLostError, TLSFailedError

if TYPE_CHECKING:
    from barrage.transport.base import TLS, Address

ASK_SECONDS_MAX = 2.0
"""How long finding out why a connection was closed may take."""

_PEER = re.compile(r"(?:ipv4:|ipv6:)(\S+?:\d+): ")

_CLOSED = re.compile(r"[Ss]ocket closed|[Cc]onnection (?:reset|closed)|Broken pipe")

_TRUST = "is not trusted: pass tls=TLS(ca=...) with the authority that has signed it"

_FAILURES = (
    ("certificate has expired", "has expired; the server needs a new one"),
    ("certificate is not yet valid", "is not valid yet; compare the clocks of both machines"),
    ("ostname Verification Check failed", ""),
    ("is not in peer certificate", ""),
    ("ertificate verify failed", _TRUST),
    ("CERTIFICATE_VERIFY_FAILED", _TRUST),
)
"""What gRPC and Arrow say, and what is the matter with the server's certificate; nothing for one of
another host."""

_NO_TLS = ("WRONG_VERSION_NUMBER", "wrong version number", "HTTP_REQUEST", "http request")

_ALERT = re.compile(r"ALERT_(\w+)")


@dataclass(frozen=True, slots=True)
class ClientMaterial:
    """What was in a client's files; None for those it has not."""

    ca: bytes | None
    certificate: bytes | None
    key: bytes | None = field(repr=False)


def read_material(tls: TLS) -> ClientMaterial:
    """ConfigError when a file cannot be read or is not what it should be."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    material = ClientMaterial(
        _bytes_of("ca", tls.ca),
        _bytes_of("certificate", tls.certificate),
        _bytes_of("key", tls.key),
    )
    if material.ca is not None:
        try:
            made.load_verify_locations(cadata=material.ca.decode("ascii"))
        except (ssl.SSLError, ValueError) as error:
            raise ConfigError(f"tls.ca {tls.ca} has no certificates of authorities") from error
    _show_certificate(made, tls)
    return material


def _show_certificate(context: ssl.SSLContext, tls: TLS) -> None:
    if tls.certificate is None:
        return
    try:
        context.load_cert_chain(tls.certificate, tls.key, password=_no_password)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"tls.certificate {tls.certificate} and tls.key {tls.key} are no certificate with its "
            "key; both are PEM files, and the key has no password"
        ) from error


def _bytes_of(name: str, path: str | None) -> bytes | None:
    if path is None:
        return None
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise ConfigError(f"cannot read tls.{name} {path}: {error.strerror}") from error


def _no_password() -> str:
    raise ValueError("the key has a password")


def tls_failure(text: str) -> TLSFailedError | None:
    """The error that a status stands for, when it tells of a handshake."""
    found = _PEER.search(text)
    peer = found[1] if found else "the server"
    if any(each in text for each in _NO_TLS):
        return TLSFailedError(f"{peer} does not speak TLS: use grpc:// if that is meant")
    for said, meant in _FAILURES:
        if said in text:
            return TLSFailedError(
                f"the certificate of {peer} "
                + (
                    meant
                    or "is of another host: connect by a name that is in it, or pass its name "
                    "as tls=TLS(server_name=...)"
                )
            )
    return None


async def explained(
    error: ConnectionLostError, address: Address, tls: TLS | None, *, timeout: float | None
) -> ConnectionLostError:
    """``error``, or a better one: why the server at ``address`` has closed the connection without a
    word. Sends nothing but a handshake."""
    if isinstance(error, TLSFailedError) or not _CLOSED.search(str(error)):
        return error
    host, colon, port = address.target.rpartition(":")
    if not colon or not port.isdigit() or "/" in host:
        return error
    seconds = ASK_SECONDS_MAX if timeout is None else min(timeout, ASK_SECONDS_MAX)
    try:
        async with asyncio.timeout(seconds):
            reason = await _asked(host.strip("[]"), int(port), tls if address.is_tls else None)
    except (TimeoutError, OSError, ConfigError):
        return error
    if reason is None:
        return error
    if not address.is_tls:
        return TLSFailedError(f"{address.target} speaks TLS: use grpcs://{address.target}")
    if tls is None or tls.certificate is None:
        return TLSFailedError(
            f"{address.target} closes the connection behind the handshake{reason}: it asks for a "
            "client's certificate; pass tls=TLS(certificate=..., key=...)"
        )
    return TLSFailedError(
        f"{address.target} closes the connection behind the handshake{reason}: it does not accept "
        f"the certificate {tls.certificate}"
    )


async def _asked(host: str, port: int, tls: TLS | None) -> str | None:
    """What the server says, in brackets, if it speaks TLS and then closes; None when it does not
    speak it, or when all is well. Without ``tls`` one that speaks it is enough."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    if tls is not None:
        _show_certificate(context, tls)
    try:
        reader, writer = await asyncio.open_connection(
            host, port, ssl=context, server_hostname=host
        )
    except ssl.SSLError as refusal:
        return _alert_of(refusal)
    try:
        if tls is None:
            return ""
        # HTTP/2 begins with a word of the server's.
        return None if await reader.read(1) else ""
    except ssl.SSLError as refusal:
        return _alert_of(refusal)
    except ConnectionError:
        return ""
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def _alert_of(refusal: ssl.SSLError) -> str | None:
    found = _ALERT.search(refusal.reason or "")
    return None if found is None else f" ({found[1].replace('_', ' ').lower()})"
