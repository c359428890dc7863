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

from barrage.errors import ConfigError
from spark_sink.connection import CONNECTION_OPTIONS, CONNECTION_PREFIXES, ServerConnection
from spark_sink.options import Given, check_known, flag, names, table_name, whole_number

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

SINK_OPTIONS = (
    *CONNECTION_OPTIONS,
    "path",
    "table",
    "writeMode",
    "keyColumns",
    "createTable",
    "mergeSchema",
    "variantAsJson",
    "txnAppId",
    "txnVersion",
    "failOnDataLoss",
    "checkpointLocation",
)

CHANGE_TYPE = "_change_type"


class WriteMode(Enum):
    """What a batch's rows do to the table."""

    APPEND = "append"
    UPSERT = "upsert"
    REPLACE = "replace"
    CHANGES = "changes"


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """The sink's options in one place; picklable, so that it travels to the executors."""

    connection: ServerConnection
    table: str
    write_mode: WriteMode | None
    key_columns: tuple[str, ...]
    creates_table: bool
    merges_schema: bool
    variant_as_json: bool
    txn_app_id: str | None
    txn_version: int | None
    fails_on_data_loss: bool | None
    """None: refuse for streams, whose batches count from 0, and not for plain batch writes."""
    checkpoint: str | None

    @classmethod
    def of(cls, options: Mapping[str, str]) -> SinkOptions:
        """The options of ``format("barrage")`` as Spark hands them over; ConfigError."""
        check_known(options, SINK_OPTIONS, CONNECTION_PREFIXES)
        given = Given(options)
        app_id = given.get("txnAppId") or None
        version = whole_number(given, "txnVersion", least=0)
        if version is not None and app_id is None:
            raise ConfigError("option txnVersion needs txnAppId: a name for who numbers the writes")
        return cls(
            connection=ServerConnection.of(given),
            table=table_name(given),
            write_mode=_mode(given.get("writeMode")),
            key_columns=names(given, "keyColumns") or (),
            creates_table=flag(given, "createTable", True),
            merges_schema=flag(given, "mergeSchema", False),
            variant_as_json=flag(given, "variantAsJson", False),
            txn_app_id=app_id,
            txn_version=version,
            fails_on_data_loss=(
                flag(given, "failOnDataLoss", True) if "failOnDataLoss" in given else None
            ),
            checkpoint=given.get("checkpointLocation") or None,
        )

    def mode_for(self, columns: Iterable[str], *, is_complete: bool, is_update: bool) -> WriteMode:
        """The mode of a write of these columns; ConfigError when the options do not fit.

        ``is_complete``: each batch is the whole result (complete mode, or ``mode("overwrite")``).
        ``is_update``: each batch has the rows that changed since the last.
        """
        present = list(columns)
        mode = self.write_mode or self._default_mode(present, is_complete)
        if is_complete and mode in (WriteMode.APPEND, WriteMode.CHANGES):
            raise ConfigError(
                f"writeMode={mode.value} does not fit complete output, where each batch is the "
                "whole result: use writeMode=replace, or outputMode('append')"
            )
        if is_update and mode is WriteMode.APPEND:
            raise ConfigError(
                "outputMode('update') sends a row again whenever it changes: set option "
                "keyColumns to the grouping columns, so that the new row takes the old one's "
                "place"
            )
        if mode is WriteMode.UPSERT and not self.key_columns:
            raise ConfigError("writeMode=upsert needs option keyColumns")
        missing = [name for name in self.key_columns if name not in present]
        if missing:
            raise ConfigError(
                f"option keyColumns names {missing[0]!r}, but the rows have only "
                f"{', '.join(present)}"
            )
        if mode is WriteMode.CHANGES and CHANGE_TYPE not in present:
            raise ConfigError(f"writeMode=changes needs the column {CHANGE_TYPE}")
        return mode

    def _default_mode(self, columns: list[str], is_complete: bool) -> WriteMode:
        if is_complete:
            return WriteMode.REPLACE
        if CHANGE_TYPE in columns:
            return WriteMode.CHANGES
        return WriteMode.UPSERT if self.key_columns else WriteMode.APPEND


def _mode(text: str | None) -> WriteMode | None:
    if text is None:
        return None
    try:
        return WriteMode(text.lower())
    except ValueError:
        known = ", ".join(mode.value for mode in WriteMode)
        raise ConfigError(f"option writeMode is one of {known}, not {text!r}") from None
