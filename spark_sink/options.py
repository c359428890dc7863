"""The options of the source: what exists, how each is read, and what is refused.

Names follow Kafka's and Delta's and are compared without case, as Spark does. An unknown option
is an error that names the nearest known one: a misspelt ``failOnDataLoss`` must not lose data.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

from barrage.errors import ConfigError, near_miss
from spark_sink.connection import CONNECTION_OPTIONS, CONNECTION_PREFIXES, ServerConnection
from spark_sink.offsets import Offset
from spark_sink.types import PLAIN, TypeChoices

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

BODIES = ("auto", "inline", "shm")
"""Ways of bodies, the default first: shared memory where the server offers it on this host, never,
and the same as the first."""

TIMES_OF_DAY = ("long", "time")
"""Nanoseconds of the day, or Spark's type."""

STARTS = ("snapshot", "latest", "earliest")

SOURCE_OPTIONS = (
    *CONNECTION_OPTIONS,
    "path",
    "table",
    "startingOffsets",
    "startingVersion",
    "startingTimestamp",
    "endingOffsets",
    "endingVersion",
    "endingTimestamp",
    "versionAsOf",
    "timestampAsOf",
    "liveView",
    "readChangeFeed",
    "maxRowsPerTrigger",
    "maxBytesPerTrigger",
    "minRowsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "failOnDataLoss",
    "includePreimage",
    "netChanges",
    "includeRowKey",
    "includeModifiedColumns",
    "columns",
    "filter",
    "nanosAsLong",
    "timeOfDay",
    "bodies",
    "_readKind",
    "consumerId",
    "consumerLease",
    "journalLocation",
    "keyColumns",
)

STREAM_ONLY = (
    "maxRowsPerTrigger",
    "maxBytesPerTrigger",
    "minRowsPerTrigger",
    "maxTriggerDelay",
    "consumerId",
    "consumerLease",
)
BATCH_ONLY = (
    "endingOffsets",
    "endingVersion",
    "endingTimestamp",
    "versionAsOf",
    "timestampAsOf",
    "liveView",
)

TABLE_ONLY = ("versionAsOf", "timestampAsOf", "liveView")
"""Options that read the table, not its changes."""

