"""What lies in ``deploy/`` fits the program: options exist, ports and names agree, and the health
check is a call of gRPC."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import hpack
import pytest
import typer
import yaml
from typer.main import get_command

from barrage.cli.main import app
from barrage.cli.running_server import settings
from barrage.server.settings.config import ServerConfig, load_config

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
OBJECTS = [
    each for path in MANIFESTS for each in yaml.safe_load_all(path.read_text()) if each is not None
]
WORKLOADS = [each for each in OBJECTS if "template" in each["spec"]]
KINDS = {
    "Service": "v1",
    "StatefulSet": "apps/v1",
    "Deployment": "apps/v1",
    "PodDisruptionBudget": "policy/v1",
}
COMMANDS = ("serve", "relay")
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def name_of(each: dict[str, Any]) -> str:
    return f"{each['kind']} {each['metadata']['name']}"


def options_of(command: str) -> set[str] | None:
    """The options of a command; None where this version has not got it."""
    group: Any = get_command(app)
    context = typer.Context(group)
    if command not in group.list_commands(context):
        return None
    return {option for each in group.get_command(context, command).params for option in each.opts}


def check_command_line(words: list[str]) -> None:
    """``barrage COMMAND ...`` names a command and options that exist."""
    assert words[0].rpartition("/")[2] == "barrage"
    assert words[1] in COMMANDS
    options = options_of(words[1])
    assert options is not None or words[1] != "serve"
    if options is None:
        pytest.skip(f"there is no `barrage {words[1]}`")
    asked = {word for word in words[2:] if word.startswith("--")}
    assert asked
    assert asked <= options


# --- systemd --------------------------------------------------------------------------------------


def settings_of(unit: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in unit.read_text().splitlines():
        if line and not line.startswith(("#", "[")):
            key, _, value = line.partition("=")
            found.setdefault(key, []).append(value)
    return found


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_units_call_what_there_is(unit: Path) -> None:
    settings = settings_of(unit)
    check_command_line(shlex.split(settings["ExecStart"][0]))


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_units_restart_and_are_closed_in(unit: Path) -> None:
    settings = settings_of(unit)
    assert settings["Restart"] == ["always"]
    assert settings["StartLimitIntervalSec"] == ["0"]
    for name in ("NoNewPrivileges", "ProtectSystem", "ProtectHome", "PrivateTmp", "DynamicUser"):
        assert settings[name][0] in ("yes", "strict"), name
    for directory in settings.get("StateDirectory", ()):
        assert f"--data /var/lib/{directory} " in settings["ExecStart"][0]
    variables = dict(value.split("=", 1) for value in settings["Environment"])
    assert variables["BARRAGE_TOKEN_FILE"] == "%d/token"
    assert settings["LoadCredential"][0].startswith("token:")


def test_the_token_file_of_the_units_is_a_setting(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret\n")
    config = load_config(environment={"BARRAGE_TOKEN_FILE": str(tmp_path / "token")})
    assert config.token == "secret"
    grace_seconds = ServerConfig().drain_grace_ms / 1000
    assert all(float(settings_of(unit)["TimeoutStopSec"][0]) > 2 * grace_seconds for unit in UNITS)


EXPOSURE_MAX = 12
"""Tenths, of at most 100: what `systemd-analyze security` makes of a unit."""


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_units_have_no_rights_they_do_not_need(unit: Path, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    # A template is looked at as one of its instances.
    copy = tmp_path / unit.name.replace("@", "@x")
    copy.write_text(unit.read_text())
    ended = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", f"--threshold={EXPOSURE_MAX}", copy],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    if "offline" in ended.stderr:
        pytest.skip("systemd is older than 250")
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_understands_the_units(unit: Path, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    # It asks whether the program is there.
    copy = tmp_path / unit.name.replace("@.", "@one.")
    copy.write_text(unit.read_text().replace("/opt/barrage/bin/barrage", "/bin/true"))
    ended = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", copy],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    said = [line for line in ended.stderr.splitlines() if copy.name in line]
    assert not said
    assert ended.returncode == 0


# --- Kubernetes -----------------------------------------------------------------------------------


def test_every_kind_has_its_version_and_its_name() -> None:
    assert {each["kind"] for each in OBJECTS} == set(KINDS)
    for each in OBJECTS:
        assert each["apiVersion"] == KINDS[each["kind"]]
        assert re.fullmatch(r"[a-z][a-z0-9-]{0,62}", each["metadata"]["name"])
        assert isinstance(each["spec"], dict)
    assert len({name_of(each) for each in OBJECTS}) == len(OBJECTS)


def pod_of(workload: dict[str, Any]) -> dict[str, Any]:
    pod: dict[str, Any] = workload["spec"]["template"]["spec"]
    return pod


def labels_of(workload: dict[str, Any]) -> dict[str, str]:
    labels: dict[str, str] = workload["spec"]["template"]["metadata"]["labels"]
    return labels


@pytest.mark.parametrize("workload", WORKLOADS, ids=name_of)
def test_workloads_call_what_there_is_on_the_port_that_is_probed(workload: dict[str, Any]) -> None:
    pod = pod_of(workload)
    (container,) = pod["containers"]
    words = [*container["command"], *container["args"]]
    assert all(isinstance(word, str) for word in words)
    port = int(words[words.index("--port") + 1])
    assert container["ports"] == [{"name": "grpc", "containerPort": port}]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["grpc"] == {"port": port}
        assert all(isinstance(value, dict | int) for value in container[probe].values())
    assert words[words.index("--host") + 1] == "0.0.0.0"
    if "--data" in words:
        mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
        claims = {each["metadata"]["name"] for each in workload["spec"]["volumeClaimTemplates"]}
        assert mounts[words[words.index("--data") + 1]] in claims
    check_command_line(words)


@pytest.mark.parametrize("workload", WORKLOADS, ids=name_of)
def test_variables_of_workloads_are_understood(
    workload: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for container in pod_of(workload)["containers"]:
        for variable in container["env"]:
            monkeypatch.setenv(variable["name"], f"of {variable['name']}")
    config = settings(None, host="0.0.0.0", port=None, token=None)
    assert config.token == "of BARRAGE_TOKEN"


@pytest.mark.parametrize("workload", WORKLOADS, ids=name_of)
def test_workloads_are_whole_and_closed_in(workload: dict[str, Any]) -> None:
    spec, pod = workload["spec"], pod_of(workload)
    assert spec["selector"]["matchLabels"] == labels_of(workload)
    assert pod["securityContext"]["runAsNonRoot"] is True
    # Variables of services would be read as settings.
    assert pod["enableServiceLinks"] is False
    volumes = {each["name"] for each in pod.get("volumes", ())}
    volumes |= {each["metadata"]["name"] for each in spec.get("volumeClaimTemplates", ())}
    for container in pod["containers"]:
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
        inside = container["securityContext"]
        assert inside["readOnlyRootFilesystem"] is True
        assert inside["allowPrivilegeEscalation"] is False
        (token,) = (each for each in container["env"] if each["name"] == "BARRAGE_TOKEN")
        assert set(token["valueFrom"]["secretKeyRef"]) == {"name", "key"}
        assert container["resources"]["limits"]["memory"]
    grace_seconds = ServerConfig().drain_grace_ms / 1000
    assert pod["terminationGracePeriodSeconds"] > 2 * grace_seconds
    if workload["kind"] == "StatefulSet":
        # One engine owns its tables.
        assert spec["replicas"] == 1
        assert spec["serviceName"] in {
            each["metadata"]["name"] for each in OBJECTS if each["kind"] == "Service"
        }


@pytest.mark.parametrize(
    "each", [each for each in OBJECTS if each["kind"] != "StatefulSet"], ids=name_of
)
def test_whatever_selects_pods_finds_some(each: dict[str, Any]) -> None:
    selector = each["spec"]["selector"]
    wanted = selector.get("matchLabels", selector)
    found = [every for every in WORKLOADS if wanted.items() <= labels_of(every).items()]
    assert len(found) == 1
    for port in each["spec"].get("ports", ()):
        (container,) = pod_of(found[0])["containers"]
        assert port["targetPort"] in {every["name"] for every in container["ports"]}


def test_relays_follow_the_engine_by_its_service() -> None:
    (relay,) = (each for each in WORKLOADS if each["kind"] == "Deployment")
    (container,) = pod_of(relay)["containers"]
    services = {
        f"grpc://{each['metadata']['name']}:{port['port']}"
        for each in OBJECTS
        if each["kind"] == "Service"
        for port in each["spec"]["ports"]
    }
    assert container["args"][0] in services


# --- Docker ---------------------------------------------------------------------------------------


def test_the_image_calls_what_there_is() -> None:
    text = (DEPLOY / "docker" / "Dockerfile").read_text()
    (program,) = re.findall(r"^ENTRYPOINT (\[.*\])$", text, re.M)
    (words,) = re.findall(r"^CMD (\[.*\])$", text, re.M)
    check_command_line([*json.loads(program), *json.loads(words)])


# --- HAProxy --------------------------------------------------------------------------------------


def test_the_health_check_is_a_call_of_grpc() -> None:
    text = (DEPLOY / "haproxy" / "haproxy.cfg").read_text()
    sent = bytes.fromhex("".join(re.findall(r"tcp-check send-binary ([0-9a-f]+)", text)))
    assert sent.startswith(PREFACE)
    frames, rest = [], sent[len(PREFACE) :]
    while rest:
        size = int.from_bytes(rest[:3], "big")
        frames.append((rest[3], rest[4], rest[5:9], rest[9 : 9 + size]))
        assert len(frames[-1][3]) == size
        rest = rest[9 + size :]
    settings, headers, data = frames
    assert settings == (4, 0, bytes(4), b"")
    assert headers[:3] == (1, 4, b"\0\0\0\1")
    fields = dict(hpack.Decoder().decode(headers[3]))
    assert fields[":path"] == "/grpc.health.v1.Health/Check"
    assert (fields[":method"], fields["content-type"]) == ("POST", "application/grpc")
    assert data == (0, 1, b"\0\0\0\1", bytes(5))


def test_haproxy_understands_its_configuration() -> None:
    if shutil.which("haproxy") is None:
        pytest.skip("haproxy is not installed")
    ended = subprocess.run(
        ["haproxy", "-c", "-f", DEPLOY / "haproxy" / "haproxy.cfg"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert "WARNING" not in ended.stderr
