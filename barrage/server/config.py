"""Settings of a server: defaults < TOML file < environment ``BARRAGE_...`` < flags.

Unknown names are errors that say where the name stood. The origin of every value is kept, so that a
user can see why a setting has its value. Limits are set in the table ``[limits]`` or as
``BARRAGE_LIMITS__<NAME>``.

Example file::

    host = "0.0.0.0"
    port = 10000
    token_file = "/run/secrets/barrage-token"

    [limits]
    exchange_outbox_bytes_max = 8_388_608
"""

from __future__ import annotations

import dataclasses
import difflib
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from barrage.errors import ConfigError
from barrage.limits import DEFAULT_LIMITS, Limits
from barrage.server.auth import is_loopback

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ENVIRONMENT_PREFIX = "BARRAGE_"
DRAFT_CHOICES = ("off", "header", "always")
TYPES_CHOICES = ("deephaven", "ticking")
SESSION_LIFETIME_MS_MIN = 1000
JOURNAL_BYTES_MIN = 64 * 1024
"""Smallest journal file, and smallest journal in memory."""
JOURNAL_CLASSES = ("durable", "memory", "none")
BODY_CHOICES = ("inline", "shm", "ucx")
DEFAULT_ORIGIN = "default"
_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off")
_LIMITS = "limits"


