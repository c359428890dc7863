"""Authorities and certificates made on the spot: good ones, and every kind of bad one.

Keys are thrown away with the directory they lie in. One authority of each name is made in a
process and kept, since tests only read them.
"""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DAY = datetime.timedelta(days=1)


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, as PEM."""

    certificate: bytes
    key: bytes

    @property
    def parsed(self) -> x509.Certificate:
        return x509.load_pem_x509_certificate(self.certificate)

    @property
    def fingerprint(self) -> str:
        return self.parsed.fingerprint(hashes.SHA256()).hex()

    def write(self, folder: Path, name: str) -> tuple[str, str]:
        """Paths of both."""
        certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
        certificate.write_bytes(self.certificate)
        key.write_bytes(self.key)
        return str(certificate), str(key)


class Authority:
    """Signs certificates."""

    def __init__(self, name: str = "test authority") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        made = _builder(self._name, self._name, self._key.public_key(), starts=-DAY, ends=30 * DAY)
        made = made.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        self.certificate = _pem(made.sign(self._key, hashes.SHA256()))

    def signs(
        self,
        common_name: str,
        *,
        hosts: tuple[str, ...] = (),
        emails: tuple[str, ...] = (),
        is_client: bool = False,
        starts: datetime.timedelta = -DAY,
        ends: datetime.timedelta = DAY,
    ) -> Pair:
        """A certificate for a server of these hosts, or for a client."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
        made = _builder(subject, self._name, key.public_key(), starts=starts, ends=ends)
        names = [*map(_general_name, hosts), *map(x509.RFC822Name, emails)]
        if names:
            made = made.add_extension(x509.SubjectAlternativeName(names), critical=False)
        use = ExtendedKeyUsageOID.CLIENT_AUTH if is_client else ExtendedKeyUsageOID.SERVER_AUTH
        made = made.add_extension(x509.ExtendedKeyUsage([use]), critical=False)
        text = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        return Pair(_pem(made.sign(self._key, hashes.SHA256())), text)

    def for_localhost(self, common_name: str = "server", **options) -> Pair:
        return self.signs(common_name, hosts=("localhost", "127.0.0.1", "::1"), **options)

    def for_client(self, common_name: str = "alice", **options) -> Pair:
        return self.signs(common_name, is_client=True, **options)

    def revokes(self, *pairs: Pair, ends: datetime.timedelta = DAY) -> bytes:
        """A list of these certificates as revoked, as PEM."""
        now = datetime.datetime.now(datetime.UTC)
        made = x509.CertificateRevocationListBuilder().issuer_name(self._name)
        made = made.last_update(now - 2 * DAY).next_update(now + ends)
        for pair in pairs:
            entry = x509.RevokedCertificateBuilder().serial_number(pair.parsed.serial_number)
            made = made.add_revoked_certificate(entry.revocation_date(now - DAY).build())
        signed = made.sign(self._key, hashes.SHA256())
        return signed.public_bytes(serialization.Encoding.PEM)

    def write(self, folder: Path, name: str = "ca") -> str:
        """The path of its certificate."""
        path = folder / f"{name}.pem"
        path.write_bytes(self.certificate)
        return str(path)


@cache
def authority(name: str = "test authority") -> Authority:
    """The one of that name."""
    return Authority(name)


def _builder(subject, issuer, public_key, *, starts, ends) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + starts)
        .not_valid_after(now + ends)
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
