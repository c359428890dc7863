"""Callers that are known by their connection: a client certificate, or the user of the process on
the other end of a socket of the file system."""

from __future__ import annotations

import pwd
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

from barrage.errors import AuthenticationError
from barrage.limits import NANOS_PER_MS
from barrage.server.identity.caller import Caller, Proof
from barrage.server.identity.credentials import REFUSED
from barrage.server.identity.names import checked_name
from barrage.transport.peer_identity import identity_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from barrage.server.settings.kinds import CertificateName
    from barrage.transport.base import PeerCertificate

_NANOS_PER_S = 1000 * NANOS_PER_MS
_CONNECTIONS_MAX = 1024


class CertificateRevokedError(AuthenticationError):
    """The certificate that was shown holds no more; a new connection with another one does."""

    def __init__(self) -> None:
        super().__init__(f"{REFUSED}; the certificate was revoked, connect with another one")


class Connected(Protocol):
    """The part of a call that says where it comes from, or of a connection without calls."""

    def peer(self) -> str:
        """As gRPC names it."""
        ...


class PeerWays:
    """How connections of one server name their callers. Used on the event loop."""

    def __init__(
        self,
        *,
        certificate_name: CertificateName,
        trusts_unix: bool,
        is_proof: bool = False,
        roles: Mapping[str, frozenset[str]],
    ) -> None:
        """``certificate_name``: which name in a certificate is the caller's; ``trusts_unix``:
        whether the user of a socket needs to show nothing else; ``is_proof``: whether connections
        say who calls here, for all that is set up; ``roles``: of callers, by name."""
        self.is_proof = is_proof
        self.revoked: frozenset[bytes] = frozenset()
        """Certificates that name nobody any more, by what lists name them."""
        self._certificate_name = certificate_name
        self._trusts_unix = trusts_unix
        self._roles = roles
        self._of_certificate = lru_cache(maxsize=_CONNECTIONS_MAX)(self._named)
        self._of_user = lru_cache(maxsize=_CONNECTIONS_MAX)(self._user)

    def caller(self, context: Connected, *, is_open: bool) -> Caller | None:
        """Who calls, as the connection proves it; None when it does not. On a server that is open
        to everybody the user of a socket is told by name. CertificateRevokedError."""
        identity = identity_of(context)
        certificate = identity.certificate
        if certificate is not None and self._certificate_name != "none":
            if certificate.identifier in self.revoked:
                # Its connection was there before.
                raise CertificateRevokedError
            return self._of_certificate(certificate)
        if identity.unix_user is not None and (self._trusts_unix or is_open):
            return self._of_user(identity.unix_user)
        return None

    def _named(self, certificate: PeerCertificate) -> Caller | None:
        """A certificate with several names of the kind, or none, names nobody."""
        names = [name for kind, name in certificate.names if kind == self._certificate_name]
        if self._certificate_name == "cn":
            names = [] if certificate.common_name is None else [certificate.common_name]
        if len(names) != 1:
            return None
        try:
            name = checked_name(names[0])
        except ValueError:
            return None
        ends_s = certificate.not_after_s
        return Caller(
            name=name,
            roles=self._roles.get(name, frozenset()),
            proof=Proof.CERTIFICATE,
            expires_ns=None if ends_s is None else ends_s * _NANOS_PER_S,
            certificate=certificate.identifier,
        )

    def _user(self, number: int) -> Caller:
        try:
            name = checked_name(pwd.getpwuid(number).pw_name)
        except (KeyError, ValueError):
            name = f"uid-{number}"
        return Caller(name=name, roles=self._roles.get(name, frozenset()), proof=Proof.UNIX)
