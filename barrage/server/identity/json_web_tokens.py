"""JWTs of somebody the server trusts, checked by PyJWT (extra ``jwt``).

What may be is said by the configuration and never by the token: the algorithms are a list of
asymmetric ones, so that none is taken without a signature, nor one "signed" with a public key as
though that were a secret; the keys are those of the set, by their number where there are several.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from barrage.errors import ConfigError, TransportUnavailableError
from barrage.server.identity.caller import Caller, Proof
from barrage.server.identity.calls_under_way import CredentialsExpiredError
from barrage.server.identity.credentials import CredentialKind
from barrage.server.identity.key_sets import KeySet
from barrage.server.identity.names import checked_name, checked_roles
from barrage.server.identity.ways import refused

if TYPE_CHECKING:
    from barrage.clock import Clock
    from barrage.limits import Limits
    from barrage.server.identity.ways import Attempt
    from barrage.server.settings.config import ServerConfig

ALGORITHMS = frozenset(
    {f"{family}{bits}" for family in ("RS", "PS", "ES") for bits in (256, 384, 512)} | {"EdDSA"}
)
TOKEN_LENGTH_MAX = 16 * 1024
_DOTS = 2
_NANOS_PER_S = 1_000_000_000
_FAR_S = 2**33
"""Later than any clock of ours; what comes after is the end of nothing."""


class _Terms(NamedTuple):
    """What a token must be."""

    issuer: str
    audience: str
    algorithms: tuple[str, ...]
    leeway_s: int
    user_claim: str
    roles_claim: str


class JwtWay:
    """The tokens of one issuer. Used on the event loop."""

    handler = "barrage.jwt"

    def __init__(self, terms: _Terms, keys: KeySet, jwt: Any) -> None:
        self._terms = terms
        self._keys = keys
        self._jwt = jwt

    async def prove(self, attempt: Attempt) -> Caller | None:
        """Who a token that holds is for. AuthenticationError when it is a JWT and does not hold;
        TransportError when the keys cannot be had."""
        shown = attempt.credentials
        if shown.kind is not CredentialKind.TOKEN or shown.secret.count(".") != _DOTS:
            return None
        if len(shown.secret) > TOKEN_LENGTH_MAX:
            raise refused()
        try:
            header = self._jwt.get_unverified_header(shown.secret)
        except (self._jwt.PyJWTError, RecursionError):
            return None
        if header.get("alg") not in self._terms.algorithms:
            raise refused()
        key = await self._keys.key(header.get("kid"), header["alg"])
        if key is None:
            raise refused()
        return self._caller(self._claims(shown.secret, key, header["alg"]))

    def close(self) -> None:
        """Nothing of it goes on after a call."""

    def _claims(self, token: str, key: Any, algorithm: str) -> dict[str, Any]:
        terms = self._terms
        try:
            claims: dict[str, Any] = self._jwt.decode(
                token,
                key=key,
                algorithms=[algorithm],
                issuer=terms.issuer,
                audience=terms.audience,
                leeway=terms.leeway_s,
                options={"require": ["exp", "iss", "aud", terms.user_claim]},
            )
        except self._jwt.ExpiredSignatureError:
            raise CredentialsExpiredError from None
        except (self._jwt.PyJWTError, RecursionError, OverflowError):
            # Why is nobody's business who does not know it.
            raise refused() from None
        return claims

    def _caller(self, claims: dict[str, Any]) -> Caller:
        roles = claims.get(self._terms.roles_claim, ())
        told = roles.split() if isinstance(roles, str) else roles
        try:
            ends_s = min(int(claims["exp"]) + self._terms.leeway_s, _FAR_S)
            return Caller(
                name=checked_name(claims[self._terms.user_claim]),
                roles=checked_roles(told if isinstance(told, list | tuple) else [told]),
                proof=Proof.JWT,
                expires_ns=ends_s * _NANOS_PER_S,
            )
        except (ValueError, TypeError):
            raise refused("the token's claims name no user") from None


def jwt_way(config: ServerConfig, limits: Limits, clock: Clock) -> JwtWay | None:
    """The way a configuration describes, with its keys if they are in a file; None when it
    describes none. ConfigError, TransportUnavailableError."""
    if config.jwt_keys is None:
        if config.jwt_issuer is not None or config.jwt_audience is not None:
            raise ConfigError("jwt_issuer and jwt_audience need jwt_keys")
        return None
    if config.jwt_issuer is None or config.jwt_audience is None:
        raise ConfigError("jwt_keys needs jwt_issuer and jwt_audience")
    algorithms = tuple(word.strip() for word in config.jwt_algorithms.split(",") if word.strip())
    if not algorithms or not ALGORITHMS.issuperset(algorithms):
        raise ConfigError(
            f"jwt_algorithms = {config.jwt_algorithms!r} (from {config.origin('jwt_algorithms')}) "
            f"must be of {', '.join(sorted(ALGORITHMS))}"
        )
    try:
        import jwt  # noqa: PLC0415
    except ImportError as error:
        raise TransportUnavailableError(
            "jwt_keys needs PyJWT: pip install 'barrage[jwt]'"
        ) from error
    terms = _Terms(
        issuer=config.jwt_issuer,
        audience=config.jwt_audience,
        algorithms=algorithms,
        leeway_s=config.jwt_leeway_s,
        user_claim=config.jwt_user_claim,
        roles_claim=config.jwt_roles_claim,
    )
    return JwtWay(terms, KeySet(config.jwt_keys, limits, clock, jwt=jwt), jwt)
