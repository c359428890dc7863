"""Options: what is read from them, and that what is wrong is named."""

from __future__ import annotations

import pytest

from barrage.errors import ConfigError
from spark_sink.options import Given, SourceOptions, duration_ms, timestamp_us

BASE = {"uri": "grpc://h:1", "table": "t"}


def of(**given: str) -> SourceOptions:
    return SourceOptions.of({**BASE, **given})


def test_defaults():
    options = of()
    assert options.fails_on_data_loss is True
    assert options.start.word == "snapshot"
    assert options.has_feed_columns is True
    assert options.delay_ms_max == 15 * 60_000
    assert options.form.ticket_fields() == {}
    assert (options.connection.timeout_ms, options.connection.reconnect_ms) == (120_000, 60_000)
    assert options.connection.retries is None


def test_case_does_not_matter():
    options = SourceOptions.of(
        {"URI": "h", "TABLE": "t", "failondataloss": "FALSE", "MAXROWSPERTRIGGER": "5"}
    )
    assert options.fails_on_data_loss is False
    assert options.rows_max == 5


def test_load_names_the_table_too():
    assert SourceOptions.of({"uri": "h", "path": "trades"}).table == "trades"
    with pytest.raises(ConfigError, match="load"):
        of(path="other")
    with pytest.raises(ConfigError, match="option table is missing"):
        SourceOptions.of({"uri": "h"})


@pytest.mark.parametrize(
    ("given", "nearest"),
    [
        ("failOnDataLos", "failOnDataLoss"),
        ("maxrowspertriger", "maxRowsPerTrigger"),
        ("authtoken", "auth.token"),
        ("startingOffset", "startingOffsets"),
    ],
)
def test_unknown_options_name_the_nearest(given, nearest):
    with pytest.raises(ConfigError, match=f"did you mean '{nearest}'"):
        of(**{given: "x"})


def test_an_option_like_no_other_is_still_refused():
    with pytest.raises(ConfigError, match="no option 'zzzzzzzz'"):
        of(zzzzzzzz="1")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"failOnDataLoss": "perhaps"}, "failOnDataLoss is true or false"),
        ({"maxRowsPerTrigger": "0"}, "at least 1"),
        ({"maxRowsPerTrigger": "many"}, "maxRowsPerTrigger"),
        ({"minPartitions": "-3"}, "minPartitions"),
        ({"maxTriggerDelay": "soon"}, "10s or 15m"),
        ({"startingTimestamp": "noon"}, "startingTimestamp"),
        ({"startingOffsets": "later"}, "snapshot, latest, earliest or an offset"),
        ({"startingOffsets": '{"epoch": 3, "version": 1}'}, "epoch"),
        ({"startingOffsets": '{"epoch": "", "version": -1}'}, "must name an epoch"),
        ({"startingVersion": "3", "startingOffsets": "latest"}, "not both"),
        ({"versionAsOf": "3", "timestampAsOf": "5"}, "not both"),
        ({"columns": "a,,b"}, "columns"),
        ({"columns": '["a", 3]'}, "JSON list"),
        ({"columns": "a,a"}, "each once"),
    ],
)
def test_wrong_values_are_named(given, words):
    with pytest.raises(ConfigError, match=words):
        of(**given)


def test_starts():
    assert of(startingOffsets="LATEST").start.word == "latest"
    assert of(startingVersion="latest").start.word == "latest"
    assert of(startingVersion="7").start.version == 7
    assert of(startingTimestamp="1970-01-01T00:00:01+01:00").start.time_us == -3_599_000_000
    offset = of(startingOffsets='{"epoch": "00000000000000aa", "version": 9}').start.offset
    assert offset is not None
    assert (offset.version, offset.row, offset.sync) == (9, -1, 0)


def test_columns_with_commas_in_their_names():
    assert of(columns='["a,b", "c"]').form.columns == ("a,b", "c")
    assert of(columns="a, b").form.columns == ("a", "b")


def test_what_is_for_streams_only_or_batches_only():
    given = {**BASE, "versionAsOf": "3"}
    with pytest.raises(ConfigError, match=r"versionAsOf: it is for spark\.read"):
        SourceOptions.of(given).for_stream(given)
    given = {**BASE, "maxrowspertrigger": "3"}
    with pytest.raises(ConfigError, match="maxRowsPerTrigger: it is for readStream"):
        SourceOptions.of(given).for_batch(given)
    given = {**BASE, "startingVersion": "3"}
    with pytest.raises(ConfigError, match="needs readChangeFeed=true"):
        SourceOptions.of(given).for_batch(given)
    given = {**BASE, "readChangeFeed": "true", "liveView": "true"}
    with pytest.raises(ConfigError, match="leave readChangeFeed out"):
        SourceOptions.of(given).for_batch(given)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("500ms", 500), ("10s", 10_000), ("15m", 900_000), ("1.5h", 5_400_000), ("20", 20)],
)
def test_durations(text, expected):
    assert duration_ms(Given({"d": text}), "d", "1s") == expected


def test_times_are_utc_unless_they_say_otherwise():
    assert timestamp_us(Given({"t": "1970-01-01 00:00:01.5"}), "t") == 1_500_000
    assert timestamp_us(Given({"t": "2500"}), "t") == 2_500_000
