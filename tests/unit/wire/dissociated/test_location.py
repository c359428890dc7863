"""Locations of dissociated streams as text."""

from __future__ import annotations

import pytest

from barrage.errors import RemoteProtocolError
from barrage.wire.dissociated.location import LOCATION_CHARS_MAX, UcxLocation

U64 = 2**64 - 1
HANDLE = bytes(range(0xF8, 0x100)) + b"\x3e\x3f\xfb\xef"
"""Has plus and slash in base64."""


@pytest.mark.parametrize(
    "location",
    [
        UcxLocation(host="10.0.0.1", port=13337, want_data=0),
        UcxLocation(host="localhost", port=1, want_data=U64, free_data=7),
        UcxLocation(host="::1", port=65535, want_data=5, remote_handle=b""),
        UcxLocation(host="h", port=80, want_data=5, free_data=U64, remote_handle=HANDLE),
    ],
)
def test_a_location_reads_as_it_was_written(location: UcxLocation) -> None:
    assert UcxLocation.parse(location.encode()) == location


def test_the_text() -> None:
    location = UcxLocation(host="::1", port=9, want_data=1, free_data=2, remote_handle=HANDLE)
    assert location.encode() == (
        "ucx://[::1]:9?want_data=1&free_data=2&remote_handle=%2BPn6%2B%2Fz9%2Fv8%2BP%2Fvv"
    )


@pytest.mark.parametrize(
    "handle",
    ["+/v/+w==", "-_v_-w==", "-_v_-w", "+/v/+w", "%2B%2Fv%2F%2Bw%3D%3D", " /v/ w==", "%20/v/%20w"],
)
def test_every_form_of_base64_is_read(handle: str) -> None:
    location = UcxLocation.parse(f"ucx://h:1?want_data=1&remote_handle={handle}")
    assert location.remote_handle == b"\xfb\xfb\xff\xfb"


def test_fields_nobody_knows_are_skipped() -> None:
    location = UcxLocation.parse("ucx://h:1/path?later=x&want_data=3&more=&free_data=4#f")
    assert location == UcxLocation(host="h", port=1, want_data=3, free_data=4)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        "grpc://h:1?want_data=1",
        "ucx://h?want_data=1",
        "ucx://h:0?want_data=1",
        "ucx://h:65536?want_data=1",
        "ucx://h:x?want_data=1",
        "ucx://:1?want_data=1",
        "ucx://[::1?want_data=1",
        "ucx://h:1",
        "ucx://h:1?free_data=1",
        "ucx://h:1?want_data=",
        "ucx://h:1?want_data=-1",
        "ucx://h:1?want_data=0x10",
        "ucx://h:1?want_data=+1",
        "ucx://h:1?want_data=1_0",
        "ucx://h:1?want_data=%D9%A3",  # a digit, but not of ASCII
        f"ucx://h:1?want_data={2**64}",
        "ucx://h:1?want_data=" + "0" * 20 + "1",
        "ucx://h:1?want_data=" + "1" * 5000,
        "ucx://h:1?want_data=1&free_data=",
        "ucx://h:1?want_data=1&remote_handle=a",
        "ucx://h:1?want_data=1&remote_handle=a!bc",
        "ucx://h:1?want_data=1&remote_handle=%FF%FF",
        "ucx://h:1?" + "&".join(["want_data=1"] * 17),
        "ucx://" + "h" * 9000 + ":1?want_data=1",
    ],
)
def test_what_is_no_location_is_refused(text: str) -> None:
    with pytest.raises(RemoteProtocolError):
        UcxLocation.parse(text)


def test_its_length_is_limited() -> None:
    text = "ucx://h:1?want_data=1&more="
    text += "x" * (LOCATION_CHARS_MAX - len(text))
    assert LOCATION_CHARS_MAX == 8192
    assert UcxLocation.parse(text).want_data == 1
    with pytest.raises(RemoteProtocolError, match="8193 characters"):
        UcxLocation.parse(text + "x")
