"""The way from a Spark process to a Barrage server: one Flight client per process and server.

Spark's workers are forked and reused, so clients are kept per process and never travel: what is
pickled is a :class:`ServerConnection`, which says where to call and as whom. Secrets named by an
environment variable are read in the process that calls.
"""

from __future__ import annotations

import base64
import ipaddress
import json
import os
import re
import threading
from dataclasses import dataclass
from enum import Enum, auto
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
from pyarrow import flight

from barrage.errors import (
    BarrageError,
    ConfigError,
    HistoryLostError,
    SubscriptionClosedError,
    TransportError,
)
from spark_sink.patience import Patience

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

CONNECTION_OPTIONS = (
    "uri",
    "host",
    "port",
    "reconnectTimeoutMs",
    "fetchTimeoutMs",
    "fetchNumRetries",
    "fetchRetryIntervalMs",
    "auth.token",
    "auth.tokenEnv",
    "auth.user",
    "auth.password",
    "auth.passwordEnv",
    "tls.rootCertificates",
    "tls.clientCertificate",
    "tls.clientKey",
    "tls.serverName",
    "tls.skipVerify",
)
"""Options every reader and writer has."""

CONNECTION_PREFIXES = ("header.",)
"""``header.NAME`` is sent with each call; ``header.NAME.env`` names an environment variable."""

PORT_DEFAULT = 10_000
TIMEOUT_MS_DEFAULT = 120_000
RECONNECT_MS_DEFAULT = 60_000
"""How long a server may be away before a call fails."""
RETRY_MS_DEFAULT = 10
ANSWER_BYTES_MAX = 16 * 1024 * 1024
"""Longest JSON answer of an action that is believed."""

UNREACHABLE_ADVICE = (
    "is the server up, and option uri right? More patience: reconnectTimeoutMs for a server that "
    "is away, fetchTimeoutMs for one that is slow"
)

_SCHEMES = {
    "grpc": "grpc+tcp",
    "grpc+tcp": "grpc+tcp",
    "grpcs": "grpc+tls",
    "grpc+tls": "grpc+tls",
    "dh": "grpc+tcp",
    "dh+plain": "grpc+tcp",
    "dhs": "grpc+tls",
}
_ENV = ".env"
_HEADER_NAME = re.compile(r"[0-9a-z_.-]+\Z")
_Result = TypeVar("_Result")


class Failure(Enum):
    """What kind of end a call had; decides what a reader does about it."""

    UNREACHABLE = auto()
    """Worth trying again."""
    LOST = auto()
    """The history asked for is not there (any more)."""
    NO_JOURNAL = auto()
    NOT_FOUND = auto()
    REFUSED = auto()
    """Everything else: trying again would not help."""


class ServerError(BarrageError):
    """A call to the server failed. ``failure`` is its kind, ``reason`` the server's own words."""

    def __init__(self, failure: Failure, reason: str, *, doing: str, advice: str = "") -> None:
        self.failure = failure
        self.reason = reason
        super().__init__(f"{doing}: {reason}{f' ({advice})' if advice else ''}")


def server_error(error: Exception, *, doing: str) -> ServerError:
    """The error of ours that an exception of pyarrow's Flight client stands for.

    pyarrow has no class for most gRPC statuses; the fixed words before the server's text tell
    them apart.
    """
    text = re.sub(r"\.?\s*(gRPC )?client debug context:.*", "", str(error), flags=re.DOTALL | re.I)
    head, found, detail = text.strip().partition("message: ")
    reason = detail if found else text.strip() or type(error).__name__
    if isinstance(
        error,
        flight.FlightUnavailableError | flight.FlightTimedOutError | flight.FlightCancelledError,
    ):
        return ServerError(Failure.UNREACHABLE, reason, doing=doing, advice=UNREACHABLE_ADVICE)
    if "aborted" in head and isinstance(error, flight.FlightInternalError):
        return ServerError(Failure.UNREACHABLE, reason, doing=doing)
    if isinstance(error, flight.FlightUnauthenticatedError | flight.FlightUnauthorizedError):
        advice = "set option auth.token, or auth.tokenEnv to the name of an environment variable"
        return ServerError(Failure.REFUSED, reason, doing=doing, advice=advice)
    if reason.startswith("no-journal") and "is derived from" in reason:
        advice = (
            "read such a table with options filter and columns, and do the rest in Spark; or set "
            "option journalLocation to a directory all executors see, and the rows of the view "
            "are followed and their changes kept on this side"
        )
        return ServerError(Failure.NO_JOURNAL, reason, doing=doing, advice=advice)
    if isinstance(error, pa.ArrowNotImplementedError) or reason.startswith("no-journal"):
        advice = (
            "set option journalLocation to a directory all executors see, and the journal is kept "
            "on this side"
        )
        return ServerError(Failure.NO_JOURNAL, reason, doing=doing, advice=advice)
    if isinstance(error, pa.ArrowKeyError):
        return ServerError(Failure.NOT_FOUND, reason, doing=doing, advice="check option table")
    if reason.startswith("history-lost"):
        return ServerError(Failure.LOST, reason, doing=doing)
    return ServerError(Failure.REFUSED, reason, doing=doing)


