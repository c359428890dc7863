"""Settings of a server: defaults < TOML file < environment ``BARRAGE_...`` < flags.

Unknown names are errors that say where they stood; the origin of every value is kept. Limits are
set in the table ``[limits]`` or as ``BARRAGE_LIMITS__<NAME>``. An example is in docs/cli.md.
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping  # noqa: TC003 - declarations are read
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, get_args

from barrage.errors import ConfigError, near_miss
from barrage.limits import DEFAULT_LIMITS, Limits
from barrage.server.settings.declared import Count, converted, declarations, plain_type
from barrage.server.settings.kinds import (  # noqa: TC001 - declarations are read
    Address,
    AuditBytes,
    CertificateName,
    Devices,
    Directory,
    File,
    FlightLocation,
    JournalBytes,
    Lifetime,
    PemFile,
    Percent,
    Port,
    Word,
)
from barrage.transport.base import HttpServer, is_path_of_pem
from barrage.transport.host_names import host_and_port, is_loopback, normal_origin
from barrage.transport.registry import BODIES, body_transport, body_way
from barrage.wire.dissociated.ways import BodyWay

if TYPE_CHECKING:
    from collections.abc import Iterator

ENVIRONMENT_PREFIX = "BARRAGE_"
DEFAULT_ORIGIN = "default"
_TEXTS = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("0", "false", "no", "off"), False),
}
_LIMITS = "limits"
_NOT_PLAIN = (_LIMITS, "origins", "plug_ins")

JournalClass = Literal["durable", "memory", "none"]
JOURNAL_CLASSES = get_args(JournalClass)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Everything a server can be told. Frozen; ``origins`` maps each setting to where its value
    came from."""

    host: Address = "127.0.0.1"
    """Address to listen on. Any other than loopback needs a token. ``unix:///path`` is a socket of
    the file system; ``inproc://name`` listens on no address, for clients in the same process
    only."""

    port: Port = 0
    """TCP port; 0 lets the system choose."""

    flight_location: FlightLocation | None = None
    """Where endpoints of Flight say that they are to be had: this server's address as its clients
    reach it, for a server behind others, or ``arrow-flight-reuse-connection://?``. When nothing is
    said, endpoints say nothing, which means where their information came from."""

    token: str | None = field(default=None, repr=False)
    """Bearer token every call must carry."""

    token_file: str | None = None
    """File whose first line is the token; read once at start."""

    anonymous: bool | None = None
    """Whether callers that show nothing pass. When nothing is said, only on loopback, a socket of
    the file system or ``inproc``, and only while no other way to prove who one is is set up."""

    users: File | None = None
    """File of users with passwords (``barrage user add``); read again when it changes."""

    policy: File | None = None
    """TOML file with the rules of who may do what with which tables; read again when it
    changes."""

    audit: File | None = None
    """File to which is written who did what to which table, in lines of JSON."""

    audit_bytes: AuditBytes = 64 * 1024 * 1024
    """Size from which on another audit file is begun; the last four before it are kept as
    ``FILE.1`` to ``FILE.4``."""

    jwt_keys: File | None = None
    """Keys that JWTs may be signed with: a file with a JSON Web Key Set, or its ``https`` address
    (``http`` on loopback). Needs the extra ``jwt``."""

    jwt_issuer: File | None = None
    """Who must have issued a JWT (``iss``)."""

    jwt_audience: File | None = None
    """Whom a JWT must be meant for (``aud``)."""

    jwt_algorithms: File = "RS256,ES256"
    """How JWTs may be signed, with commas between: of RS, PS and ES with 256, 384 or 512, and
    EdDSA."""

    jwt_user_claim: File = "sub"
    """Which claim is the caller's name."""

    jwt_roles_claim: File = "roles"
    """Which claim, a list of texts or one with spaces, has the caller's roles."""

    jwt_leeway_s: Count = 30
    """By how much clocks may differ."""

    token_lifetime_ms: Lifetime = 3_600_000
    """How long a bearer token is good that a handshake gave for credentials."""

    unix_peers: bool = False
    """Whether the user of a process that calls through a socket of the file system is its caller,
    with nothing else to be shown."""

    certificate_name: CertificateName = "cn"
    """Which name in a client's certificate is that of the caller: the common name (``cn``), the
    only alternative name of a kind (``dns``, ``email``, ``uri``), or ``none``: certificates prove
    nothing here."""

    caller_roles: File | None = None
    """TOML file with the roles of callers known by certificate or socket: ``name = ["role"]``."""

    tls_cert: PemFile | None = None
    """File with the server's certificate, and those between it and an authority, in PEM; with it
    and ``tls_key`` all connections are TLS, 1.2 or newer."""

    tls_key: PemFile | None = None
    """File with the key of ``tls_cert``, without a password."""

    tls_client_ca: PemFile | None = None
    """File with authorities of clients. With it a client that shows no certificate one of them has
    signed is refused in the handshake."""

    tls_crl: PemFile | None = None
    """File with lists of revoked certificates of clients, one of each authority in
    ``tls_client_ca``; certificates of an authority without one are refused."""

    tls_reload_ms: Count = 5_000
    """How often these files are looked at. When they have changed, new connections get what they
    are now; those there are go on. 0 reads them once."""

    draft_2020: Literal["off", "header", "always"] = "header"
    """Who gets the 2020 draft of the wire format: nobody (``off``), calls with the header
    ``x-barrage-revision: 2020`` (``header``), or every call (``always``)."""

    drain_grace_ms: Count = 5000
    """How long a stopping server waits for its streams to take what is queued for them."""

    cycle_rest_ms_max: Count = 5
    """Longest pause between two cycles that follow each other directly; it lets work gather and
    connections breathe."""

    keepalive_ms: Count = 30_000
    """Silence on a connection after which the server pings it; an unanswered ping closes the
    connection."""

    http: HttpServer = "own"
    """What serves gRPC on ports and sockets: the server itself (``own``), or the gRPC library
    (``grpcio``), which takes several times as long for small messages."""

    reflection: bool = True
    """Whether gRPC server reflection is offered."""

    deephaven: bool = True
    """Whether the services of Deephaven's own clients are offered."""

    deephaven_types: Literal["deephaven", "ticking"] = "deephaven"
    """Which column types sessions of Deephaven clients are shown that do not ask by the header
    ``x-barrage-types``: those of pydeephaven, Java and JS (``deephaven``), or the fewer ones of
    the ticking client (``ticking``)."""

    session_lifetime_ms: Lifetime = 300_000
    """How long a session of a Deephaven client lives without a call."""

    data: Directory | None = None
    """Directory where journals are kept, made when it is missing. With one, tables are back after a
    restart as they were acknowledged."""

    journal: JournalClass | None = None
    """Journal of tables for which nothing else is said: on disk (``durable``, the default with a
    ``data`` directory), in memory (``memory``), or ``none`` (the default without one)."""

    journal_group_ms: Count = 10
    """How long changes gather before they are written and synced together; an acknowledgement
    waits for that. 0 syncs every cycle."""

    journal_group_bytes: Count = 1024 * 1024
    """Bytes of changes that are written and synced without waiting longer."""

    journal_segment_bytes: JournalBytes = 64 * 1024 * 1024
    """Size of a journal file from which on the next one is begun. Old changes are forgotten in
    whole files."""

    journal_retain_bytes: Count = 1024 * 1024 * 1024
    """Bytes of changes kept for each table; 0 keeps all. The rows themselves are never
    forgotten."""

    journal_retain_hours: Count = 0
    """Age from which on changes are forgotten; 0 keeps all."""

    journal_retain_steps: Count = 0
    """Changed steps kept for each table; 0 keeps all."""

    journal_reserve_bytes: Count = 64 * 1024 * 1024
    """Room on the disk set aside so that what was taken can still be written when it is full."""

    journal_memory_bytes: JournalBytes = 64 * 1024 * 1024
    """Bytes of changes kept for each table whose journal is in memory."""

    bodies: str = "inline"
    """Ways other than the stream itself on which our own clients may get the bodies of record
    batches: ``inline`` for none, or ``shm`` (shared memory, same host and user), ``ucx``, or both
    with a comma between them."""

    ucx_host: Address = "127.0.0.1"
    """Address UCX listens on. Any other than loopback needs ``ucx_allow_network`` as well: UCX
    knows neither credentials nor encryption."""

    ucx_port: Port = 0
    """TCP port of UCX; 0 lets the system choose."""

    ucx_allow_network: bool = False
    """Whether UCX may listen on an address that others can reach."""

    ucx_beside_tls: bool = False
    """Whether bodies may go over UCX, in the clear, though all else goes through TLS."""

    ucx_rma: bool = False
    """Whether UCX clients may read bodies out of the server's memory by themselves, which also lets
    a hostile one read and write what it should not."""

    ucx_devices: Devices = "lo"
    """Network devices UCX uses, with commas between them."""

    ucx_library: str | None = None
    """Which UCX to load: ``wheel``, ``system`` or a path; the wheel, then the system's, when
    nothing is said."""

    connector: str | None = None
    """``host:port`` on which sources of the connector protocol are served; none by default. Their
    cookie is what they log in with: the token, ``USER:PASSWORD``, or a token of theirs."""

    connector_tls: bool = True
    """Whether these sources speak TLS where there is a certificate. Without, they are served on
    loopback only."""

    statistics: bool = False
    """Whether ``_server`` and ``_subscriptions`` are made at the start, not when asked for."""

    metrics_port: Port | None = None
    """HTTP port for Prometheus and probes (extra ``metrics``); 0 lets the system choose."""
    metrics_host: Address = "127.0.0.1"
    """Who can reach it needs no credentials and reads names of tables."""

    trace: bool = False
    """Whether updates are remembered for ``barrage trace`` always, not when it asks."""

    otel: bool = False
    """Whether calls, cycles and updates are told to OpenTelemetry (extra ``otel``)."""
    otel_sample_percent: Percent = 100

    log_level: Word = "warning"
    """What is logged: a level, and levels of parts behind it: ``warning,journal=debug``."""

    log_json: bool = False
    """Whether lines of the log are JSON."""

    web: bool | None = None
    """Whether browsers are served: the page, and calls over WebSockets. By default those of
    ``barrage serve`` and ``barrage demo`` where only this machine can reach them."""

    web_port: Port = 0
    """TCP port for browsers, on ``host``, or on loopback where that is no address of a network; 0
    lets the system choose."""

    web_origins: str = ""
    """Origins of pages that may call the server besides its own, as ``https://host:port``, with
    commas between them."""

    connector_restart: str | None = None
    """Where sources are sent at a planned stop (RESTART): ``host:port``, or empty for here."""

    connector_config: File | None = None
    """TOML file of programs and what their messages become (docs/connectors.md)."""

    alerts: File | None = None
    """TOML file of alerts: what is sent to which address when a condition upon rows becomes
    true."""

    alert_hosts: str = ""
    """Hosts that alerts may be sent to, with commas between them: names, ``*.example.org``,
    addresses, networks. Those that are not public only when they are named."""

    limits: Limits = DEFAULT_LIMITS
    """Every limit; see :mod:`barrage.limits`."""

    plug_ins: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """Settings that body transports of other packages declare, by name (``toy_port``). In files,
    variables and flags they stand beside the others."""

    origins: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), compare=False)
    """Setting (``limits.<name>`` for limits) to its origin; one missing has its default."""

    def __post_init__(self) -> None:
        if isinstance(self.data, Path):
            object.__setattr__(self, "data", str(self.data))
        for name, declared in _SETTINGS.items():
            try:
                converted(getattr(self, name), declared)
            except ValueError as error:
                raise self._wrong(name, str(error)) from None
        token = self.token
        if token is not None and not (token.isascii() and token.isprintable() and token.strip()):
            raise ConfigError(
                f"token (from {self.origin('token')}) must be printable ASCII and not empty: "
                "it travels in a header"
            )
        if self.journal == "durable" and self.data is None:
            raise ConfigError(
                f"journal = 'durable' (from {self.origin('journal')}) needs a directory to keep it "
                "in: set data, or start with --data DIR"
            )
        self._check_tls()
        self._check_bodies()
        for origin in self.web_origins_listed:
            if normal_origin(origin) is None:
                raise self._wrong("web_origins", f"origins as https://host:port, not {origin!r}")
        if self.connector is not None and self.connector_address is None:
            raise self._wrong("connector", "host:port, the port from 0 to 65535")
        is_open = not is_loopback((self.connector_address or ("localhost", 0))[0])
        if is_open and self.tls_cert is not None and not self.connector_tls:
            raise ConfigError(
                f"connector = {self.connector!r} (from {self.origin('connector')}) can be reached "
                "by others: with connector_tls = false its cookie and rows would travel in the "
                "clear beside a server with a certificate; serve it on loopback, or with TLS"
            )

    @property
    def web_origins_listed(self) -> tuple[str, ...]:
        """Each of ``web_origins``."""
        return tuple(filter(None, map(str.strip, self.web_origins.split(","))))

    @property
    def connector_address(self) -> tuple[str, int] | None:
        """Host and port of ``connector``; None when there is none."""
        return host_and_port(self.connector or "")

    def _check_tls(self) -> None:
        together = ("tls_cert", "tls_key")
        given = [name for name in together if getattr(self, name) is not None]
        if len(given) == 1:
            missing = next(name for name in together if name not in given)
            raise ConfigError(
                f"{given[0]} (from {self.origin(given[0])}) needs {missing} as well: a certificate "
                "and its key belong together"
            )
        for name in (*together, "tls_client_ca", "tls_crl"):
            value = getattr(self, name)
            if value is not None and not is_path_of_pem(value):
                # What was given may be a key.
                raise ConfigError(
                    f"{name} (from {self.origin(name)}) is the path of a file, not what is in it"
                )
        if self.tls_client_ca is not None and not given:
            raise ConfigError(
                f"tls_client_ca (from {self.origin('tls_client_ca')}) needs tls_cert and tls_key "
                "as well: only a server with TLS can ask clients for certificates"
            )

        if self.tls_crl is not None and (self.tls_client_ca is None or self.http != "own"):
            raise ConfigError(
                f"tls_crl (from {self.origin('tls_crl')}) needs tls_client_ca as well, and "
                'http = "own": it is about certificates of clients, and gRPC reads no such lists'
            )

    def _check_bodies(self) -> None:
        ways = self._body_words()
        if not ways or not all(map(body_way, ways)) or len(set(ways)) < len(ways):
            names = BODIES.names()
            raise self._wrong("bodies", f"{', '.join(('inline', *names))}, or {','.join(names)}")
        if "inline" in ways and len(ways) > 1:
            raise self._wrong("bodies", "inline alone, or other ways without it: inline is always")
        if not self.ucx_allow_network and not is_loopback(self.ucx_host):
            raise ConfigError(
                f"ucx_host = {self.ucx_host!r} (from {self.origin('ucx_host')}) can be reached by "
                "others, and UCX has neither credentials nor encryption; on a network you trust, "
                "set ucx_allow_network = true as well"
            )

        if self.tls_cert is not None and "ucx" in ways and not self.ucx_beside_tls:
            raise ConfigError(
                f"bodies = {self.bodies!r} (from {self.origin('bodies')}) beside TLS: UCX does not "
                "encrypt, so the rows themselves would travel in the clear; where that is meant, "
                "set ucx_beside_tls = true as well"
            )

    def _body_words(self) -> tuple[str, ...]:
        return tuple(word.strip() for word in self.bodies.split(",") if word.strip())

    @property
    def body_ways(self) -> frozenset[str]:
        """The ways switched on, without ``inline``, which always is."""
        return frozenset(self._body_words()) - {"inline"}

    def settings_of(self, prefix: str, declared: type | None) -> Any:
        """An instance of what a plug-in declares, with the values of the settings that begin with
        ``prefix``. ConfigError."""
        if declared is None:
            return None
        values = {}
        for short, kind in declarations(declared).items():
            name = f"{prefix}_{short}"
            if name in _SETTINGS:
                values[short] = getattr(self, name)
            elif name in self.plug_ins:
                values[short] = _converted(
                    name, self.plug_ins[name], kind, origin=self.origin(name)
                )
        return declared(**values)

    @property
    def journal_default(self) -> str:
        """The journal of tables for which nothing else is said."""
        if self.journal is not None:
            return self.journal
        return "none" if self.data is None else "durable"

    def origin(self, name: str) -> str:
        """Where the value of ``name`` came from."""
        return self.origins.get(name, DEFAULT_ORIGIN)

    def described(self) -> Iterator[tuple[str, str, str]]:
        """(name, value, origin) of every setting; the token is not shown."""
        for item in dataclasses.fields(self):
            if item.name in _NOT_PLAIN:
                continue
            value = getattr(self, item.name)
            shown = "(hidden)" if item.name == "token" and value is not None else repr(value)
            yield item.name, shown, self.origin(item.name)
        for name, value in self.plug_ins.items():
            yield name, repr(value), self.origin(name)
        for item in dataclasses.fields(self.limits):
            name = f"{_LIMITS}.{item.name}"
            yield name, repr(getattr(self.limits, item.name)), self.origin(name)

    def _wrong(self, name: str, expected: str) -> ConfigError:
        return ConfigError(
            f"{name} = {getattr(self, name)!r} (from {self.origin(name)}) must be {expected}"
        )


