"""TLS on the command line: certificates for trying, flags of the server, what is said without."""

from __future__ import annotations

import json
import ssl
import stat
import subprocess

import pytest
from typer.testing import CliRunner

from barrage.cli import running_server
from barrage.cli.main import app
from barrage.cli.target import parse_server
from barrage.cli.tls.tls_options import NO_CHOICE, TlsChoice, in_flags
from barrage.errors import ConfigError
from barrage.server.settings.config import ServerConfig, load_config
from barrage.transport.base import TLS


def ask(*words, **variables):
    return CliRunner().invoke(app, list(words), env=variables)


def test_certificates_for_trying(tmp_path):
    folder = tmp_path / "new" / "tls"
    made = ask("cert", "dev", str(folder), "--host", "engine.example", "--client", "alice")
    assert made.exit_code == 0, made.stderr
    assert f"--tls-ca {folder}/ca.pem" in made.stdout
    assert sorted(path.name for path in folder.iterdir()) == [
        "ca.pem",
        "client.key",
        "client.pem",
        "server.key",
        "server.pem",
    ]
    for path in folder.glob("*.key"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for name, purpose in (("server", "sslserver"), ("client", "sslclient")):
        checked = subprocess.run(
            [
                *("openssl", "verify", "-x509_strict", "-purpose", purpose),
                *("-CAfile", folder / "ca.pem", folder / f"{name}.pem"),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        assert checked.returncode == 0, checked.stderr
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / f"{name}.pem", folder / f"{name}.key")


def test_files_that_are_there_are_kept_unless_that_is_said(tmp_path):
    assert ask("cert", "dev", str(tmp_path), "--json").exit_code == 0
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    again = ask("cert", "dev", str(tmp_path))
    assert again.exit_code == 2
    assert "ca.pem is there already" in again.stderr
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    (tmp_path / "server.key").chmod(0o644)
    forced = ask("cert", "dev", str(tmp_path), "--force", "--json")
    assert set(json.loads(forced.stdout)) == {
        "ca",
        "server",
        "server_key",
        "client",
        "client_key",
    }
    assert all(path.read_bytes() != before[path.name] for path in tmp_path.iterdir())
    assert stat.S_IMODE((tmp_path / "server.key").stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--host", "näme.example"), "is no name of a host"),
        (("--client", "x" * 65), "cannot be in a certificate"),
        (("--days", "0"), "--days"),
    ],
)
def test_wrong_words(tmp_path, words, told):
    found = ask("cert", "dev", str(tmp_path / "tls"), *words)
    assert found.exit_code == 2
    assert told in found.stderr
    assert not (tmp_path / "tls").exists()


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    found = ask("cert", "dev", str(tmp_path / "file" / "tls"))
    assert found.exit_code == 1
    assert "cannot write" in found.stderr


@pytest.mark.parametrize(
    ("host", "tls", "is_warned"),
    [
        ("0.0.0.0", False, True),
        ("0.0.0.0", True, False),
        ("engine.example", False, True),
        ("127.0.0.1", False, False),
        ("::1", False, False),
        ("unix:///run/x", False, False),
    ],
)
def test_a_server_others_can_reach_says_that_it_has_no_tls(host, tls, is_warned, capsys):
    pair = {"tls_cert": "c", "tls_key": "k"} if tls else {}
    running_server.warn_of_plain_text(ServerConfig(host=host, **pair))
    said = capsys.readouterr().err
    assert said.count("\n") == is_warned
    assert ("travel in the clear" in said) == is_warned


def test_flags_and_variables_are_settings(tmp_path, monkeypatch):
    monkeypatch.setenv("BARRAGE_TLS_KEY", "of the environment")
    monkeypatch.setenv("BARRAGE_TLS_CA", "of a client")
    monkeypatch.setenv("BARRAGE_UPSTREAM_TLS_CLIENT_KEY", "of a relay")
    config = running_server.settings(None, host=None, port=0, token=None, tls_cert="of a flag")
    assert (config.tls_cert, config.tls_key) == ("of a flag", "of the environment")
    assert config.origin("tls_key") == "environment BARRAGE_TLS_KEY"
    with pytest.raises(ConfigError, match="unknown setting 'tls_ca'"):
        load_config(environment={"BARRAGE_TLS_CA": "x"})


def test_a_server_whose_files_are_not_there_says_so(tmp_path):
    found = ask("serve", "--port", "0", "--tls-cert", "/no/where", "--tls-key", "/no/key")
    assert found.exit_code == 1
    assert "cannot read /no/where" in found.stderr
    found = ask("serve", "--tls-cert", "/no/where")
    assert found.exit_code == 2
    assert "needs tls_key as well" in found.stderr


def test_a_choice_counts_where_tls_is_spoken():
    tls = TLS(ca="ca.pem")
    assert parse_server("grpcs://a", TlsChoice(tls, is_asked=True)).tls is tls
    assert parse_server("localhost,grpc+tls://a:1", TlsChoice(tls)).tls is tls
    assert parse_server("a", TlsChoice(tls)).tls is None
    assert parse_server("grpcs://a", NO_CHOICE).tls is None
    with pytest.raises(Exception, match="write grpcs://a:10000"):
        parse_server("a", TlsChoice(tls, is_asked=True))


def test_advice_is_given_in_flags():
    text = "x is not trusted: pass tls=TLS(ca=...) with the authority"
    assert in_flags(text) == "x is not trusted: pass --tls-ca FILE with the authority"