@dataclass(frozen=True, slots=True, kw_only=True)
class Secret:
    """A value, or the name of the environment variable that has it."""

    value: str | None = None
    variable: str | None = None

    def read(self) -> str:
        """The value, in this process; ConfigError when the variable is not set."""
        if self.variable is None:
            return self.value or ""
        found = os.environ.get(self.variable)
        if found is None:
            raise ConfigError(
                f"environment variable {self.variable} is not set in this process: set it for the "
                "driver, and for executors with spark.executorEnv." + self.variable
            )
        return found

    def __repr__(self) -> str:
        return f"Secret(variable={self.variable!r})" if self.variable else "Secret(...)"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConnection:
    """Where the server is and how to call it. Hashable, picklable, and without live parts."""

    uris: tuple[str, ...]
    token: Secret | None = None
    user: str | None = None
    password: Secret | None = None
    headers: tuple[tuple[str, Secret], ...] = ()
    tls: tuple[tuple[str, str], ...] = ()
    timeout_ms: int = TIMEOUT_MS_DEFAULT
    reconnect_ms: int = RECONNECT_MS_DEFAULT
    retries: int | None = None
    """Most tries besides the first; None: as many as ``reconnect_ms`` has room for."""
    retry_ms: int = RETRY_MS_DEFAULT

    @classmethod
    def of(cls, options: Mapping[str, str]) -> ServerConnection:
        """Read the connection's options; others are not looked at. ConfigError."""
        given = {name.lower(): value for name, value in options.items()}
        headers = []
        for name, value in sorted(given.items()):
            if name.startswith("header."):
                header = name.removeprefix("header.")
                is_variable = header.endswith(_ENV)
                header = header.removesuffix(_ENV)
                if not _HEADER_NAME.match(header) or header.endswith("-bin"):
                    raise ConfigError(f"option {name} does not name a header of text")
                secret = Secret(variable=value) if is_variable else Secret(value=value)
                headers.append((header, secret))
        user, password = given.get("auth.user"), _secret(given, "auth.password")
        if (user is None) != (password is None):
            raise ConfigError(
                "options auth.user and auth.password (or auth.passwordEnv) go together"
            )
        token = _secret(given, "auth.token")
        if token is not None and user is not None:
            raise ConfigError("give auth.token or auth.user, not both")
        tls = ("rootcertificates", "clientcertificate", "clientkey", "servername", "skipverify")
        return cls(
            uris=_uris(given),
            token=token,
            user=user,
            password=password,
            headers=tuple(headers),
            tls=tuple((name, given[f"tls.{name}"]) for name in tls if f"tls.{name}" in given),
            timeout_ms=_number(given, "fetchTimeoutMs", TIMEOUT_MS_DEFAULT, least=1),
            reconnect_ms=_number(given, "reconnectTimeoutMs", RECONNECT_MS_DEFAULT, least=0),
            retries=_number(given, "fetchNumRetries", 0, least=0)
            if "fetchnumretries" in given
            else None,
            retry_ms=_number(given, "fetchRetryIntervalMs", RETRY_MS_DEFAULT, least=1),
        )

    @property
    def where(self) -> str:
        """The server, for messages."""
        return ",".join(self.uris)

    @property
    def location(self) -> str:
        """The one of several locations that is used now."""
        return _clients.uri(self)

    def client(self) -> flight.FlightClient:
        """This process's client for this server. The gRPC connection behind it repairs itself."""
        return _clients.get(self)

    def call_options(
        self, timeout_ms: int | None = None, *, further: Iterable[tuple[str, str]] = ()
    ) -> flight.FlightCallOptions:
        """Headers, ``further`` ones among them, and the deadline of one call; None: no deadline."""
        headers = [(name.encode(), secret.read().encode()) for name, secret in self.headers]
        headers += [(name.encode(), value.encode()) for name, value in further]
        if self.token is not None:
            headers.append((b"authorization", b"Bearer " + self.token.read().encode()))
        elif self.user is not None and self.password is not None:
            pair = f"{self.user}:{self.password.read()}".encode()
            headers.append((b"authorization", b"Basic " + base64.b64encode(pair)))
        timeout = None if timeout_ms is None else timeout_ms / 1000
        return flight.FlightCallOptions(timeout=timeout, headers=headers)

    def action(self, name: str, *, is_known: bool = False, **body: Any) -> dict[str, Any]:
        """One Flight action with a JSON body, tried again while the server cannot be reached;
        :class:`ServerError`. ``is_known``: see :meth:`retried`."""
        doing = f"{name} of {body.get('table', '')!r} at {self.where}"
        return self.retried(lambda: self.act(name, **body), doing=doing, is_known=is_known)

    def act(self, name: str, **body: Any) -> dict[str, Any]:
        """The same, tried once; Flight's errors and :class:`ServerError`."""
        request = flight.Action(name, json.dumps(body, separators=(",", ":")).encode())
        answers = list(self.client().do_action(request, self.call_options(self.timeout_ms)))
        if len(answers) != 1 or answers[0].body.size > ANSWER_BYTES_MAX:
            raise ServerError(Failure.REFUSED, f"{len(answers)} answers instead of one", doing=name)
        found = json.loads(answers[0].body.to_pybytes())
        if not isinstance(found, dict):
            raise ServerError(Failure.REFUSED, "the answer is no JSON object", doing=name)
        return found

    def patience(self, doing: str) -> Patience:
        """The tries of one call or read."""
        return Patience(
            doing=doing,
            limit_ms=self.reconnect_ms,
            pause_ms=self.retry_ms,
            tries_max=self.retries,
        )

    def retried(
        self, call: Callable[[], _Result], *, doing: str, is_known: bool = False
    ) -> _Result:
        """Call until it succeeds, fails for good, or the time for it is over; the last failure is
        raised. ``is_known``: the table was there, so one that is not may be on its way back: a
        server that has just started may make it in a moment."""
        patience = self.patience(doing)
        while True:
            try:
                result = call()
            except ServerError:
                raise
            except Exception as error:
                found = as_server_error(error, doing=doing)
                if not may_pass(found, is_known=is_known):
                    raise found from error
                if not patience.wait(found.reason):
                    raise gave_up(found, patience.waited, doing=doing) from error
                self.change_server()
            else:
                patience.succeeded()
                return result

    def change_server(self) -> None:
        """Use the next of several locations from now on."""
        if len(self.uris) > 1:
            _clients.advance(self)


