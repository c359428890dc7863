"""Commits and staged parts as peers describe them: taken or refused with an error of ours."""

from __future__ import annotations

import base64
import contextlib
import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrage.errors import BarrageError, LimitExceededError, RemoteProtocolError
from barrage.limits import Limits
from barrage.server.flight.stage_calls import StageCalls, commit_request
from barrage.server.ingest.staging import StagingArea
from barrage.server.policy.access_gate import AccessGate
from barrage.transport.flight_messages import Descriptor
from barrage.wire.frame import FlightFrame
from tests.helpers.virtual_clock import VirtualClock

COMMIT: dict[str, Any] = {"table": "t", "writer": "w", "batch": 3, "staged": [[0, 7], [1, 8]]}


def encoded(**changed: Any) -> bytes:
    return json.dumps({**COMMIT, **changed}).encode()


def test_a_commit_has_defaults():
    request = commit_request(encoded(), Limits())
    assert (request.name.table, request.name.writer, request.name.batch) == ("t", "w", 3)
    assert request.staged == ((0, 7), (1, 8))
    assert (request.mode, request.key, request.schema) == ("append", (), None)
    assert not request.is_created
    assert not request.merge_schema
    assert request.fail_on_data_loss


def test_the_list_of_parts_is_bounded():
    limits = Limits(staging_parts_max=2)
    assert commit_request(encoded(), limits)
    with pytest.raises(LimitExceededError, match="list of staged parts is 3"):
        commit_request(encoded(staged=[[n, 0] for n in range(3)]), limits)


def test_a_body_is_bounded():
    limits = Limits(journal_request_bytes_max=200, staging_parts_max=1)
    with pytest.raises(LimitExceededError, match="action body"):
        commit_request(encoded(staged=[], key=["k" * 300]), limits)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
fields = st.sampled_from(
    ["table", "writer", "batch", "staged", "mode", "key", "create", "schema", "merge_schema", "x"]
)


@given(fields, json_values)
def test_any_value_of_any_field_is_taken_or_refused(name, value):
    with contextlib.suppress(BarrageError):
        assert commit_request(encoded(**{name: value}), Limits()).name.table


@given(st.binary(max_size=100))
def test_any_bytes_are_refused(content):
    with pytest.raises(BarrageError):
        commit_request(content, Limits())


def stages() -> StageCalls:
    limits = Limits()
    return StageCalls(StagingArea(limits, VirtualClock()), None, limits, gate=AccessGate())  # type: ignore[arg-type]


def first(command: bytes | None, path: tuple[str, ...] = ()) -> FlightFrame:
    return FlightFrame(descriptor=Descriptor(path=path, command=command).encode())


@pytest.mark.parametrize(
    ("frame", "is_stage"),
    [
        (first(b'{"stage": {}}'), True),
        (first(b' {"stage": null}'), True),
        (first(b'{"table": "stage"}'), False),
        (first(b'{"table": "t", "key": ["stage"]}'), False),
        (first(b'["stage"]'), False),
        (first(b'"stage"'), False),
        (first(b'{"stage"'), False),
        (first(b"s/stage"), False),
        (first(None, path=("stage",)), False),
        (FlightFrame(), False),
        (first(b'{"a": "' + b"x" * 300_000 + b'", "stage": 1}'), False),
    ],
)
def test_a_part_is_told_from_other_uploads(frame, is_stage):
    assert stages().is_stage(frame) is is_stage


def test_a_schema_that_is_none_is_refused():
    good = pa.schema({"x": pa.int64()}).serialize().to_pybytes()
    for bad in (good[:-9], b"\x00" * 64, b""):
        with pytest.raises(RemoteProtocolError, match="'schema'"):
            commit_request(encoded(schema=base64.b64encode(bad).decode()), Limits())
