"""When a certificate ends, read from the certificate itself (RFC 5280, 4.1), of which whoever calls
has been told by the TLS library that it is one."""

from __future__ import annotations

from datetime import UTC, datetime

_DER_SEQUENCE = 0x30
_DER_VERSION = 0xA0
_DER_INTEGER = 0x02
_DER_TIMES = {0x17: "%y%m%d%H%M%SZ", 0x18: "%Y%m%d%H%M%SZ"}


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
