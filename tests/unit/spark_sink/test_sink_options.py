"""The sink's options and the modes they lead to; what it says when something is wrong."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest
from pyarrow import flight

from barrage.errors import ConfigError
from spark_sink.connection import Failure, ServerError
from spark_sink.sink_errors import (
    CAUSE_CHARS_MAX,
    SinkWriteError,
    StagingFailedError,
    is_stop,
    java_causes,
    root_cause,
    short_cause,
    staging_error,
    stop_error,
    write_error,
)
from spark_sink.sink_options import SinkOptions, WriteMode

BASE = {"uri": "grpc://h:1", "table": "t"}
PLAIN, FEED = ["a", "b"], ["_change_type", "a", "b"]


def of(**given: str) -> SinkOptions:
    return SinkOptions.of({**BASE, **given})


def test_defaults():
    options = of()
    assert (options.creates_table, options.merges_schema) == (True, False)
    assert options.fails_on_data_loss is None
    assert options.key_columns == ()
    assert pickle.loads(pickle.dumps(options)) == options


def test_case_does_not_matter_and_unknown_names_do():
    options = SinkOptions.of(
        {"URI": "h", "Table": "t", "KEYCOLUMNS": "a, b", "createtable": "FALSE"}
    )
    assert options.key_columns == ("a", "b")
    assert options.creates_table is False
    with pytest.raises(ConfigError, match="did you mean 'keyColumns'"):
        of(keyColumn="a")
    with pytest.raises(ConfigError, match="option table is missing"):
        SinkOptions.of({"uri": "h"})
    with pytest.raises(ConfigError, match="txnVersion needs txnAppId"):
        of(txnVersion="3")


@pytest.mark.parametrize(
    ("given", "columns", "is_complete", "mode"),
    [
        ({}, PLAIN, False, WriteMode.APPEND),
        ({"keyColumns": "a"}, PLAIN, False, WriteMode.UPSERT),
        ({}, FEED, False, WriteMode.CHANGES),
        ({"keyColumns": "a"}, FEED, False, WriteMode.CHANGES),
        ({}, PLAIN, True, WriteMode.REPLACE),
        ({"keyColumns": "a", "writeMode": "upsert"}, PLAIN, True, WriteMode.UPSERT),
        ({"writeMode": "APPEND"}, FEED, False, WriteMode.APPEND),
        ({"writeMode": "replace"}, PLAIN, False, WriteMode.REPLACE),
    ],
)
def test_the_mode_follows_from_options_columns_and_output_mode(given, columns, is_complete, mode):
    assert of(**given).mode_for(columns, is_complete=is_complete, is_update=False) is mode


@pytest.mark.parametrize(
    ("given", "columns", "how", "told"),
    [
        ({"writeMode": "append"}, PLAIN, "is_complete", "use writeMode=replace"),
        ({"writeMode": "changes"}, FEED, "is_complete", "use writeMode=replace"),
        ({}, PLAIN, "is_update", "set option keyColumns to the grouping columns"),
        ({"writeMode": "upsert"}, PLAIN, None, "needs option keyColumns"),
        ({"keyColumns": "z"}, PLAIN, None, "names 'z', but the rows have only a, b"),
        ({"writeMode": "changes"}, PLAIN, None, "needs the column _change_type"),
        ({"writeMode": "merge"}, PLAIN, None, "is one of append, upsert, replace, changes"),
    ],
)
def test_what_does_not_fit_is_named(given, columns, how, told):
    flags = {"is_complete": False, "is_update": False, **({how: True} if how else {})}
    with pytest.raises(ConfigError, match=told):
        of(**given).mode_for(columns, **flags)


@pytest.mark.parametrize(
    ("reason", "advice"),
    [
        ("table 't' not found", "createTable=true"),
        ("unknown column 'z'", "select those, or write to a new table"),
        ("column 'z' is missing", "mergeSchema=true"),
        ("table 't' has no key, not a", "set option keyColumns"),
        ("unknown-writer: table 't' does not know writer 'q'", "failOnDataLoss=false"),
        ("a key must not be null (column 'k', row 0)", "rows whose keyColumns are null"),
        ("staged-lost: partition 0", "start the query again"),
        ("staged rows (make batches smaller) is 5 bytes", "maxRowsPerTrigger"),
        ("replacing the content is not possible", "only grows"),
        ("Authentication details invalid", "auth.token"),
    ],
)
def test_a_refusal_names_place_and_option(reason, advice):
    error = write_error(
        ServerError(Failure.REFUSED, reason, doing="x"), table="t", batch=4, partition=2
    )
    assert str(error).startswith(f"table 't', batch 4, partition 2: {reason} (")
    assert advice in str(error)
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.partition) == (str(error), 2)


def test_a_server_that_is_away_is_no_riddle():
    error = write_error(flight.FlightUnavailableError("gone"), table="t", batch=None)
    assert "option uri" in str(error)
    with pytest.raises(ZeroDivisionError):
        write_error(ZeroDivisionError(), table="t", batch=0)
    assert "bad" in str(write_error(pa.ArrowInvalid("bad"), table="t", batch=0))


class JavaError:
    """As much of a Java exception as py4j shows."""

    def __init__(self, text, cause=None):
        self.text, self.cause = text, cause

    def getMessage(self):
        return self.text

    def getCause(self):
        return self.cause

    def getClass(self):
        return self

    def getName(self):
        return self.text


class CapturedError(Exception):
    def __init__(self, text, origin):
        super().__init__(text)
        self._origin = origin


def test_the_chain_of_causes_is_walked_to_its_end():
    inner = JavaError(
        "Traceback ...\nspark_sink.sink_errors.SinkWriteError: table 't', batch 1: no\n"
    )
    error = CapturedError("Writing job failed.", JavaError("job aborted", JavaError("task", inner)))
    assert java_causes(error)[:3] == ["Writing job failed.", "job aborted", "task"]
    assert root_cause(error) == "table 't', batch 1: no"
    ring = JavaError("ring")
    ring.cause = ring
    assert java_causes(CapturedError("outer", ring)) == ["outer", "ring"]
    assert root_cause(ValueError("plain")) == "plain"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("spark_sink.connection.ServerError: journal.info of 'x': not found", "journal.info of"),
        ("pyspark.X: [PYTHON] Traceback\n  spark_sink.planning.DataLossError: lost", "lost"),
        ("barrage.errors.SchemaError: column 'a'", "column 'a'"),
        ("org.apache.spark.api.python.PythonException: x", "org.apache.spark.api"),
    ],
)
def test_errors_of_the_source_are_found_too(text, told):
    error = CapturedError("An error occurred while calling o844.load.", JavaError(text))
    assert root_cause(error).startswith(told)


def test_a_query_that_is_stopped_is_told_from_one_that_failed():
    stopped = JavaError("job failed", JavaError("java.lang.InterruptedException"))
    assert is_stop(CapturedError("x", stopped))
    assert is_stop(CapturedError("x", JavaError("Job 4 cancelled part of cancelled job group 7")))
    query = "[id = 706426b2-6a7b, runId = 74b789ee-bfd8] was stopped SQLSTATE: XXKDA"
    for name in ("", "totals "):
        cancelled = f"[SPARK_JOB_CANCELLED] Job 397 cancelled Query {name}{query}"
        assert is_stop(CapturedError("x", JavaError("job failed", JavaError(cancelled))))
    assert not is_stop(CapturedError("x", JavaError("Job 4 cancelled by the user")))
    assert not is_stop(CapturedError("x", JavaError(f"Query {query}")))
    assert not is_stop(CapturedError("x", JavaError("job failed")))
    assert "Py4JJavaError: An error occurred while calling" in str(stop_error(table="t", batch=1))


def test_a_failed_staging_tells_where_once_and_briefly():
    where = "spark_sink.sink_errors.SinkWriteError: table 't', batch 1, partition 0: no"
    told = staging_error(CapturedError("x", JavaError(where)), table="t", batch=1)
    assert isinstance(told, StagingFailedError)
    assert str(told) == "table 't', batch 1, partition 0: no"
    long = staging_error(ValueError("y" * 9999), table="t", batch=1)
    assert isinstance(long, SinkWriteError)
    assert len(str(long)) < CAUSE_CHARS_MAX + 100
    assert len(short_cause(ValueError("y" * 9999))) < CAUSE_CHARS_MAX + 10
