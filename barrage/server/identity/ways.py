"""What a way to prove who one is looks like to the chain that tries them, and the ones that need
nothing else: the server's key, and a program's own function.

A way is asked with everything a call shows. It answers with a :class:`Caller`, with None when what
is shown is nothing it knows of, or with an error, after which no other way is asked.
"""

from __future__ import annotations

import hmac
import inspect
import logging
from dataclasses import dataclass
from traceback import format_tb
from typing import TYPE_CHECKING, Protocol, TypeAlias

from barrage.errors import AuthenticationError, BarrageError, ConfigError
from barrage.server.identity.caller import KEY_NAME, Caller, Proof
from barrage.server.identity.credentials import REFUSED, CredentialKind, Credentials
from barrage.server.identity.login_threads import LoginThreads
from barrage.server.identity.names import checked_name, checked_roles

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from barrage.limits import Limits

HOOKS_AT_A_TIME = 16
"""Calls of a program's function: they wait for others rather than compute."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """What a call shows."""

    credentials: Credentials
    peer: str
    """As gRPC names it."""


class Way(Protocol):
    """One way to prove who one is. Used on the event loop."""

    handler: str
    """The word by which Deephaven's web UI knows it."""

    async def prove(self, attempt: Attempt) -> Caller | None:
        """See the module. AuthenticationError, LimitExceededError."""
        ...

    def close(self) -> None:
        """After the last call. Idempotent."""
        ...


class KeyWay:
    """The server's pre-shared key: as a token, as a password with any name, or for any handler."""

    handler = "io.deephaven.authentication.psk.PskAuthenticationHandler"
    _KINDS = (CredentialKind.TOKEN, CredentialKind.PASSWORD, CredentialKind.SECRET)

    def __init__(self, key: str) -> None:
        self._key = key.encode()
        self._caller = Caller(name=KEY_NAME, proof=Proof.KEY)

    async def prove(self, attempt: Attempt) -> Caller | None:
        shown = attempt.credentials
        if shown.kind not in self._KINDS:
            return None
        is_right = hmac.compare_digest(shown.secret.encode(), self._key)
        return self._caller if is_right else None

    def close(self) -> None:
        """Nothing of it goes on after a call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """What a program's own function is asked: who is this?"""

    scheme: str
    """``bearer``, ``basic``, or ``key`` for any other handler."""
    user: str
    """Empty but for ``basic``."""
    secret: str
    peer: str

    def __repr__(self) -> str:
        return f"Login(scheme={self.scheme!r}, user={self.user!r}, ..., peer={self.peer!r})"


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """Its answer, where a name is not enough."""

    name: str
    roles: Sequence[str] = ()
    expires_ns: int | None = None
    """Wall clock; None: never."""


HookAnswer: TypeAlias = "User | str | None"
Hook: TypeAlias = "Callable[[Login], HookAnswer | Awaitable[HookAnswer]]"


class HookFailedError(BarrageError):
    """The program's function has raised, so nothing is known of the caller."""

    def __init__(self, kind: str) -> None:
        super().__init__(f"the server could not find out who calls: authenticate raised {kind}")


class HookWay:
    """A function of the program: given a :class:`Login` it returns a name, a :class:`User`, or None
    for nobody. A coroutine function is awaited, any other is called on a thread of the way's own:
    it may wait for a directory as long as that likes."""

    handler = "barrage.hook"
    _SCHEMES = {  # noqa: RUF012 - never changed
        CredentialKind.TOKEN: "bearer",
        CredentialKind.PASSWORD: "basic",
        CredentialKind.SECRET: "key",
    }

    def __init__(self, hook: Hook, limits: Limits) -> None:
        if not callable(hook):
            raise ConfigError("authenticate must be a function of a Login")
        self._hook = hook
        self._threads = LoginThreads(
            "barrage-authenticate",
            "what authenticate says",
            at_a_time=HOOKS_AT_A_TIME,
            waiting_max=limits.hook_calls_waiting_max,
        )
        self._is_awaited = inspect.iscoroutinefunction(hook)

    async def prove(self, attempt: Attempt) -> Caller | None:
        shown = attempt.credentials
        scheme = self._SCHEMES.get(shown.kind)
        if scheme is None:
            return None
        login = Login(scheme=scheme, user=shown.user, secret=shown.secret, peer=attempt.peer)
        answer = await self._answer(login)
        return None if answer is None else _caller_of(answer)

    async def _answer(self, login: Login) -> object:
        try:
            answer = await self._asked(login)
            return await answer if inspect.isawaitable(answer) else answer
        except BarrageError:
            raise
        except Exception as error:
            # Not what it says, which may be what was shown to it.
            frames = "".join(format_tb(error.__traceback__))
            log.error("authenticate failed: %s\n%s", type(error).__name__, frames)
            raise HookFailedError(type(error).__name__) from None

    async def _asked(self, login: Login) -> object:
        return self._hook(login) if self._is_awaited else await self._threads.run(self._hook, login)

    def close(self) -> None:
        """End the threads after what they are at. Idempotent."""
        self._threads.close()


def _caller_of(answer: object) -> Caller:
    user = User(name=answer) if isinstance(answer, str) else answer
    if not isinstance(user, User):
        raise TypeError(f"authenticate returned {type(answer).__name__}, not a name or a User")
    try:
        return Caller(
            name=checked_name(user.name),
            roles=checked_roles(user.roles),
            proof=Proof.HOOK,
            expires_ns=user.expires_ns,
        )
    except ValueError as error:
        raise TypeError(f"authenticate returned a User whose {error}") from None


def refused(reason: str = "") -> BarrageError:
    """What is told to whoever is not believed: not why, unless that was proven before."""
    return AuthenticationError(f"{REFUSED}; {reason}" if reason else REFUSED)