def may_pass(error: ServerError, *, is_known: bool) -> bool:
    """Whether a failure may be over in a moment. ``is_known``: the table was there."""
    return error.failure is Failure.UNREACHABLE or (is_known and error.failure is Failure.NOT_FOUND)


def gave_up(error: ServerError, waited: float, *, doing: str) -> ServerError:
    """The last failure of a call that was tried for some time."""
    if error.failure is Failure.NOT_FOUND:
        advice = "it was dropped; make it again, or end the query"
        reason = f"the table is gone, and did not come back within {waited:.0f} s: {error.reason}"
        return ServerError(Failure.NOT_FOUND, reason, doing=doing, advice=advice)
    reason = f"{error.reason}; tried for {waited:.0f} s"
    return ServerError(error.failure, reason, doing=doing, advice=UNREACHABLE_ADVICE)


def as_server_error(error: Exception, *, doing: str) -> ServerError:
    """``error`` as a :class:`ServerError`; what did not come from Flight is raised as it is."""
    if isinstance(error, flight.FlightError | pa.ArrowException | OSError):
        return server_error(error, doing=doing)
    raise error


def session_error(error: BarrageError, *, doing: str) -> ServerError:
    """``error`` of a session as a :class:`ServerError`."""
    failure = Failure.REFUSED
    if isinstance(error, TransportError | SubscriptionClosedError):
        failure = Failure.UNREACHABLE
    elif isinstance(error, HistoryLostError):
        failure = Failure.LOST
    return ServerError(failure, str(error), doing=doing)