FEED_ONLY = (
    "startingOffsets",
    "startingVersion",
    "startingTimestamp",
    "endingOffsets",
    "endingVersion",
    "endingTimestamp",
    "netChanges",
    "includePreimage",
    "includeModifiedColumns",
)
"""Options that make sense for changes only."""

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?\Z")
_UNIT_MS = {"ms": 1, None: 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def check_known(
    options: Mapping[str, str], known: Iterable[str], prefixes: Iterable[str] = ()
) -> None:
    """ConfigError for an option that is neither in ``known`` nor begins with one of
    ``prefixes``; both are compared without case."""
    names = list(known)
    lower = {name.lower() for name in names}
    starts = tuple(prefix.lower() for prefix in prefixes)
    for name in options:
        low = name.lower()
        if low not in lower and not low.startswith(starts or ("\0",)):
            raise ConfigError(f"barrage has no option {name!r}{_nearest(low, [*names, *prefixes])}")


def _nearest(low: str, names: list[str]) -> str:
    by_lower = {name.lower(): name for name in names}
    hint = near_miss(low, by_lower)
    for known, name in by_lower.items():
        hint = hint.replace(f"{known!r}", f"{name!r}")
    return hint


def flag(options: Mapping[str, str], name: str, default: bool) -> bool:
    """A boolean option."""
    text = options.get(name)
    if text is None:
        return default
    if text.strip().lower() not in ("true", "false"):
        raise ConfigError(f"option {name} is true or false, not {text!r}")
    return text.strip().lower() == "true"


def one_of(options: Mapping[str, str], name: str, known: Sequence[str]) -> str:
    """One of some words; the first when none is given."""
    text = options.get(name, known[0]).strip().lower()
    if text not in known:
        raise ConfigError(f"option {name} is {', '.join(known[:-1])} or {known[-1]}, not {text!r}")
    return text


def whole_number(
    options: Mapping[str, str], name: str, *, least: int = 1, default: int | None = None
) -> int | None:
    """A whole number of at least ``least``."""
    text = options.get(name)
    if text is None:
        return default
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least or value >= 2**63:
        raise ConfigError(f"option {name} is a whole number of at least {least}, not {text!r}")
    return value


def duration_ms(options: Mapping[str, str], name: str, default: str) -> int:
    """Milliseconds of a text like ``500ms``, ``10s``, ``15m``, ``1h``."""
    text = options.get(name, default)
    match = _DURATION.match(text.strip().lower())
    if match is None:
        raise ConfigError(f"option {name} is a time like 500ms, 10s or 15m, not {text!r}")
    return int(float(match[1]) * _UNIT_MS[match[2]])


def timestamp_us(options: Mapping[str, str], name: str) -> int | None:
    """Microseconds since 1970 of an ISO time (UTC unless it names a zone) or of a number of
    milliseconds."""
    text = options.get(name)
    if text is None:
        return None
    if re.fullmatch(r"\d{1,15}", text.strip()):
        return int(text) * 1000
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ConfigError(
            f"option {name} is a time like 2026-01-31T12:00:00 (UTC) or milliseconds since 1970, "
            f"not {text!r}"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1_000_000)


def names(options: Mapping[str, str], name: str) -> tuple[str, ...] | None:
    """Names separated by commas, or a JSON list of them."""
    text = options.get(name)
    if text is None:
        return None
    if text.lstrip().startswith("["):
        try:
            found = json.loads(text)
        except ValueError:
            found = None
        if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
            raise ConfigError(f"option {name} is not a JSON list of names: {text[:64]!r}")
    else:
        found = [part.strip() for part in text.split(",")]
    if not found or not all(found) or len(set(found)) != len(found):
        raise ConfigError(f"option {name} needs names that are not empty, each once: {text[:64]!r}")
    return tuple(found)


def table_name(options: Mapping[str, str]) -> str:
    """The table: option ``table``, or the path given to ``load`` or ``save``."""
    table, path = options.get("table"), options.get("path")
    if table and path and table != path:
        raise ConfigError(f"option table is {table!r}, but load() or save() was given {path!r}")
    name = table or path
    if not name:
        raise ConfigError('option table is missing: .option("table", NAME) or .load(NAME)')
    return name


class Given(dict[str, str]):
    """Options as they were given, found whatever their case."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__({name.lower(): value for name, value in options.items()})

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name.lower() if isinstance(name, str) else name)

    def __getitem__(self, name: str) -> str:
        return super().__getitem__(name.lower())

    def get(self, name: str, default: Any = None) -> Any:
        return super().get(name.lower(), default)


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Where a query begins. Exactly one field is set."""

    word: Literal["snapshot", "latest", "earliest"] | None = None
    offset: Offset | None = None
    version: int | None = None
    """First version whose changes are read."""
    time_us: int | None = None
    """The first version committed at or after this time."""

    @property
    def option(self) -> str:
        """The name of the option this came from, for messages."""
        if self.version is not None:
            return "startingVersion"
        return "startingTimestamp" if self.time_us is not None else "startingOffsets"


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedForm:
    """Which columns and rows the server sends, as tickets carry it."""

    columns: tuple[str, ...] | None = None
    filter: str | None = None
    has_preimage: bool = False
    is_net: bool = False
    has_row_key: bool = False
    has_modified_columns: bool = False

    def ticket_fields(self) -> dict[str, object]:
        """The fields of a ticket, those at their defaults left out."""
        fields: dict[str, object] = {}
        if self.columns is not None:
            fields["columns"] = list(self.columns)
        if self.filter is not None:
            fields["filter"] = self.filter
        for name, is_set in (
            ("preimage", self.has_preimage),
            ("net", self.is_net),
            ("row_key", self.has_row_key),
            ("modified_columns", self.has_modified_columns),
        ):
            if is_set:
                fields[name] = True
        return fields


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The options of one source, checked."""

    connection: ServerConnection
    table: str
    form: FeedForm
    is_change_feed: bool | None
    """None: unset, which means true for streams and false for batches."""
    has_feed_columns: bool
    """Whether rows come with what happened to them. Spark asks for the schema before it says
    whether it will stream; without a hint an unset ``readChangeFeed`` is taken for a stream's."""
    fails_on_data_loss: bool = True
    types: TypeChoices = PLAIN
    partitions_min: int | None = None
    start: Start = field(default_factory=lambda: Start(word="snapshot"))
    has_start: bool = False
    rows_max: int | None = None
    bytes_max: int | None = None
    rows_min: int | None = None
    delay_ms_max: int = 900_000
    consumer: str | None = None
    lease_ms: int = 600_000
    journal_location: str | None = None
    key_columns: tuple[str, ...] = ()
    """With ``journal_location``: columns by which rows are found again after a gap."""
    end_version: int | None = None
    end_time_us: int | None = None
    end_epoch: str | None = None
    is_live_view: bool = False
    bodies: str = "auto"
    """How tasks get the bodies of record batches: one of :data:`BODIES`."""

    @classmethod
    def of(cls, options: Mapping[str, str]) -> SourceOptions:
        """Read the options; ConfigError names the first that is wrong."""
        options = Given(options)
        check_known(options, SOURCE_OPTIONS, CONNECTION_PREFIXES)
        columns = names(options, "columns")
        form = FeedForm(
            columns=columns,
            filter=options.get("filter"),
            has_preimage=flag(options, "includePreimage", False),
            is_net=flag(options, "netChanges", False),
            has_row_key=flag(options, "includeRowKey", False),
            has_modified_columns=flag(options, "includeModifiedColumns", False),
        )
        if "keyColumns" in options and "journalLocation" not in options:
            raise ConfigError("option keyColumns of a source needs journalLocation")
        start = _start(options)
        end_version, end_time, end_epoch = _end(options)
        is_change_feed = (
            flag(options, "readChangeFeed", True) if "readChangeFeed" in options else None
        )
        is_batch = options.get("_readKind") == "batch"
        is_batch = is_batch or any(name in options for name in TABLE_ONLY)
        return cls(
            connection=ServerConnection.of(options),
            table=table_name(options),
            form=form,
            is_change_feed=is_change_feed,
            has_feed_columns=not is_batch if is_change_feed is None else is_change_feed,
            fails_on_data_loss=flag(options, "failOnDataLoss", True),
            types=TypeChoices(
                nanos_as_long=flag(options, "nanosAsLong", False),
                has_time=one_of(options, "timeOfDay", TIMES_OF_DAY) == "time",
            ),
            partitions_min=whole_number(options, "minPartitions"),
            start=start or Start(word="snapshot"),
            has_start=start is not None,
            rows_max=whole_number(options, "maxRowsPerTrigger"),
            bytes_max=whole_number(options, "maxBytesPerTrigger"),
            rows_min=whole_number(options, "minRowsPerTrigger"),
            delay_ms_max=duration_ms(options, "maxTriggerDelay", "15m"),
            consumer=options.get("consumerId"),
            lease_ms=duration_ms(options, "consumerLease", "10m"),
            journal_location=options.get("journalLocation"),
            key_columns=names(options, "keyColumns") or (),
            end_version=end_version,
            end_time_us=end_time,
            end_epoch=end_epoch,
            is_live_view=flag(options, "liveView", False),
            bodies=one_of(options, "bodies", BODIES),
        )

    def for_stream(self, given: Mapping[str, str]) -> SourceOptions:
        """These options if they make sense for a stream; else ConfigError."""
        given = Given(given)
        _refuse(given, BATCH_ONLY, "readStream has no option {}: it is for spark.read")
        if self.is_change_feed is False and not self.fails_on_data_loss:
            raise ConfigError(
                "failOnDataLoss=false needs readChangeFeed=true: after a loss the rows read so far "
                "are void, and a plain row cannot say so"
            )
        return self

    def for_batch(self, given: Mapping[str, str]) -> SourceOptions:
        """These options if they make sense for a batch read; else ConfigError."""
        given = Given(given)
        _refuse(given, STREAM_ONLY, "spark.read has no option {}: it is for readStream")
        if not self.is_change_feed:
            _refuse(given, FEED_ONLY, "option {} needs readChangeFeed=true in spark.read")
        else:
            _refuse(given, TABLE_ONLY, "option {} reads the table: leave readChangeFeed out")
        return self


def _refuse(given: Mapping[str, str], refused: Iterable[str], text: str) -> None:
    for name in refused:
        if name in given:
            raise ConfigError(text.format(name))


def _only_one(options: Mapping[str, str], *given: str) -> None:
    found = [name for name in given if name in options]
    if len(found) > 1:
        raise ConfigError(f"give one of the options {' and '.join(found)}, not both")


def _start(options: Mapping[str, str]) -> Start | None:
    _only_one(options, "startingOffsets", "startingVersion", "startingTimestamp")
    text = options.get("startingOffsets")
    if text is not None:
        for word in STARTS:
            if text.strip().lower() == word:
                return Start(word=word)  # type: ignore[arg-type]
        return Start(offset=_offset(text, "startingOffsets", f"{', '.join(STARTS)} or "))
    version = options.get("startingVersion")
    if version is not None:
        if version.strip().lower() == "latest":
            return Start(word="latest")
        return Start(version=whole_number(options, "startingVersion", least=0))
    moment = timestamp_us(options, "startingTimestamp")
    return None if moment is None else Start(time_us=moment)


def _end(options: Mapping[str, str]) -> tuple[int | None, int | None, str | None]:
    ends = ("endingOffsets", "endingVersion", "endingTimestamp", "versionAsOf", "timestampAsOf")
    _only_one(options, *ends, "liveView")
    text = options.get("endingOffsets")
    if text is not None and text.strip().lower() != "latest":
        offset = _offset(text, "endingOffsets", "latest or ")
        return offset.version, None, offset.epoch
    for name in ("endingVersion", "versionAsOf"):
        if name in options:
            return whole_number(options, name, least=0), None, None
    for name in ("endingTimestamp", "timestampAsOf"):
        if name in options:
            return None, timestamp_us(options, name), None
    return None, None, None


def _offset(text: str, name: str, words: str) -> Offset:
    try:
        offset = Offset.of(json.loads(text))
    except ValueError as error:
        raise ConfigError(
            f'option {name} is {words}an offset like {{"epoch": "…", "version": 7}}: {error}'
        ) from None
    if offset.is_symbolic or offset.row >= 0:
        raise ConfigError(f"option {name} must name an epoch and a version that is complete")
    return offset
