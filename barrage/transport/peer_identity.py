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
from typing import TYPE_CHECKING, Any

from barrage.transport.base import NOBODY, PeerCertificate, PeerIdentity
from barrage.transport.tls.certificate_fields import identifier_of, not_after_of

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable, Mapping

_UCRED = struct.Struct("iII")
"""What the kernel says of the other end: process, user, group."""

_KINDS = {"DNS": "dns", "IP Address": "ip", "email": "email", "URI": "uri"}
"""Kinds of alternative names, as :mod:`ssl` calls them."""

_GRPC_KINDS = {"peer_dns": "dns", "peer_ip": "ip", "peer_email": "email", "peer_uri": "uri"}
"""The same as gRPC calls them."""


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


def peer_of(transport: asyncio.Transport) -> str:
    """Who calls, as gRPC names it."""
    name: Any = transport.get_extra_info("peername")
    made: Any = transport.get_extra_info("socket")
    if made is None or not name or made.family == getattr(socket, "AF_UNIX", None):
        return f"unix:{name if isinstance(name, str) else ''}"
    host, port = name[0], name[1]
    if made.family == socket.AF_INET6 and not host.startswith("::ffff:"):
        return f"ipv6:%5B{host.replace('%', '%25')}%5D:{port}"
    return f"ipv4:{host.removeprefix('::ffff:')}:{port}"


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
            identifier=identifier_of(der),
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
        identifier=identifier_of(der),
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
