"""Declarations of alerts: what is wrong is told with the alert, the field and what was expected."""

from __future__ import annotations

from pathlib import Path

import pytest

from barrage.errors import ConfigError
from barrage.model.cursor import EPOCH_CHARS
from barrage.server import Alert
from barrage.server.alerting.alert import (
    BATCH_MAX,
    COLUMNS_MAX,
    DURATION_MS_MAX,
    HEADER_BYTES_MAX,
    HEADERS_MAX,
    NAME_CHARS_MAX,
    SECRET_BYTES_MIN,
    TIMEOUT_MS_MAX,
    AlertError,
)
from barrage.server.alerting.alerts_file import ALERTS_BYTES_MAX, parse_alerts, read_alerts

URL = "https://hooks.example.org/T0/secret-path"
RIGHT = {"name": "hot", "table": "quotes", "where": "price > 100", "url": URL}
AT = f'{{"table": "t", "at": "{"0" * EPOCH_CHARS}:1"}}'

WRONG = [
    ("name", "", "printable"),
    ("name", "a\nb", "printable"),
    ("name", "n" * (NAME_CHARS_MAX + 1), "printable"),
    ("table", "", "a table or a query"),
    ("table", 7, "text"),
    ("table", "\ud800", "UTF-8"),
    ("query", "{", "a query in JSON"),
    ("query", '{"table": "t", "ops": [["no_such"]]}', "no operation"),
    ("query", AT, "without 'at'"),
    ("where", "price >", "a condition upon a row"),
    ("where", "no_such(price) > 1", "a condition upon a row"),
    ("where", 3, "text"),
    ("where", "a = '\ud800'", "UTF-8"),
    ("key", ("a", "a"), "different names"),
    ("key", ("",), "different names"),
    ("key", 3, "a list of names"),
    ("columns", tuple(str(n) for n in range(COLUMNS_MAX + 1)), "a list of names"),
    ("columns", ("a", "a"), "different names"),
    ("url", "ftp://example.org", "http"),
    ("url", "https://", "http"),
    ("url", "https://user:pass@example.org/", "without a user"),
    ("url", "https://example.org/a b", "http"),
    ("url", "https://example.org/\r\nX: y", "http"),
    ("url", "https://example.org:99999/", "http"),
    ("url", f"https://{'a' * 64}.org/", "http"),
    ("url", "https://.example.org/", "http"),
    ("url", "https://exa mple.org/", "http"),
    ("url", "https://example.org/#part", "http"),
    ("url", "https://[::1/", "http"),
    ("headers", {"Content-Length": "3"}, "other than those"),
    ("headers", {"X-Barrage-Signature": "3"}, "other than those"),
    ("headers", {"Bad Name": "3"}, "other than those"),
    ("headers", {"A": "b\r\nC: d"}, "printable ASCII"),
    ("headers", {f"H{n}": "v" for n in range(HEADERS_MAX + 1)}, "at most"),
    ("headers", {"A": "b" * HEADER_BYTES_MAX}, "at most"),
    ("headers", "A: b", "texts by their names"),
    ("secret", "s" * (SECRET_BYTES_MIN - 1), "bytes or more"),
    ("secret", "\ud800" * SECRET_BYTES_MIN, "UTF-8"),
    ("for_ms", -1, "from 0 to"),
    ("for_ms", DURATION_MS_MAX + 1, "from 0 to"),
    ("for_ms", True, "a whole number"),
    ("interval_ms", -1, "from 0 to"),
    ("interval_ms", DURATION_MS_MAX + 1, "from 0 to"),
    ("timeout_ms", 0, "from 1 to"),
    ("timeout_ms", TIMEOUT_MS_MAX + 1, "from 1 to"),
    ("retry_ms", DURATION_MS_MAX + 1, "from 0 to"),
    ("batch", 0, "from 1 to"),
    ("batch", BATCH_MAX + 1, "from 1 to"),
    ("resolved", "yes", "true or false"),
    ("initial", 1, "true or false"),
]


@pytest.mark.parametrize(("field", "value", "expected"), WRONG)
def test_a_wrong_field_is_named_with_what_was_expected(field, value, expected):
    told = {**RIGHT, field: value}
    if field == "query":
        told["table"] = ""
    with pytest.raises(AlertError) as caught:
        Alert(**told)
    error = caught.value
    assert (error.alert, error.what.partition(".")[0]) == (told["name"], field)
    assert expected in error.expected
    assert repr(told["name"][:NAME_CHARS_MAX]) in str(error)
    assert field in str(error)


def test_every_field_has_a_wrong_value_here():
    assert {field for field, _, _ in WRONG} == set(Alert.__dataclass_fields__)