_NOT_NEGATIVE = (
    "drain_grace_ms",
    "cycle_rest_ms_max",
    "keepalive_ms",
    "journal_group_ms",
    "journal_group_bytes",
    "journal_retain_bytes",
    "journal_retain_hours",
    "journal_retain_steps",
    "journal_reserve_bytes",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Everything a server can be told. Frozen; ``origins`` maps each setting to where its value
    came from."""

    host: str = "127.0.0.1"
    """Address to listen on. Any other than loopback needs a token. ``inproc://name`` listens on no
    address, for clients in the same process only."""

    port: int = 0
    """TCP port; 0 lets the system choose."""

    token: str | None = field(default=None, repr=False)
    """Bearer token every call must carry."""

    token_file: str | None = None
    """File whose first line is the token; read once at start."""

    draft_2020: str = "header"
    """Who gets the 2020 draft of the wire format: nobody (``off``), calls with the header
    ``x-barrage-revision: 2020`` (``header``), or every call (``always``)."""

    drain_grace_ms: int = 5000
    """How long a stopping server waits for its streams to take what is queued for them."""

    cycle_rest_ms_max: int = 5
    """Longest pause between two cycles that follow each other directly; it lets work gather and
    connections breathe."""

    keepalive_ms: int = 30_000
    """Silence on a connection after which the server pings it; an unanswered ping closes the
    connection."""

    reflection: bool = True
    """Whether gRPC server reflection is offered."""

    deephaven: bool = True
    """Whether the services of Deephaven's own clients are offered."""

    deephaven_types: str = "deephaven"
    """Which column types sessions of Deephaven clients are shown that do not ask by the header
    ``x-barrage-types``: those of pydeephaven, Java and JS (``deephaven``), or the fewer ones of
    the ticking client (``ticking``)."""

    session_lifetime_ms: int = 300_000
    """How long a session of a Deephaven client lives without a call."""

    data: str | None = None
    """Directory where journals are kept, made when it is missing. With one, tables are back after a
    restart as they were acknowledged."""

    journal: str | None = None
    """Journal of tables for which nothing else is said: on disk (``durable``, the default with a
    ``data`` directory), in memory (``memory``), or ``none`` (the default without one)."""

    journal_group_ms: int = 10
    """How long changes gather before they are written and synced together; an acknowledgement
    waits for that. 0 syncs every cycle."""

    journal_group_bytes: int = 1024 * 1024
    """Bytes of changes that are written and synced without waiting longer."""

    journal_segment_bytes: int = 64 * 1024 * 1024
    """Size of a journal file from which on the next one is begun. Old changes are forgotten in
    whole files."""

    journal_retain_bytes: int = 1024 * 1024 * 1024
    """Bytes of changes kept for each table; 0 keeps all. The rows themselves are never
    forgotten."""

    journal_retain_hours: int = 0
    """Age from which on changes are forgotten; 0 keeps all."""

    journal_retain_steps: int = 0
    """Changed steps kept for each table; 0 keeps all."""

    journal_reserve_bytes: int = 64 * 1024 * 1024
    """Room on the disk set aside so that what was taken can still be written when it is full."""

    journal_memory_bytes: int = 64 * 1024 * 1024
    """Bytes of changes kept for each table whose journal is in memory."""

    bodies: str = "inline"
    """Ways other than the stream itself on which our own clients may get the bodies of record
    batches: ``inline`` for none, or ``shm`` (shared memory, same host and user), ``ucx``, or both
    with a comma between them."""

    ucx_host: str = "127.0.0.1"
    """Address UCX listens on. Any other than loopback needs ``ucx_allow_network`` as well: UCX
    knows neither credentials nor encryption."""

    ucx_port: int = 0
    """TCP port of UCX; 0 lets the system choose."""

    ucx_allow_network: bool = False
    """Whether UCX may listen on an address that others can reach."""

    ucx_rma: bool = False
    """Whether UCX clients may read bodies out of the server's memory by themselves, which also lets
    a hostile one read and write what it should not."""

    ucx_devices: str = "lo"
    """Network devices UCX uses, with commas between them."""

    ucx_library: str | None = None
    """Which UCX to load: ``wheel``, ``system`` or a path; the wheel, then the system's, when
    nothing is said."""

    limits: Limits = DEFAULT_LIMITS
    """Every limit; see :mod:`barrage.limits`."""

    origins: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), compare=False)
    """Setting name (``limits.<name>`` for limits) to its origin; a name that is missing has its
    default."""

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65_535:
            raise self._wrong("port", "a number from 0 to 65535")
        if self.draft_2020 not in DRAFT_CHOICES:
            raise self._wrong("draft_2020", f"one of {', '.join(DRAFT_CHOICES)}")
        if self.deephaven_types not in TYPES_CHOICES:
            raise self._wrong("deephaven_types", f"one of {', '.join(TYPES_CHOICES)}")
        if self.session_lifetime_ms < SESSION_LIFETIME_MS_MIN:
            raise self._wrong("session_lifetime_ms", f"{SESSION_LIFETIME_MS_MIN} or more")
        if not self.host:
            raise self._wrong("host", "an address")
        token = self.token
        if token is not None and not (token.isascii() and token.isprintable() and token.strip()):
            raise ConfigError(
                f"token (from {self.origin('token')}) must be printable ASCII and not empty: "
                "it travels in a header"
            )
        for name in _NOT_NEGATIVE:
            if getattr(self, name) < 0:
                raise self._wrong(name, "0 or more")
        self._check_journal()
        self._check_bodies()

    def _check_bodies(self) -> None:
        ways = self._body_words()
        if not ways or any(way not in BODY_CHOICES for way in ways) or len(set(ways)) < len(ways):
            raise self._wrong("bodies", "inline, shm, ucx, or shm,ucx")
        if "inline" in ways and len(ways) > 1:
            raise self._wrong("bodies", "inline alone, or other ways without it: inline is always")
        if not 0 <= self.ucx_port <= 65_535:
            raise self._wrong("ucx_port", "a number from 0 to 65535")
        if not self.ucx_host:
            raise self._wrong("ucx_host", "an address")
        if not self.ucx_devices:
            raise self._wrong("ucx_devices", "names of network devices")
        if not self.ucx_allow_network and not is_loopback(self.ucx_host):
            raise ConfigError(
                f"ucx_host = {self.ucx_host!r} (from {self.origin('ucx_host')}) can be reached by "
                "others, and UCX has neither credentials nor encryption; on a network you trust, "
                "set ucx_allow_network = true as well"
            )

    def _body_words(self) -> tuple[str, ...]:
        return tuple(word.strip() for word in self.bodies.split(",") if word.strip())

    @property
    def body_ways(self) -> frozenset[str]:
        """The ways switched on, without ``inline``, which always is."""
        return frozenset(self._body_words()) - {"inline"}

    def _check_journal(self) -> None:
        if self.journal is not None and self.journal not in JOURNAL_CLASSES:
            raise self._wrong("journal", f"one of {', '.join(JOURNAL_CLASSES)}")
        if self.data == "":
            raise self._wrong("data", "a directory")
        if self.journal == "durable" and self.data is None:
            raise ConfigError(
                f"journal = 'durable' (from {self.origin('journal')}) needs a directory to keep it "
                "in: set data, or start with --data DIR"
            )
        for name in ("journal_segment_bytes", "journal_memory_bytes"):
            if getattr(self, name) < JOURNAL_BYTES_MIN:
                raise self._wrong(name, f"{JOURNAL_BYTES_MIN} or more")

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
            if item.name in ("origins", _LIMITS):
                continue
            value = getattr(self, item.name)
            shown = "(hidden)" if item.name == "token" and value is not None else repr(value)
            yield item.name, shown, self.origin(item.name)
        for item in dataclasses.fields(self.limits):
            name = f"{_LIMITS}.{item.name}"
            yield name, repr(getattr(self.limits, item.name)), self.origin(name)

    def _wrong(self, name: str, expected: str) -> ConfigError:
        return ConfigError(
            f"{name} = {getattr(self, name)!r} (from {self.origin(name)}) must be {expected}"
        )


