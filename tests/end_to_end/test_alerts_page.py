"""What docs/alerts.md shows is as it says."""

from __future__ import annotations

import json
import re
from dataclasses import MISSING, fields
from pathlib import Path

import barrage
from barrage.limits import DEFAULT_LIMITS
from barrage.server import Alert, ServerConfig
from barrage.server.alerting.alerts_file import parse_alerts
from barrage.server.alerting.webhook_message import MESSAGE_VERSION
from tests.helpers.alert_receiver import LOOPBACK, receiver
from tests.helpers.serving import HOST
from tests.unit.cli.test_examples import python_blocks

PAGE = "docs/alerts.md"
TEXT = (Path(__file__).resolve().parents[2] / PAGE).read_text()


def block(kind: str) -> str:
    (text,) = re.findall(rf"```{kind}\n(.*?)```", TEXT, re.DOTALL)
    return str(text)


def test_the_file_of_alerts(tmp_path, monkeypatch):
    (tmp_path / "hook.url").write_text("https://hooks.example.org/barrage")
    (tmp_path / "hook.token").write_text("Bearer tok")
    monkeypatch.setenv("HOOK_SECRET", "s" * 16)
    (alert,), hosts = parse_alerts(block("toml"), tmp_path)
    assert (alert.name, alert.for_ms, alert.resolved) == ("expensive", 60_000, True)
    assert hosts.names_host(alert.host)


def test_the_program():
    (program,) = python_blocks(PAGE)
    exec(program, {})


def test_the_table_of_fields_is_that_of_alerts():
    rows = re.findall(r"^\| `(\w+)`(?: or `(\w+)`)? \|([^|]*)\|", TEXT, re.MULTILINE)
    told = {name: default for *names, default in rows for name in names if name}
    assert set(told) == {field.name for field in fields(Alert)}
    for field in fields(Alert):
        default = told[field.name].strip()
        if isinstance(field.default, bool | int):
            assert default == str(field.default).lower(), field.name
        elif field.default is MISSING and field.default_factory is MISSING:
            assert not default, field.name


def test_the_limits_are_those_of_the_server():
    assert f"{DEFAULT_LIMITS.alert_keys_max:,} keys of an alert (`alert_keys_max`)" in TEXT
    assert f"{DEFAULT_LIMITS.alert_events_max:,} events of an alert (`alert_events_max`)" in TEXT
    assert f"{DEFAULT_LIMITS.alert_bytes_max // 2**20} MiB (`alert_bytes_max`)" in TEXT


def test_a_message_has_the_fields_that_are_shown():
    shown = json.loads(block("json"))
    assert shown["version"] == MESSAGE_VERSION
    config = ServerConfig(host=HOST, alert_hosts=LOOPBACK)
    with receiver() as kept, barrage.Server(config=config) as server:
        quotes = server.create_table(
            "quotes", {"sym": "string", "price": "float64", "volume": "int64"}, key="sym"
        )
        server.add_alert(
            Alert(
                name="expensive",
                table="quotes",
                where="price > 100",
                url=kept.url,
                resolved=True,
                interval_ms=0,
            )
        )
        for price in (150.0, 1.0):
            quotes.upsert({"sym": ["A"], "price": [price], "volume": [1152921504606846977]})
        kept.wait_for(2)
    for message in kept.messages:
        assert list(message.told) == list(shown)
    for event, as_shown in zip(kept.events, shown["events"], strict=True):
        assert list(event) == list(as_shown)
        assert event["row"] == as_shown["row"]
