"""What a certificate says of itself, and a list of revoked ones of others (RFC 5280, 4.1 and 5.1).

Whoever calls has been told by the TLS library that it is one, or reads a file of its own.
"""

from __future__ import annotations

import ssl
from datetime import UTC, datetime
from typing import TypeVar

_DER_SEQUENCE = 0x30
_DER_VERSION = 0xA0
_DER_INTEGER = 0x02
_DER_TIMES = {0x17: "%y%m%d%H%M%SZ", 0x18: "%Y%m%d%H%M%SZ"}
_Bytes = TypeVar("_Bytes", bytes, memoryview)

_CRL_HEADER, _CRL_FOOTER = "-----BEGIN X509 CRL-----", "-----END X509 CRL-----"


def not_after_of(der: bytes) -> int | None:
    """When a certificate ends, in seconds since 1970; None where that cannot be read."""
    try:
        _, _, after = _issued(der)
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


def identifier_of(der: bytes) -> bytes | None:
    """Issuer and serial number of a certificate, by which lists of revoked ones name it; None where
    they cannot be read."""
    try:
        serial, issuer, _ = _issued(der)
    except (ValueError, IndexError):
        return None
    return issuer + serial


def revoked_by(pem: bytes) -> frozenset[bytes]:
    """What :func:`identifier_of` says of the certificates in lists of revoked ones. ValueError.

    ``CertificateList { tbs { version?, algorithm, issuer, thisUpdate, nextUpdate?, { { serial, … }
    … }?, … } … }``
    """
    text = pem.decode("ascii")
    found: set[bytes] = set()
    at = text.find(_CRL_HEADER)
    while at >= 0:
        end = text.index(_CRL_FOOTER, at)
        body = ssl.PEM_HEADER + text[at + len(_CRL_HEADER) : end] + ssl.PEM_FOOTER
        try:
            found.update(_revoked(ssl.PEM_cert_to_DER_cert(body)))
        except IndexError:
            raise ValueError("a list is cut short") from None
        at = text.find(_CRL_HEADER, end)
    return frozenset(found)


def _revoked(der: bytes) -> list[bytes]:
    _, certificates, _ = _der_item(der)
    _, rest, _ = _der_item(certificates)
    tag, _, after = _der_item(rest)
    if tag == _DER_INTEGER:
        _, _, after = _der_item(after)
    issuer, after = _whole(after)
    _, _, after = _der_item(after)
    while after and after[0] in _DER_TIMES:
        _, _, after = _der_item(after)
    if not after or after[0] != _DER_SEQUENCE:
        return []
    _, entries, _ = _der_item(after)
    view, found = memoryview(entries), []
    while view:
        _, entry, view = _der_item(view)
        found.append(issuer + _whole(bytes(entry))[0])
    return found


def _issued(der: bytes) -> tuple[bytes, bytes, bytes]:
    """Serial and issuer, as they stand there, and what follows.

    ``Certificate { tbs { [0] version?, serial, algorithm, issuer, { notBefore, notAfter } … } … }``
    """
    _, certificate, _ = _der_item(der)
    _, rest, _ = _der_item(certificate)
    if rest[0] == _DER_VERSION:
        _, _, rest = _der_item(rest)
    if rest[0] != _DER_INTEGER:
        raise ValueError("no serial number")
    serial, rest = _whole(rest)
    _, _, rest = _der_item(rest)
    issuer, rest = _whole(rest)
    return serial, issuer, rest


def _whole(data: bytes) -> tuple[bytes, bytes]:
    """The first item with its tag, and what follows."""
    _, _, after = _der_item(data)
    size = len(data) - len(after)
    return data[:size], after


def _der_item(data: _Bytes) -> tuple[int, _Bytes, _Bytes]:
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