_SETTING_TYPES: dict[str, type] = {
    "host": str,
    "port": int,
    "token": str,
    "token_file": str,
    "draft_2020": str,
    "drain_grace_ms": int,
    "cycle_rest_ms_max": int,
    "keepalive_ms": int,
    "reflection": bool,
    "deephaven": bool,
    "deephaven_types": str,
    "session_lifetime_ms": int,
    "data": str,
    "journal": str,
    "journal_group_ms": int,
    "journal_group_bytes": int,
    "journal_segment_bytes": int,
    "journal_retain_bytes": int,
    "journal_retain_hours": int,
    "journal_retain_steps": int,
    "journal_reserve_bytes": int,
    "journal_memory_bytes": int,
    "bodies": str,
    "ucx_host": str,
    "ucx_port": int,
    "ucx_allow_network": bool,
    "ucx_rma": bool,
    "ucx_devices": str,
    "ucx_library": str,
}
_LIMIT_NAMES = tuple(item.name for item in dataclasses.fields(Limits))
_KNOWN: dict[str, type] = _SETTING_TYPES | {f"{_LIMITS}.{name}": int for name in _LIMIT_NAMES}


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
    return ServerConfig(
        **values,
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
    """``value`` in the setting's type; text is converted only when it comes from the
    environment."""
    if name not in _KNOWN:
        near = difflib.get_close_matches(name, _KNOWN, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ConfigError(f"unknown setting {name!r} (from {origin}){hint}")
    wanted = _KNOWN[name]
    converted = (
        _from_text(value, wanted)
        if isinstance(value, str) and origin.startswith("environment")
        else value
    )
    if isinstance(converted, wanted) and (wanted is bool or not isinstance(converted, bool)):
        if name.startswith(f"{_LIMITS}.") and cast("int", converted) < 0:
            raise ConfigError(f"{name} = {value!r} (from {origin}) must be 0 or more")
        return converted
    kind = {bool: "true or false", int: "a whole number", str: "text"}[wanted]
    raise ConfigError(f"{name} = {value!r} (from {origin}) must be {kind}")


def _from_text(text: str, wanted: type) -> Any:
    """Text of an environment variable in the wanted type, or the text itself when it does not
    fit."""
    if wanted is bool:
        lowered = text.strip().lower()
        return True if lowered in _TRUE else False if lowered in _FALSE else text
    if wanted is int:
        try:
            return int(text)
        except ValueError:
            return text
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
