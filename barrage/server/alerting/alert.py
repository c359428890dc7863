"""An alert as who starts the server declares it, checked when it is made."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated
from urllib.parse import urlsplit

from msgspec import Meta

from barrage.engine.expressions.expression import Expression, check_functions
from barrage.errors import BarrageError, ConfigError
from barrage.model.query import Query, past_places, tables_of
from barrage.server.alerting.receiver_hosts import is_host
from barrage.server.settings.declared import converted, declarations

NAME_CHARS_MAX = 200
DURATION_MS_MAX = 7 * 24 * 3600 * 1000
TIMEOUT_MS_MAX = 60_000
BATCH_MAX = 1_000
COLUMNS_MAX = 1_000
HEADERS_MAX = 32
HEADER_BYTES_MAX = 8 * 1024
SECRET_BYTES_MIN = 16

ColumnNames = Annotated[
    tuple[str, ...], Meta(max_length=COLUMNS_MAX, description="a list of names of columns")
]
Headers = Annotated[Mapping[str, str], Meta(description="texts by their names")]
AlertTime = Annotated[int, Meta(ge=0, le=DURATION_MS_MAX)]
AlertTimeout = Annotated[int, Meta(ge=1, le=TIMEOUT_MS_MAX)]
AlertBatch = Annotated[int, Meta(ge=1, le=BATCH_MAX)]

_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
_OWN_HEADERS = {
    *("host", "connection", "content-length", "content-type", "transfer-encoding", "te"),
    *("trailer", "upgrade", "expect", "user-agent"),
}
_OWN_PREFIX = "x-barrage-"
_SCHEMES = ("http", "https")


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """What is looked for in which table, and where it is told. ConfigError names the alert, the
    field and what was expected."""

    name: str
    table: str = ""
    """The published table; this, or ``query``."""
    query: str = ""
    """A query of published tables in JSON (docs/alerts.md)."""
    where: str
    """The condition upon a row, as filters have it."""
    key: ColumnNames | None = None
    """Columns that tell what the alert is about: it fires once for each combination of their cells.
    Without them those that are the key of the table; where it has none, or with an empty tuple, the
    alert is about whether any row fulfils the condition."""
    columns: ColumnNames | None = None
    """Columns of the row that are told; all when nothing is said."""
    url: str = field(repr=False)
    """``http`` or ``https``. It may be a secret, so nothing but its host is ever shown."""
    headers: Headers = field(default_factory=lambda: MappingProxyType({}), repr=False)
    """Sent with every message."""
    secret: str | None = field(default=None, repr=False)
    """Key of the signature of messages; None leaves them unsigned."""
    for_ms: AlertTime = 0
    """How long the condition must hold before it is told."""
    resolved: bool = False
    """Whether it is told, too, that the condition has ceased to hold."""
    initial: bool = True
    """Whether rows are told that fulfil the condition when the server begins to look."""
    interval_ms: AlertTime = 1_000
    """Shortest time from one message to the next; what happens meanwhile is told together."""
    timeout_ms: AlertTimeout = 10_000
    """How long a message may take, from looking up the host to the answer."""
    retry_ms: AlertTime = 3_600_000
    """How long a message is tried again; then what is in it is dropped, which is told later."""
    batch: AlertBatch = 100
    """Most events in one message."""

    def __post_init__(self) -> None:
        self._check_types()
        self._check_texts()
        if not 0 < len(self.name) <= NAME_CHARS_MAX or not self.name.isprintable():
            raise self._wrong("name", f"1 to {NAME_CHARS_MAX} printable letters")
        self._check_condition()
        self._check_address()
        self._check_headers()
        if self.secret is not None and len(self.secret.encode()) < SECRET_BYTES_MIN:
            raise self._wrong("secret", f"{SECRET_BYTES_MIN} bytes or more")

    def _check_types(self) -> None:
        for what in ("key", "columns"):
            value = getattr(self, what)
            if isinstance(value, str):
                object.__setattr__(self, what, (value,))
            elif isinstance(value, list):
                object.__setattr__(self, what, tuple(value))
        for what, declared in declarations(Alert).items():
            try:
                converted(getattr(self, what), declared)
            except ValueError as error:
                raise self._wrong(what, str(error)) from None

    def _check_texts(self) -> None:
        """What is told in messages can be."""
        for what in ("table", "query", "where", "secret"):
            try:
                (getattr(self, what) or "").encode()
            except UnicodeEncodeError:
                raise self._wrong(what, "a text that UTF-8 has") from None

    def _check_condition(self) -> None:
        if bool(self.table) == bool(self.query):
            raise self._wrong("table", "a table or a query, one of them")
        try:
            past = past_places(self.parsed)
        except BarrageError as error:
            raise self._wrong("query", f"a query in JSON: {error}") from None
        if past:
            raise self._wrong("query", "one of tables as they change, without 'at'")
        try:
            check_functions(Expression.parse(self.where))
        except BarrageError as error:
            raise self._wrong("where", f"a condition upon a row: {error}") from None
        for what in ("key", "columns"):
            names = getattr(self, what) or ()
            if not all(names) or len(set(names)) < len(names):
                raise self._wrong(what, "different names of columns")

    def _wrong(self, what: str, expected: str) -> AlertError:
        name = self.name if isinstance(self.name, str) else repr(self.name)
        return AlertError(name, what, expected)

    def _check_address(self) -> None:
        wanted = "http://HOST or https://HOST, with a path if need be, without a user in it"
        try:
            parts = urlsplit(self.url)
            is_fit = parts.scheme in _SCHEMES and bool(parts.hostname) and parts.port != 0
            is_fit = is_fit and parts.username is None and not parts.fragment
            is_fit = is_fit and is_host(parts.hostname or "")
            # As it stands in a request line.
            is_fit = is_fit and self.url.isascii() and self.url.isprintable()
            is_fit = is_fit and " " not in self.url
        except ValueError:
            is_fit = False
        if not is_fit:
            raise self._wrong("url", wanted)

    def _check_headers(self) -> None:
        size = 0
        for name, value in self.headers.items():
            is_ours = name.lower() in _OWN_HEADERS or name.lower().startswith(_OWN_PREFIX)
            if not _HEADER_NAME.fullmatch(name) or is_ours:
                wanted = "names of headers other than those a message has anyway"
                raise self._wrong(f"headers.{name[:40]}", wanted)
            if not value.isascii() or not value.isprintable() or value != value.strip():
                wanted = "printable ASCII without spaces around it"
                raise self._wrong(f"headers.{name}", wanted)
            size += len(name) + len(value)
        if len(self.headers) > HEADERS_MAX or size > HEADER_BYTES_MAX:
            wanted = f"at most {HEADERS_MAX} headers of {HEADER_BYTES_MAX} bytes together"
            raise self._wrong("headers", wanted)

    @property
    def parsed(self) -> Query:
        """What it looks at: a table as it is, or a query."""
        return Query(self.table) if self.table else Query.parse(self.query)

    @property
    def tables(self) -> frozenset[str]:
        """Names of the published tables it looks at."""
        return frozenset(tables_of(self.parsed))

    @property
    def host(self) -> str:
        """The host of its address, in small letters: all that is shown of it."""
        return (urlsplit(self.url).hostname or "").lower()


class AlertError(ConfigError):
    """An alert is not as it must be."""

    def __init__(self, alert: str, what: str, expected: str) -> None:
        self.alert = alert
        self.what = what
        self.expected = expected
        super().__init__(f"alert {alert[:NAME_CHARS_MAX]!r}: {what} must be {expected}")
