"""Which pages may call: the rule of origins."""

from __future__ import annotations

import pytest

from barrage.transport.host_names import normal_origin
from barrage.transport.over_websocket.http_messages import WebRequest
from barrage.transport.over_websocket.origins import OriginRule

ALLOWED = ("https://dash.example.com", "http://lab.example:8080")


def refused(host, origin=None, *, is_tls=False, allowed=ALLOWED):
    headers = [("host", host)] if host is not None else []
    headers += [] if origin is None else [("origin", origin)]
    request = WebRequest(method="GET", target="/", headers=tuple(headers), is_tls=is_tls)
    return OriginRule(allowed).refusal(request) is not None


@pytest.mark.parametrize(
    ("host", "origin", "is_tls"),
    [
        ("127.0.0.1:10080", None, False),
        ("127.0.0.1:10080", "http://127.0.0.1:10080", False),
        ("localhost:10080", "http://localhost:10080", False),
        ("LOCALHOST:10080", "http://localhost:10080", False),
        ("[::1]:10080", "http://[::1]:10080", False),
        ("127.0.0.1", "http://127.0.0.1", False),
        ("127.0.0.1:80", "http://127.0.0.1", False),
        ("any.example", "https://any.example", True),
        ("any.example:443", "https://any.example", True),
        ("127.0.0.1:10080", "https://dash.example.com", False),
        ("127.0.0.1:10080", "https://dash.example.com:443", False),
        ("lab.example:8080", "http://lab.example:8080", False),
    ],
)
def test_let_in(host, origin, is_tls):
    assert not refused(host, origin, is_tls=is_tls)


@pytest.mark.parametrize(
    ("host", "origin", "is_tls"),
    [
        ("evil.example:10080", "http://evil.example:10080", False),
        ("evil.example:10080", None, False),
        ("127.0.0.1:10080", "http://127.0.0.1:10081", False),
        ("127.0.0.1:10080", "https://127.0.0.1:10080", False),
        ("127.0.0.1:10080", "http://localhost:10080", False),
        ("127.0.0.1:10080", "null", False),
        ("127.0.0.1:10080", "", False),
        ("127.0.0.1:10080", "http://127.0.0.1:10080/", False),
        ("127.0.0.1:10080", "http://x@127.0.0.1:10080", False),
        ("127.0.0.1:10080", "http://127.0.0.1:99999", False),
        ("any.example", "http://any.example", True),
        ("", None, False),
        (None, None, False),
        ("[::1", None, False),
    ],
)
def test_not_let_in(host, origin, is_tls):
    assert refused(host, origin, is_tls=is_tls)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("https://a.example", "https://a.example:443"),
        (" http://A.example:1 ", "http://a.example:1"),
        ("http://[::1]", "http://[::1]:80"),
        ("ftp://a.example", None),
        ("a.example", None),
        ("https://a.example/path", None),
        ("https://a.example?x", None),
    ],
)
def test_origins_have_one_form(text, expected):
    assert normal_origin(text) == expected
