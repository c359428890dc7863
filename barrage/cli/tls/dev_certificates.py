"""An authority that signs two certificates and is forgotten: what ``barrage cert dev`` makes."""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import os
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from barrage.cli.command_errors import CommandError, usage_error

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

DAYS_DEFAULT = 365

_ALWAYS = ("localhost", "127.0.0.1", "::1")
_EARLIER = datetime.timedelta(hours=1)
"""Clocks differ."""

_FILES = {
    "ca": "ca.pem",
    "server": "server.pem",
    "server_key": "server.key",
    "client": "client.pem",
    "client_key": "client.key",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DevOptions:
    """What the certificates are good for."""

    hosts: Sequence[str] = ()
    """Of the server, besides those of this machine."""
    client: str = "dev"
    days: int = DAYS_DEFAULT
    is_forced: bool = False
    """Whether files that are there are replaced."""


def make_dev_certificates(directory: Path, options: DevOptions) -> Mapping[str, Path]:
    """Their paths by what they are; keys can be read by their owner alone. CommandError when one is
    there already, or cannot be written."""
    paths = {name: directory / file for name, file in _FILES.items()}
    there = [str(path) for path in paths.values() if path.exists() or path.is_symlink()]
    if there and not options.is_forced:
        raise usage_error(f"{there[0]} is there already; another DIR, or --force to replace it")
    contents = _made(options)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, path in paths.items():
            _write(path, contents[name], is_secret=name.endswith("_key"))
    except OSError as error:
        raise CommandError(f"cannot write {error.filename}: {error.strerror}") from error
    return paths


def _write(path: Path, content: bytes, *, is_secret: bool) -> None:
    """All of it or nothing, and never readable by others in between."""
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    mode = 0o600 if is_secret else 0o644
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
        os.replace(new, path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


def _made(options: DevOptions) -> dict[str, bytes]:
    """The content of each file."""
    try:
        signer = _Signer(days=options.days)
    except ImportError as error:
        raise CommandError(
            "this needs the package cryptography: `pip install 'barrage[tls]'`"
        ) from error
    hosts = list(dict.fromkeys((*_ALWAYS, socket.gethostname(), *options.hosts)))
    server, server_key = signer.pair("localhost", hosts=hosts)
    client, client_key = signer.pair(options.client)
    return {
        "ca": signer.certificate,
        "server": server,
        "server_key": server_key,
        "client": client,
        "client_key": client_key,
    }


class _Signer:
    """An authority whose key is nowhere but here. ImportError without its package."""

    def __init__(self, *, days: int) -> None:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec

        self._x509, self._hashes, self._forms, self._curves = x509, hashes, serialization, ec
        self._now = datetime.datetime.now(datetime.UTC)
        self._days = days
        self._key = self._new_key()
        self._name = self._named(f"barrage cert dev on {socket.gethostname()}"[:64])
        self.certificate = self._signed(self._name, self._key, *self._of_authorities())
        """Its own, in PEM."""

    def pair(self, name: str, *, hosts: Sequence[str] = ()) -> tuple[bytes, bytes]:
        """Certificate and key, in PEM: of a server with ``hosts``, else of a client."""
        x509 = self._x509
        usages = x509.oid.ExtendedKeyUsageOID
        use = usages.SERVER_AUTH if hosts else usages.CLIENT_AUTH
        extensions = [
            (x509.BasicConstraints(ca=False, path_length=None), True),
            (x509.ExtendedKeyUsage([use]), False),
        ]
        if hosts:
            names = x509.SubjectAlternativeName([self._general(host) for host in hosts])
            extensions.append((names, False))
        key = self._new_key()
        text: bytes = key.private_bytes(
            self._forms.Encoding.PEM,
            self._forms.PrivateFormat.PKCS8,
            self._forms.NoEncryption(),
        )
        return self._signed(self._named(name), key, *extensions), text

    def _new_key(self) -> Any:
        return self._curves.generate_private_key(self._curves.SECP256R1())

    def _of_authorities(self) -> list[tuple[Any, bool]]:
        x509 = self._x509
        no = dict.fromkeys(
            (
                "digital_signature",
                "content_commitment",
                "key_encipherment",
                "data_encipherment",
                "key_agreement",
                "encipher_only",
                "decipher_only",
            ),
            False,
        )
        uses = x509.KeyUsage(key_cert_sign=True, crl_sign=True, **no)
        return [(x509.BasicConstraints(ca=True, path_length=0), True), (uses, True)]

    def _signed(self, subject: Any, key: Any, *extensions: tuple[Any, bool]) -> bytes:
        x509 = self._x509
        of_key = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        by = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(self._now - _EARLIER)
            .not_valid_after(self._now + datetime.timedelta(days=self._days))
        )
        for extension, is_critical in ((of_key, False), (by, False), *extensions):
            builder = builder.add_extension(extension, critical=is_critical)
        made: bytes = builder.sign(self._key, self._hashes.SHA256()).public_bytes(
            self._forms.Encoding.PEM
        )
        return made

    def _named(self, text: str) -> Any:
        x509 = self._x509
        try:
            return x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, text)])
        except ValueError as error:
            raise usage_error(f"{text!r} cannot be in a certificate: {error}") from error

    def _general(self, host: str) -> Any:
        with contextlib.suppress(ValueError):
            return self._x509.IPAddress(ipaddress.ip_address(host))
        try:
            return self._x509.DNSName(host)
        except ValueError as error:
            raise usage_error(f"--host {host!r} is no name of a host: {error}") from error
