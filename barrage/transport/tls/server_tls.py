"""The certificate and key of a server, read again when their files change.

A new pair holds for the connections that come after it; those there are keep theirs. Each time a
whole new context is made, since one can be given further authorities but none can be taken out of
it again. Nothing here says what a key is: errors name files.
"""

from __future__ import annotations

import hashlib
import os
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING

from barrage.clock import SystemClock
from barrage.errors import ConfigError, LimitExceededError
from barrage.ordinary_files import ordinary_file
from barrage.transport.base import TLSMaterial
from barrage.transport.tls.certificate_fields import not_after_of, revoked_by

if TYPE_CHECKING:
    from collections.abc import Sequence

    from barrage.clock import Clock

_SETTLED_NS = 2_000_000_000
"""Age from which on a file cannot change any more without its times showing it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TLSPaths:
    """Where a server's certificate, its key and its clients' authorities are, as PEM files."""

    certificate: str
    """The server's certificate and those between it and an authority."""
    key: str
    client_ca: str | None = None
    """Authorities of clients; with them every client must show a certificate that one of them has
    signed."""
    crl: str | None = None
    """Lists of revoked certificates, one of each of those authorities."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loaded:
    """What new connections get."""

    material: TLSMaterial
    context: ssl.SSLContext
    web_context: ssl.SSLContext
    revoked: frozenset[bytes] = frozenset()


class ServerTLS:
    """What new connections get now. :meth:`refresh` reads files and is called from one thread at a
    time; everything else from any."""

    def __init__(self, paths: TLSPaths, *, file_bytes_max: int, clock: Clock | None = None) -> None:
        """Reads the files; ConfigError when they are not there or do not belong together."""
        self.paths = paths
        self._file_bytes_max = file_bytes_max
        self._clock = clock or SystemClock()
        self._stamp: tuple[object, ...] | None = None
        self._loaded = self._load(self._read())

    @property
    def context(self) -> ssl.SSLContext:
        """For one connection that begins now."""
        return self._loaded.context

    @property
    def web_context(self) -> ssl.SSLContext:
        """For one connection of a browser, which speaks HTTP/2 or HTTP/1.1."""
        return self._loaded.web_context

    @property
    def material(self) -> TLSMaterial:
        """For a library that brings its own TLS. The same object until the files change."""
        return self._loaded.material

    @property
    def revoked(self) -> frozenset[bytes]:
        """Certificates of clients that are revoked, by what lists name them."""
        return self._loaded.revoked

    @property
    def ends_s(self) -> int | None:
        """When the server's certificate ends, in seconds since 1970, where that can be read."""
        text = self.material.certificate.decode("ascii", "replace")
        end = text.find(ssl.PEM_FOOTER)
        try:
            start = text.index(ssl.PEM_HEADER)
            return not_after_of(ssl.PEM_cert_to_DER_cert(text[start : end + len(ssl.PEM_FOOTER)]))
        except ValueError:
            return None

    def refresh(self) -> bool:
        """Look at the files, and read them if they may have changed: whether there is a new pair.
        ConfigError when what is there now is of no use; then everything stays as it is, and they
        are not read again before they change again."""
        stamp = self._stamp_now()
        if stamp is not None and stamp == self._stamp:
            return False
        # Whatever comes of it: the same files are not read over and over.
        self._stamp = stamp
        material = self._read()
        if _digest(material) == _digest(self.material):
            return False
        self._loaded = self._load(material)
        return True

    def _stamp_now(self) -> tuple[object, ...] | None:
        """What changes with the files; None while one is so young that it may change unseen."""
        told: list[object] = []
        for path in _named(self.paths):
            try:
                found = os.stat(path)
            except OSError as error:
                told.append((error.errno,))
                continue
            if abs(self._clock.wall_ns() - found.st_ctime_ns) < _SETTLED_NS:
                return None
            told.append(
                (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
            )
        return tuple(told)

    def _read(self) -> TLSMaterial:
        paths = self.paths
        return TLSMaterial(
            certificate=self._bytes_of(paths.certificate),
            key=self._bytes_of(paths.key),
            client_ca=None if paths.client_ca is None else self._bytes_of(paths.client_ca),
            crl=None if paths.crl is None else self._bytes_of(paths.crl),
        )

    def _bytes_of(self, path: str) -> bytes:
        most = self._file_bytes_max
        try:
            with open(path, "rb", opener=ordinary_file) as file:
                data = file.read(most + 1)
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error.strerror}") from error
        if not data:
            raise ConfigError(f"cannot read {path}: it is empty")
        if len(data) > most:
            raise LimitExceededError(f"file {path}", actual=len(data), maximum=most, unit="bytes")
        return data

    def _load(self, material: TLSMaterial) -> _Loaded:
        """Contexts of what was read. The library reads certificate and key itself, so they are
        read once more behind it: they may have been replaced in between."""
        context, web_context = self._context_of(material), self._context_of(material)
        context.set_alpn_protocols(["h2"])
        web_context.set_alpn_protocols(["h2", "http/1.1"])
        revoked: frozenset[bytes] = frozenset()
        if material.crl is not None:
            revoked = self._refuse_revoked(context, material)
            self._refuse_revoked(web_context, material)
        if _digest(self._read()) != _digest(material):
            raise ConfigError(
                f"{self.paths.certificate} or {self.paths.key} was changed while it was read; "
                "it is read again"
            )
        return _Loaded(material=material, context=context, web_context=web_context, revoked=revoked)

    def _context_of(self, material: TLSMaterial) -> ssl.SSLContext:
        paths = self.paths
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        # Who comes again shows its certificate again, and is checked again.
        context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
        context.num_tickets = 0
        try:
            context.load_cert_chain(paths.certificate, paths.key, password=_no_password)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"{paths.certificate} and {paths.key} are no certificate with its key "
                f"({_reason(error)}); both are PEM files, and the key has no password"
            ) from error
        if material.client_ca is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            try:
                context.load_verify_locations(cadata=material.client_ca.decode("ascii"))
            except (OSError, ValueError) as error:
                raise ConfigError(
                    f"{paths.client_ca} has no certificates of authorities ({_reason(error)})"
                ) from error
        return context

    def _refuse_revoked(self, context: ssl.SSLContext, material: TLSMaterial) -> frozenset[bytes]:
        """Have the library look certificates up in the lists, and read those."""
        path, crl = self.paths.crl, material.crl
        assert path is not None
        assert crl is not None
        context.verify_flags |= ssl.VerifyFlags.VERIFY_CRL_CHECK_LEAF
        authorities = context.cert_store_stats()["x509_ca"]
        try:
            context.load_verify_locations(cafile=path)
            revoked = revoked_by(crl)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"{path} has no list of revoked certificates ({_reason(error)}); it is a PEM file"
            ) from error
        found = context.cert_store_stats()
        if not found["crl"] or found["x509_ca"] != authorities or found["x509"] != authorities:
            # What is a certificate there would be trusted.
            raise ConfigError(f"{path} must have lists of revoked certificates and nothing else")
        return revoked


def _digest(material: TLSMaterial) -> bytes:
    """The same for the same content."""
    parts = (material.certificate, material.key, material.client_ca or b"", material.crl or b"")
    return b"".join(hashlib.sha256(part).digest() for part in parts)


def _named(paths: TLSPaths) -> Sequence[str]:
    named = (paths.certificate, paths.key, paths.client_ca, paths.crl)
    return [each for each in named if each is not None]


def _no_password() -> str:
    """Nobody is there to be asked, which is what the library would do."""
    raise ValueError("the key has a password")


def _reason(error: Exception) -> str:
    """What the library says, which never shows a key."""
    reason = getattr(error, "reason", None)
    if isinstance(reason, str):
        return reason.replace("_", " ").lower()
    return getattr(error, "strerror", None) or type(error).__name__
