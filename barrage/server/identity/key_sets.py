"""The public keys of an issuer, as a JSON Web Key Set in a file or at an address.

They are read when a token names a key that is not known, and not again before a while has passed,
whoever asks how often: issuers change keys by adding a new one first. Keys that are gone from the
set are gone here when it is read again, which is also done every few minutes.
"""

from __future__ import annotations

import asyncio
import logging
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from barrage.errors import ConfigError, TransportError
from barrage.json_text import read_json
from barrage.ordinary_files import ordinary_file
from barrage.supervision import in_thread, start_awaited
from barrage.transport.host_names import is_loopback

if TYPE_CHECKING:
    from barrage.clock import Clock
    from barrage.limits import Limits

log = logging.getLogger(__name__)

FETCH_SECONDS_MAX = 5.0
FRESH_NS = 300 * 1_000_000_000
"""Age from which on a set is read again, whatever a token names."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Who answers for keys is who was asked."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


class KeySet:
    """The keys of one issuer. Used on one event loop."""

    def __init__(self, source: str, limits: Limits, clock: Clock, *, jwt: Any) -> None:
        """A file is read now; ConfigError when it cannot be."""
        self._source = source
        self._limits = limits
        self._clock = clock
        self._jwt = jwt
        self._is_address = "://" in source
        self._keys: dict[str | None, list[Any]] = {}
        self._read_ns: int | None = None
        """When it was read, or tried to be; None: never."""
        self._reading: asyncio.Task[None] | None = None
        if self._is_address:
            _check_address(source)
            self._open = urllib.request.build_opener(_NoRedirect).open
        else:
            try:
                self._keys = self._parsed(self._read())
            except (OSError, ValueError) as error:
                raise ConfigError(f"cannot read jwt_keys {source}: {error}") from None
            self._read_ns = clock.monotonic_ns()

    async def key(self, number: object, algorithm: str) -> Any:
        """The key a token names, or the only one for who names none; None when there is no such
        key. TransportError when no key has ever been had."""
        known = self._find(number, algorithm)
        age_ns = self._age_ns()
        is_due = age_ns is None or age_ns >= self._limits.key_set_pause_ns
        if known is not None:
            if age_ns is not None and age_ns >= FRESH_NS:
                self._read_again()  # Nobody waits for an address that does not answer.
        elif is_due or self._reading is not None:
            await asyncio.shield(self._read_again())
            known = self._find(number, algorithm)
        if known is None and not self._keys:
            raise TransportError("the keys of the issuer cannot be had at the moment; try again")
        return known

    def _age_ns(self) -> int | None:
        return None if self._read_ns is None else self._clock.monotonic_ns() - self._read_ns

    def _find(self, number: object, algorithm: str) -> Any:
        if number is None:
            every = [key for keys in self._keys.values() for key in keys]
            found = every if len(every) == 1 else []
        else:
            found = self._keys.get(number, []) if isinstance(number, str) else []
        fitting = [key for key in found if key.algorithm_name in (algorithm, None)]
        fitting = fitting or [key for key in found if key.key_type == _KEY_TYPES[algorithm[:2]]]
        return fitting[0] if len(fitting) == 1 else None

    def _read_again(self) -> asyncio.Task[None]:
        """Once for all who wait."""
        if self._reading is None:
            self._read_ns = self._clock.monotonic_ns()
            self._reading = start_awaited(self._replaced())
            self._reading.add_done_callback(self._has_read)
        return self._reading

    def _has_read(self, _: object) -> None:
        self._reading = None

    async def _replaced(self) -> None:
        try:
            self._keys = self._parsed(await in_thread(self._read))
        except (OSError, ValueError, urllib.error.URLError) as error:
            log.warning("keys for JWTs stay as they were: %s: %s", type(error).__name__, error)

    def _read(self) -> bytes:
        """Any thread. OSError, ValueError."""
        bytes_max = self._limits.key_set_bytes_max
        if self._is_address:
            with self._open(self._source, timeout=FETCH_SECONDS_MAX) as answer:
                text: bytes = answer.read(bytes_max + 1)
        else:
            with open(self._source, "rb", opener=ordinary_file) as file:
                text = file.read(bytes_max + 1)
        if len(text) > bytes_max:
            raise ValueError(f"it is longer than {bytes_max} bytes")
        return text

    def _parsed(self, text: bytes) -> dict[str | None, list[Any]]:
        """ValueError. Keys that are of no use to us are left aside; secret ones among them."""
        document = read_json(text)
        told = document.get("keys") if isinstance(document, dict) else None
        if not isinstance(told, list) or len(told) > self._limits.key_set_keys_max:
            raise ValueError("it is no set of keys, or has too many")
        keys: dict[str | None, list[Any]] = {}
        for each in told:
            if not isinstance(each, dict) or each.get("kty") not in _KEY_TYPES.values():
                continue
            if each.get("use", "sig") != "sig":
                continue
            try:
                key = self._jwt.PyJWK({k: v for k, v in each.items() if k not in _PRIVATE})
            except self._jwt.PyJWTError:
                continue
            kid = each.get("kid")
            keys.setdefault(kid if isinstance(kid, str) else None, []).append(key)
        if not keys:
            raise ValueError("it has no key of use")
        return keys


_KEY_TYPES = {"RS": "RSA", "PS": "RSA", "ES": "EC", "Ed": "OKP"}
_PRIVATE = frozenset({"d", "p", "q", "dp", "dq", "qi", "oth", "k"})


def _check_address(source: str) -> None:
    parts = urlsplit(source)
    is_safe = parts.scheme == "https" or (
        parts.scheme == "http" and parts.hostname is not None and is_loopback(parts.hostname)
    )
    if not is_safe or not parts.hostname or parts.username is not None:
        raise ConfigError(
            "jwt_keys must be a file, or an address that begins with https:// "
            "(http:// on loopback), without a user in it"
        )
