"""An authority that signs two certificates and is forgotten: what ``barrage cert dev`` makes."""

from __future__ import annotations

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
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
    except ImportError as error:
        raise CommandError(
            "this needs the package cryptography: `pip install 'barrage[tls]'`"
        ) from error

    def named(text: str) -> x509.Name:
        try:
            return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])
        except ValueError as error:
            raise usage_error(f"{text!r} cannot be in a certificate: {error}") from error

    def general(host: str) -> x509.GeneralName:
        try:
            return x509.IPAddress(ipaddress.ip_address(host))
        except ValueError:
            pass
        try:
            return x509.DNSName(host)
        except ValueError as error:
            raise usage_error(f"--host {host!r} is no name of a host: {error}") from error

    authority_key = ec.generate_private_key(ec.SECP256R1())
    authority = named(f"barrage cert dev on {socket.gethostname()}"[:64])
    now = datetime.datetime.now(datetime.UTC)

    def signed(subject: x509.Name, key: Any, *extensions: tuple[Any, bool]) -> bytes:
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(authority)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _EARLIER)
            .not_valid_after(now + datetime.timedelta(days=options.days))
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()),
                critical=False,
            )
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
            )
        )
        for extension, is_critical in extensions:
            builder = builder.add_extension(extension, critical=is_critical)
        made = builder.sign(authority_key, hashes.SHA256())
        return made.public_bytes(serialization.Encoding.PEM)

    def leaf(subject: x509.Name, *extensions: tuple[Any, bool]) -> tuple[bytes, bytes]:
        key = ec.generate_private_key(ec.SECP256R1())
        plain = (x509.BasicConstraints(ca=False, path_length=None), True)
        text = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        return signed(subject, key, plain, *extensions), text

    hosts = dict.fromkeys((*_ALWAYS, socket.gethostname(), *options.hosts))
    names = x509.SubjectAlternativeName([general(host) for host in hosts])
    serves = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
    calls = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH])
    server, server_key = leaf(named("localhost"), (names, False), (serves, False))
    client, client_key = leaf(named(options.client), (calls, False))
    of_authorities = (x509.BasicConstraints(ca=True, path_length=0), True)
    uses = x509.KeyUsage(
        key_cert_sign=True,
        crl_sign=True,
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    return {
        "ca": signed(authority, authority_key, of_authorities, (uses, True)),
        "server": server,
        "server_key": server_key,
        "client": client,
        "client_key": client_key,
    }