def test_limits_are_reached_and_not_passed():
    Alert(
        **{
            **RIGHT,
            "name": "n" * NAME_CHARS_MAX,
            "secret": "s" * SECRET_BYTES_MIN,
            "headers": {"A": "b" * (HEADER_BYTES_MAX - 1)},
            "columns": tuple(str(n) for n in range(COLUMNS_MAX)),
            "for_ms": DURATION_MS_MAX,
            "timeout_ms": TIMEOUT_MS_MAX,
            "batch": BATCH_MAX,
        }
    )
    Alert(**RIGHT, headers={f"H{n}": "v" for n in range(HEADERS_MAX)})


def test_it_shows_nothing_that_may_be_a_secret():
    alert = Alert(**RIGHT, headers={"Authorization": "Bearer tok"}, secret="s3" * 10)
    for secret in ("secret-path", "tok", "s3s3"):
        assert secret not in repr(alert)
    assert alert.host == "hooks.example.org"


def test_the_tables_of_a_query_are_those_it_is_made_of():
    query = '{"table": "a", "ops": [["natural_join", {"table": "b"}, ["k"]], ["head", 1]]}'
    assert Alert(**{**RIGHT, "table": "", "query": query}).tables == {"a", "b"}


# --- the file ---

FILE = """
hosts = ["hooks.example.org", "10.0.0.0/8"]

[[alert]]
name = "hot"
table = "quotes"
where = "price > 100"
key = ["sym"]
url = { file = "hook.url" }
secret = { env = "HOOK_SECRET" }
for_ms = 60000
resolved = true

[alert.headers]
Authorization = { file = "hook.token" }
X-Team = "desk"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "hook.url").write_text(f"{URL}\n")
    (tmp_path / "hook.token").write_text("Bearer tok\n")
    (tmp_path / "alerts.toml").write_text(FILE)
    monkeypatch.setenv("HOOK_SECRET", "0123456789abcdef")
    return tmp_path


def test_a_file_has_alerts_and_hosts_and_reads_secrets_from_elsewhere(folder):
    (alert,), hosts = read_alerts(folder / "alerts.toml")
    assert alert.url == URL
    assert alert.headers == {"Authorization": "Bearer tok", "X-Team": "desk"}
    assert alert.secret == "0123456789abcdef"
    assert (alert.key, alert.for_ms, alert.resolved) == (("sym",), 60_000, True)
    assert hosts.names_host("hooks.example.org")
    assert not hosts.names_host("other.example.org")


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("[[alert]]", "[[alert]", "TOML"),
        ("[[alert]]", "[[alerts]]", "alerts"),
        ('name = "hot"', "", "alert 'number 1': name must be there"),
        ('where = "price > 100"', "", "alert 'hot': where must be there"),
        ("for_ms", "for_s", "alert 'hot': unknown field 'for_s'; did you mean 'for_ms'"),
        ("for_ms = 60000", 'for_ms = "1m"', "alert 'hot': for_ms must be a whole number"),
        ('{ file = "hook.url" }', '{ file = "none" }', "alert 'hot': url must be in the file"),
        ('{ file = "hook.url" }', '{ path = "none" }', "alert 'hot': url must be a text, {"),
        ('{ env = "HOOK_SECRET" }', '"0123456789abcdef"', "alert 'hot': secret must be { file"),
        ("HOOK_SECRET", "HOOK_NONE", "alert 'hot': secret must be in the variable HOOK_NONE"),
        ('{ file = "hook.token" }', "3", "alert 'hot': headers.Authorization must be a text"),
        ('"10.0.0.0/8"', '"a b"', "not 'a b'"),
        ('key = ["sym"]', "key = [1]", "alert 'hot': key must be a list of names"),
    ],
)
def test_what_is_wrong_in_a_file_is_said_with_its_place(folder, old, new, expected):
    path = folder / "alerts.toml"
    path.write_text(FILE.replace(old, new, 1))
    with pytest.raises(ConfigError) as caught:
        read_alerts(path)
    assert str(caught.value).startswith(f"alerts {path}: ")
    assert expected in str(caught.value)


def test_a_file_that_is_not_there_or_too_large_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="cannot read alerts"):
        read_alerts(tmp_path / "none.toml")
    (tmp_path / "large.toml").write_text("#" * (ALERTS_BYTES_MAX + 1))
    with pytest.raises(ConfigError, match="more than"):
        read_alerts(tmp_path / "large.toml")
    (tmp_path / "full.toml").write_text(FILE.ljust(ALERTS_BYTES_MAX, "#"))
    with pytest.raises(ConfigError, match="url must be in the file"):
        read_alerts(tmp_path / "full.toml")


def test_secrets_are_in_no_error(folder):
    (folder / "hook.url").write_text("https://user:pw@example.org/T0/secret-path")
    with pytest.raises(ConfigError) as caught:
        parse_alerts(FILE, folder)
    assert "secret-path" not in str(caught.value)
    assert "pw" not in str(caught.value)
