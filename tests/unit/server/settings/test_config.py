"""Settings: four sources, their order, their origins, and what is refused."""

from __future__ import annotations

import pytest

from barrage.errors import ConfigError
from barrage.limits import DEFAULT_LIMITS
from barrage.server import ServerConfig, load_config


def test_defaults():
    config = load_config()
    assert config == ServerConfig()
    assert config.origin("port") == "default"
    assert config.host == "127.0.0.1"


def test_each_source_overrides_the_one_before(tmp_path):
    path = tmp_path / "server.toml"
    path.write_text(
        'host = "0.0.0.0"\nport = 1\ndrain_grace_ms = 1\n[limits]\nsubscriptions_max = 7\n'
    )
    environment = {
        "BARRAGE_PORT": "2",
        "BARRAGE_DRAIN_GRACE_MS": "2",
        "BARRAGE_REFLECTION": "no",
        "BARRAGE_LIMITS__COLUMNS_MAX": "9",
        "HOME": "/somewhere",
    }
    config = load_config(path, environment=environment, flags={"port": 3, "host": None})
    assert (config.host, config.port, config.drain_grace_ms) == ("0.0.0.0", 3, 2)
    assert config.reflection is False
    assert config.limits.subscriptions_max == 7
    assert config.limits.columns_max == 9
    assert config.limits.stall_ns_max == DEFAULT_LIMITS.stall_ns_max
    assert config.origin("host") == f"file {path}"
    assert config.origin("drain_grace_ms") == "environment BARRAGE_DRAIN_GRACE_MS"
    assert config.origin("port") == "flag port"
    assert config.origin("limits.columns_max") == "environment BARRAGE_LIMITS__COLUMNS_MAX"
    assert config.origin("limits.stall_ns_max") == "default"


def test_the_token_comes_from_a_file_and_is_not_shown(tmp_path):
    secret = tmp_path / "token"
    secret.write_text("s3cret\nsecond line\n")
    config = load_config(flags={"token_file": str(secret)})
    assert config.token == "s3cret"
    assert config.origin("token") == f"token_file {secret}"
    assert "s3cret" not in repr(config)
    shown = {name: (value, origin) for name, value, origin in config.described()}
    assert shown["token"] == ("(hidden)", f"token_file {secret}")
    assert shown["port"] == ("0", "default")
    assert "limits.stall_ns_max" in shown


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prot = 1", "did you mean 'port'"),
        ("[limits]\ncolumn_max = 1", "did you mean 'limits.columns_max'"),
        ("[other]\nx = 1", "unknown setting 'other'"),
        ("limits = 3", "must be a table"),
        ('port = "1"', "whole number"),
        ("port = true", "whole number"),
        ("port = 70000", "0 to 65535"),
        ("reflection = 1", "true or false"),
        ("host = 1", "host = 1 .* must be an address"),
        ('host = ""', "an address"),
        ('draft_2020 = "maybe"', "off, header, always"),
        ("drain_grace_ms = -1", "0 or more"),
        ('deephaven = "yes"', "true or false"),
        ('deephaven_types = "all"', "deephaven, ticking"),
        ("session_lifetime_ms = 999", "1000 or more"),
        ("[limits]\ncolumns_max = -1", "0 or more"),
        ('token = ""', "printable ASCII"),
        ('token = "a\\nb"', "printable ASCII"),
        ('token = "a"\ntoken_file = "b"', "exclude each other"),
        ('token_file = "/does/not/exist"', "cannot read token_file"),
        ("port = ", "not TOML"),
    ],
)
def test_wrong_files(tmp_path, text, message):
    path = tmp_path / "server.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        load_config(path)
    assert str(path) in str(caught.value) or "origin" in message or "token_file" in text


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match="cannot read configuration file"):
        load_config(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("BARRAGE_PROT", "1", "unknown setting 'prot'"),
        ("BARRAGE_PORT", "one", "whole number"),
        ("BARRAGE_REFLECTION", "perhaps", "true or false"),
    ],
)
def test_wrong_environment(variable, value, message):
    with pytest.raises(ConfigError, match=message) as caught:
        load_config(environment={variable: value})
    assert variable in str(caught.value)


def test_unknown_flags_are_errors():
    with pytest.raises(ConfigError, match="flag prot"):
        load_config(flags={"prot": 1})


def test_limits_are_enforced_by_a_server_at_the_limit_and_one_past_it():
    import barrage
    from tests.helpers.server_process import RawExchange, raw_channel, subscription_request

    config = load_config(flags={"limits.subscriptions_max": 2})
    with barrage.Server(config=config) as server, raw_channel(server.address) as channel:
        server.create_table("t", {"x": "int64"})
        with RawExchange(channel) as one, RawExchange(channel) as two:
            for exchange in (one, two):
                exchange.send(subscription_request("t"))
                exchange.read_update()
            with RawExchange(channel) as three:
                status, details = three.status()
    assert status.name == "RESOURCE_EXHAUSTED"
    assert "the limit is 2" in details


def test_journals_are_on_disk_with_a_directory_and_off_without():
    assert load_config().journal_default == "none"
    assert load_config(flags={"data": "d"}).journal_default == "durable"
    assert load_config(flags={"data": "d", "journal": "memory"}).journal_default == "memory"
    assert load_config(flags={"journal": "memory"}).journal_default == "memory"


def test_a_durable_journal_needs_a_directory():
    with pytest.raises(ConfigError, match=r"'durable' \(from environment BARRAGE_JOURNAL\) needs"):
        load_config(environment={"BARRAGE_JOURNAL": "durable"})


@pytest.mark.parametrize(
    ("name", "lowest"),
    [
        ("journal_group_ms", 0),
        ("journal_group_bytes", 0),
        ("journal_retain_bytes", 0),
        ("journal_retain_hours", 0),
        ("journal_retain_steps", 0),
        ("journal_reserve_bytes", 0),
        ("journal_segment_bytes", 65536),
        ("journal_memory_bytes", 65536),
    ],
)
def test_lowest_numbers_of_journals(name, lowest):
    assert getattr(load_config(flags={name: lowest}), name) == lowest
    with pytest.raises(ConfigError, match=f"{name} = .* whole number of {lowest} or more"):
        load_config(flags={name: lowest - 1})


@pytest.mark.parametrize(("name", "value"), [("journal", "disk"), ("data", "")])
def test_journal_settings_that_are_refused(name, value):
    with pytest.raises(ConfigError, match=f"{name} = "):
        load_config(flags={name: value})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"port": "70"}, r"port = '70' \(from default\) must be a whole number from 0 to 65535"),
        ({"port": True}, "port = True"),
        ({"reflection": 1}, "reflection = 1 .* must be true or false"),
        ({"journal": "disk"}, "journal = 'disk' .* must be one of durable, memory, none"),
        ({"host": ""}, "host = '' .* must be an address"),
        ({"token_file": b"x"}, "token_file = b'x' .* must be text"),
    ],
)
def test_what_python_gives_is_checked_too(settings, message):
    with pytest.raises(ConfigError, match=message):
        ServerConfig(**settings)


def test_a_directory_may_be_a_path(tmp_path):
    assert ServerConfig(data=tmp_path).data == str(tmp_path)