class _Clients:
    """The Flight clients of this process. A forked child starts anew: gRPC does not survive it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._clients: dict[tuple[ServerConnection, str], flight.FlightClient] = {}
        self._turns: dict[ServerConnection, int] = {}

    def get(self, connection: ServerConnection) -> flight.FlightClient:
        with self._lock:
            if self._pid != os.getpid():
                self._clients.clear()
                self._pid = os.getpid()
            key = (connection, uri := self._uri(connection))
            if key not in self._clients:
                self._clients[key] = _connect(uri, connection)
            return self._clients[key]

    def uri(self, connection: ServerConnection) -> str:
        with self._lock:
            return self._uri(connection)

    def _uri(self, connection: ServerConnection) -> str:
        return connection.uris[self._turns.get(connection, 0) % len(connection.uris)]

    def advance(self, connection: ServerConnection) -> None:
        with self._lock:
            self._turns[connection] = self._turns.get(connection, 0) + 1


_clients = _Clients()


def _connect(uri: str, connection: ServerConnection) -> flight.FlightClient:
    settings: dict[str, Any] = {}
    for name, value in connection.tls:
        if name == "rootcertificates":
            settings["tls_root_certs"] = _pem(name, value)
        elif name == "clientcertificate":
            settings["cert_chain"] = _pem(name, value)
        elif name == "clientkey":
            settings["private_key"] = _pem(name, value)
        elif name == "servername":
            settings["override_hostname"] = value
        else:
            settings["disable_server_verification"] = value.strip().lower() == "true"
    # Connections shared behind our back would tie the watch to the fate of a fetch.
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_reconnect_backoff_ms", 1000)]
    scheme, _, rest = uri.partition("://")
    return flight.connect(f"{_SCHEMES[scheme]}://{rest}", generic_options=options, **settings)


@lru_cache(maxsize=16)
def _pem(name: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"option tls.{name}: cannot read {path}: {error.strerror}") from error


def _uris(given: Mapping[str, str]) -> tuple[str, ...]:
    text = given.get("uri")
    if text is None:
        host = given.get("host")
        if not host:
            raise ConfigError('option uri is missing: .option("uri", "grpc://host:10000")')
        port = _number(given, "port", PORT_DEFAULT, least=1)
        text = f"grpc://{f'[{host}]' if ':' in host else host}:{port}"
    elif "host" in given or "port" in given:
        raise ConfigError("give option uri, or host and port, not both")
    found = []
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        scheme, separator, rest = part.partition("://")
        if not separator:
            scheme, rest = "grpc", part
        if scheme.lower() not in _SCHEMES or not rest.strip("/"):
            known = ", ".join(f"{name}://" for name in _SCHEMES)
            raise ConfigError(f"option uri: {part!r} is not a location; it begins with {known}")
        rest = rest.rstrip("/")
        if not re.search(r":\d+\Z", rest):
            rest += f":{PORT_DEFAULT}"
        found.append(f"{scheme.lower()}://{rest}")
    if not found:
        raise ConfigError("option uri is empty")
    in_clear = [each for each in found if not is_tls(each) and not _is_loopback(each)]
    meant = any(map(is_tls, found)) or any(name.startswith("tls.") for name in given)
    if in_clear and meant:
        raise ConfigError(
            f"option uri: {', '.join(in_clear)} would be told in the clear what the others, or the "
            "options tls.*, are to protect: write grpcs:// there as well"
        )
    return tuple(found)


def is_tls(uri: str) -> bool:
    """Whether a location speaks TLS."""
    return _SCHEMES[uri.partition("://")[0]] == "grpc+tls"


def _is_loopback(uri: str) -> bool:
    host = uri.partition("://")[2].rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _secret(given: Mapping[str, str], name: str) -> Secret | None:
    value, variable = given.get(name), given.get(f"{name}env")
    if value is not None and variable is not None:
        raise ConfigError(f"give option {name} or {name}Env, not both")
    if variable is not None:
        return Secret(variable=variable)
    return None if value is None else Secret(value=value)


def _number(given: Mapping[str, str], name: str, default: int, *, least: int) -> int:
    text = given.get(name.lower())
    if text is None:
        return default
    if not re.fullmatch(r"\d{1,9}", text.strip()) or int(text) < least:
        raise ConfigError(f"option {name} is a whole number of at least {least}, not {text!r}")
    return int(text)