_SETTINGS = {
    name: declared
    for name, declared in declarations(ServerConfig).items()
    if name not in _NOT_PLAIN
}
_KNOWN = _SETTINGS | {f"{_LIMITS}.{item.name}": Count for item in dataclasses.fields(Limits)}


def load_config(
    path: str | Path | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
) -> ServerConfig:
    """Merge the four sources. ``flags`` uses the same names, ``limits.<name>`` for limits; None
    means not given."""
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    sources = [
        *_file_settings(path),
        *_environment_settings(environment or {}),
        *(
            (name, value, f"flag {name}")
            for name, value in (flags or {}).items()
            if value is not None
        ),
    ]
    for name, value, origin in sources:
        values[name] = _checked(name, value, origin)
        origins[name] = origin
    _read_token_file(values, origins)
    limits = {
        name.partition(".")[2]: values.pop(name)
        for name in list(values)
        if name.startswith(f"{_LIMITS}.")
    }
    plug_ins = {name: values.pop(name) for name in list(values) if name not in _SETTINGS}
    return ServerConfig(
        **values,
        plug_ins=MappingProxyType(plug_ins),
        limits=dataclasses.replace(DEFAULT_LIMITS, **limits),
        origins=MappingProxyType(origins),
    )


def _file_settings(path: str | Path | None) -> Iterator[tuple[str, Any, str]]:
    if path is None:
        return
    try:
        document = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read configuration file {path}: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"configuration file {path} is not TOML: {error}") from error
    origin = f"file {path}"
    for name, value in document.items():
        if name != _LIMITS:
            yield name, value, origin
        elif not isinstance(value, dict):
            raise ConfigError(f"limits (from {origin}) must be a table of numbers")
        else:
            for limit, number in value.items():
                yield f"{_LIMITS}.{limit}", number, origin


