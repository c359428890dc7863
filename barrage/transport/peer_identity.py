"""Who a peer has proved to be by its connection: by the certificate it showed in the TLS handshake,
or as a user of this machine, of whom the system speaks.

What is read here has been checked by others: the TLS library has verified the certificate against
the server's own authorities, and the credentials of a socket come from the kernel.
"""

from __future__ import annotations

import hashlib
import socket
import ssl
import struct
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from barrage.transport.base import NOBODY, PeerCertificate, PeerIdentity

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_UCRED = struct.Struct("iII")
"""What the kernel says of the other end: process, user, group."""

_KINDS = {"DNS": "dns", "IP Address": "ip", "email": "email", "URI": "uri"}
"""Kinds of alternative names, as :mod:`ssl` calls them."""

_GRPC_KINDS = {"peer_dns": "dns", "peer_ip": "ip", "peer_email": "email", "peer_uri": "uri"}
"""The same as gRPC calls them."""

_DER_SEQUENCE = 0x30
_DER_VERSION = 0xA0
_DER_INTEGER = 0x02
_DER_TIMES = {0x17: "%y%m%d%H%M%SZ", 0x18: "%Y%m%d%H%M%SZ"}


def identity_of(context: Any) -> PeerIdentity:
    """Who is at the other end of a call, whatever carries it: also for contexts of ``grpc.aio``,
    which know it under another name."""
    told = getattr(context, "peer_identity", None)
    if told is not None:
        found: PeerIdentity = told()
        return found
    properties = getattr(context, "auth_context", None)
    return NOBODY if properties is None else identity_of_properties(properties())


def identity_of_connection(tls: ssl.SSLObject | None, made: Any) -> PeerIdentity:
    """Of an accepted connection: its TLS, if it has any, and its socket."""
    certificate = None if tls is None else _certificate_of(tls)
    process, user, group = _credentials_of(made)
    return PeerIdentity(
        certificate=certificate, unix_user=user, unix_group=group, unix_process=process
    )


def identity_of_properties(properties: Mapping[str, Iterable[bytes]]) -> PeerIdentity:
    """Of a call of gRPC, by what its security layer has found. gRPC does not say who is at the
    other end of a socket of the file system."""
    if list(properties.get("transport_security_type", ())) != [b"ssl"]:
        return NOBODY
    pem = list(properties.get("x509_pem_cert", ()))
    if len(pem) != 1:
        return NOBODY
    der = ssl.PEM_cert_to_DER_cert(pem[0].decode("ascii"))
    names = [
        (kind, value.decode("utf-8", "replace"))
        for name, kind in _GRPC_KINDS.items()
        for value in properties.get(name, ())
    ]
    common = [each.decode("utf-8", "replace") for each in properties.get("x509_common_name", ())]
    return PeerIdentity(
        certificate=PeerCertificate(
            common_name=common[0] if len(common) == 1 else None,
            names=tuple(sorted(names)),
            fingerprint=hashlib.sha256(der).hexdigest(),
            not_after_s=not_after_of(der),
        )
    )


def _certificate_of(tls: ssl.SSLObject) -> PeerCertificate | None:
    """Only one that was verified: otherwise anybody may have made it."""
    if tls.context.verify_mode is not ssl.CERT_REQUIRED:
        return None
    told: dict[str, Any] | None = tls.getpeercert()
    der = tls.getpeercert(binary_form=True)
    if not told or der is None:
        return None
    common = [
        value for part in told.get("subject", ()) for name, value in part if name == "commonName"
    ]
    names = [
        (_KINDS[kind], value) for kind, value in told.get("subjectAltName", ()) if kind in _KINDS
    ]
    return PeerCertificate(
        common_name=common[0] if len(common) == 1 else None,
        names=tuple(sorted(names)),
        fingerprint=hashlib.sha256(der).hexdigest(),
        not_after_s=int(ssl.cert_time_to_seconds(told["notAfter"])),
    )


def _credentials_of(made: Any) -> tuple[int, int, int] | tuple[None, None, None]:
    """Process, user and group at the other end of a socket of the file system."""
    option = getattr(socket, "SO_PEERCRED", None)
    if made is None or option is None or made.family != getattr(socket, "AF_UNIX", None):
        return None, None, None
    try:
        process, user, group = _UCRED.unpack(
            made.getsockopt(socket.SOL_SOCKET, option, _UCRED.size)
        )
    except OSError:
        return None, None, None
    return process, user, group


def not_after_of(der: bytes) -> int | None:
    """When a certificate ends, in seconds since 1970; None where that cannot be read.

    ``Certificate { tbs { [0] version?, serial, algorithm, issuer, { notBefore, notAfter } … } … }``
    """
    try:
        _, certificate, _ = _der_item(der)
        _, rest, _ = _der_item(certificate)
        tag, _, after = _der_item(rest)
        if tag == _DER_VERSION:
            tag, _, after = _der_item(after)
        if tag != _DER_INTEGER:
            return None
        for _ in range(2):  # The algorithm and the issuer.
            _, _, after = _der_item(after)
        tag, validity, _ = _der_item(after)
        _, _, after = _der_item(validity)
        kind, text, _ = _der_item(after)
        if tag != _DER_SEQUENCE or kind not in _DER_TIMES:
            return None
        ends = datetime.strptime(text.decode("ascii"), _DER_TIMES[kind]).replace(tzinfo=UTC)
    except (ValueError, IndexError):
        return None
    # Two digits stand for 1950 to 2049 here (RFC 5280, 4.1.2.5.1), for 1969 to 2068 in Python.
    if kind == min(_DER_TIMES) and ends.year >= 2050:
        ends = ends.replace(year=ends.year - 100)
    return int(ends.timestamp())


def _der_item(data: bytes) -> tuple[int, bytes, bytes]:
    """Tag, content, and what follows. ValueError or IndexError when it is cut."""
    tag, size, start = data[0], data[1], 2
    if size & 0x80:
        digits = size & 0x7F
        if not 0 < digits <= 4:
            raise ValueError("a length without an end")
        start += digits
        size = int.from_bytes(data[2:start], "big")
    if len(data) < start + size:
        raise ValueError("cut short")
    return tag, data[start : start + size], data[start + size :]
