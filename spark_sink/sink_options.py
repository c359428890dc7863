"""Options of the sink, checked before anything is sent.

Names follow Delta's and Kafka's; keys are case-insensitive, as Spark's are. ``WriteMode`` says what
the server does with the rows of a batch: ``append`` adds them, ``upsert`` writes them over rows of
the same key, ``replace`` makes them the whole table (the server ticks only what differs), and
``changes`` applies a change feed by its ``_change_type``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from spark_sink.sink_errors import SinkOptionError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

CHANGE_TYPE = "_change_type"
WRITE_TIMEOUT_MS_DEFAULT = 120_000
WRITE_RETRIES_DEFAULT = 3


class WriteMode(Enum):
    """What a batch's rows do to the table."""

    APPEND = "append"
    UPSERT = "upsert"
    REPLACE = "replace"
    CHANGES = "changes"


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """The sink's options in one place; picklable, so that it travels to the executors."""

    connection: dict[str, str]
    """Every option that says where the server is and as whom to call it, as given."""
    table: str
    write_mode: WriteMode | None
    key_columns: tuple[str, ...]
    create_table: bool
    merge_schema: bool
    txn_app_id: str | None
    txn_version: int | None
    fail_on_data_loss: bool | None
    """None: refuse for streams, whose batches count from 0, and not for plain batch writes."""
    checkpoint: str | None
    timeout_seconds: float
    retries: int

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SinkOptions:
        """The options of ``format("barrage")`` as Spark hands them over; SinkOptionError."""
        given = {str(key).lower(): value for key, value in dict(options).items()}
        table = given.get("table") or given.get("path")
        if not table:
            raise SinkOptionError("the sink needs the option 'table': the table to write to")
        if not (given.get("uri") or given.get("host")):
            raise SinkOptionError("the sink needs the option 'uri', such as grpc://host:10000")
        app_id = given.get("txnappid") or None
        version = _number(given, "txnVersion", None, minimum=0)
        if version is not None and app_id is None:
            raise SinkOptionError(
                "the option 'txnVersion' needs 'txnAppId': a name for who numbers the writes"
            )
        return cls(
            connection=connection_options(given),
            table=table,
            write_mode=_mode(given.get("writemode")),
            key_columns=_names(given.get("keycolumns")),
            create_table=_flag(given, "createTable", default=True),
            merge_schema=_flag(given, "mergeSchema", default=False),
            txn_app_id=app_id,
            txn_version=version,
            fail_on_data_loss=_optional_flag(given, "failOnDataLoss"),
            checkpoint=given.get("checkpointlocation") or None,
            timeout_seconds=(
                _number(given, "writeTimeoutMs", WRITE_TIMEOUT_MS_DEFAULT, minimum=1) or 1
            )
            / 1e3,
            retries=_number(given, "writeNumRetries", WRITE_RETRIES_DEFAULT, minimum=0) or 0,
        )

    def mode_for(self, columns: Iterable[str], *, is_complete: bool, is_update: bool) -> WriteMode:
        """The mode of a write of these columns; SinkOptionError when the options do not fit.

        ``is_complete``: each batch is the whole result (complete mode, or ``mode("overwrite")``).
        ``is_update``: each batch has the rows that changed since the last.
        """
        names = list(columns)
        mode = self.write_mode or self._default_mode(names, is_complete)
        if is_complete and mode in (WriteMode.APPEND, WriteMode.CHANGES):
            raise SinkOptionError(
                f"writeMode={mode.value} does not fit complete output, where each batch is the "
                "whole result: use writeMode=replace, or outputMode('append')"
            )
        if is_update and mode is WriteMode.APPEND:
            raise SinkOptionError(
                "outputMode('update') sends a row again whenever it changes: set the option "
                "'keyColumns' to the grouping columns, so that the new row takes the old one's "
                "place"
            )
        if mode is WriteMode.UPSERT and not self.key_columns:
            raise SinkOptionError("writeMode=upsert needs the option 'keyColumns'")
        missing = [name for name in self.key_columns if name not in names]
        if missing:
            raise SinkOptionError(
                f"the option 'keyColumns' names {missing[0]!r}, but the rows have only "
                f"{', '.join(names)}"
            )
        if mode is WriteMode.CHANGES and CHANGE_TYPE not in names:
            raise SinkOptionError(f"writeMode=changes needs the column {CHANGE_TYPE}")
        return mode

    def _default_mode(self, columns: list[str], is_complete: bool) -> WriteMode:
        if is_complete:
            return WriteMode.REPLACE
        if CHANGE_TYPE in columns:
            return WriteMode.CHANGES
        return WriteMode.UPSERT if self.key_columns else WriteMode.APPEND


CONNECTION_PREFIXES = ("auth.", "tls.", "header.")
CONNECTION_NAMES = ("uri", "host", "port")


def connection_options(given: Mapping[str, str]) -> dict[str, str]:
    """Those of the options that say where the server is and as whom to call it."""
    return {
        key: value
        for key, value in given.items()
        if key in CONNECTION_NAMES or key.startswith(CONNECTION_PREFIXES)
    }


def _mode(text: str | None) -> WriteMode | None:
    if text is None:
        return None
    try:
        return WriteMode(text.lower())
    except ValueError:
        known = ", ".join(mode.value for mode in WriteMode)
        raise SinkOptionError(f"writeMode={text!r} is none of {known}") from None


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in (text or "").split(",") if name.strip())


def _flag(given: Mapping[str, str], name: str, *, default: bool) -> bool:
    told = _optional_flag(given, name)
    return default if told is None else told


def _optional_flag(given: Mapping[str, str], name: str) -> bool | None:
    text = given.get(name.lower())
    if text is None:
        return None
    lowered = str(text).lower()
    if lowered not in ("true", "false"):
        raise SinkOptionError(f"{name}={text!r} is neither true nor false")
    return lowered == "true"


def _number(
    given: Mapping[str, str], name: str, default: int | None, *, minimum: int
) -> int | None:
    text = given.get(name.lower())
    if text is None:
        return default
    try:
        number = int(text)
    except ValueError:
        raise SinkOptionError(f"{name}={text!r} is not a whole number") from None
    if number < minimum:
        raise SinkOptionError(f"{name}={number} is less than {minimum}")
    return number