def _environment_settings(environment: Mapping[str, str]) -> Iterator[tuple[str, Any, str]]:
    for variable, text in sorted(environment.items()):
        if variable.startswith(ENVIRONMENT_PREFIX):
            name = variable[len(ENVIRONMENT_PREFIX) :].lower().replace("__", ".")
            yield name, text, f"environment {variable}"


def _checked(name: str, value: Any, origin: str) -> Any:
    """``value`` as its setting is declared; text is converted only when it comes from the
    environment."""
    declared = _KNOWN.get(name) or _declared_by_plug_in(name)
    if declared is None:
        raise ConfigError(f"unknown setting {name!r} (from {origin}){near_miss(name, _KNOWN)}")
    if isinstance(value, str) and origin.startswith("environment"):
        value = _from_text(value, plain_type(declared))
    return _converted(name, value, declared, origin=origin)


def _converted(name: str, value: Any, declared: Any, *, origin: str) -> Any:
    try:
        return converted(value, declared)
    except ValueError as error:
        raise ConfigError(f"{name} = {value!r} (from {origin}) must be {error}") from None


def _declared_by_plug_in(name: str) -> Any:
    """What a body transport declares a setting as; None when none does. It is loaded for that."""
    prefix, _, short = name.partition("_")
    way = body_way(prefix)
    if way in (None, BodyWay.INLINE, BodyWay.SHM):
        return None
    settings = body_transport(way).settings
    return None if settings is None else declarations(settings).get(short)


def _from_text(text: str, wanted: type) -> Any:
    """Text of an environment variable in the wanted type, or the text itself when it does not
    fit."""
    if wanted is bool:
        return _TEXTS.get(text.strip().lower(), text)
    with suppress(ValueError):
        return int(text) if wanted is int else text
    return text


def _read_token_file(values: dict[str, Any], origins: dict[str, str]) -> None:
    """Replace ``token_file`` by the token in it; naming both is an error."""
    path = values.get("token_file")
    if path is None:
        return
    if "token" in values:
        raise ConfigError(
            f"token (from {origins['token']}) and token_file (from {origins['token_file']}) "
            "exclude each other"
        )
    try:
        first_line = Path(path).read_text(encoding="utf-8").partition("\n")[0].strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read token_file {path}: {error}") from error
    values["token"] = first_line
    origins["token"] = f"token_file {path}"
