"""Dashboards and alerts name what ``/metrics`` has, and those who read them understand them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

import barrage
from barrage.histogram import Histogram
from barrage.server import Alert, ServerConfig
from barrage.server.operations.exposition import exposition
from barrage.server.statistics.server_measures import MEASURES, Measure, MeasureKind

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
PROMETHEUS = DEPLOY / "prometheus"
DASHBOARD = json.loads((DEPLOY / "grafana" / "barrage.json").read_text())
ALERTS = yaml.safe_load((PROMETHEUS / "alerts.yaml").read_text())["groups"][0]["rules"]
OPERATIONS = (ROOT / "docs" / "operations.md").read_text()
FROM_PROMETHEUS = {"up"}


def all_measures() -> list[Measure]:
    """A value of each, as a server has them that has everything."""
    empty = Histogram().taken()
    return [
        Measure.of_histogram(name, empty)
        if info.kind is MeasureKind.HISTOGRAM
        else Measure(name, 1, "x" if info.label else "")
        for name, info in MEASURES.items()
    ]


def told() -> tuple[set[str], dict[str, set[str]]]:
    """Names of samples, and the labels of each."""
    text = exposition(all_measures())[0].decode()
    labels: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels.setdefault(sample.name, set()).update(sample.labels)
    return set(labels), labels


NAMES, LABELS = told()


def expressions() -> list[tuple[str, str]]:
    queries = [
        (panel["title"], target["expr"])
        for panel in DASHBOARD["panels"]
        for target in panel["targets"]
    ]
    variables = [(v["name"], v["query"]) for v in DASHBOARD["templating"]["list"][1:]]
    return [*queries, *variables, *((rule["alert"], rule["expr"]) for rule in ALERTS)]


@pytest.mark.parametrize(("where", "expression"), expressions())
def test_every_metric_that_is_asked_for_is_there(where: str, expression: str) -> None:
    asked = set(re.findall(r"\b(?:barrage|process)_[a-z_]+\b", expression))
    assert asked or expression.startswith("up{"), where
    assert asked <= NAMES, where
    (by,) = re.findall(r"sum by \(([a-z, ]+)\)", expression) or ("",)
    wanted = {word.strip() for word in by.split(",") if word.strip()} - {"instance"}
    for name in asked:
        assert wanted <= LABELS[name], f"{where}: {name} has no label {wanted - LABELS[name]}"


def test_real_servers_tell_all_measures_between_them(tmp_path: Path) -> None:
    """With a journal, an audit log, an alert and another way of bodies, and calls of which one is
    refused;
    what is of relays is in tests of relays."""
    config = ServerConfig(
        data=str(tmp_path / "data"),
        audit=str(tmp_path / "audit"),
        alert_hosts="127.0.0.1",
        bodies="shm" if Path("/dev/shm").is_dir() else "inline",
    )
    found: set[str] = set()
    with barrage.Server(config=config) as server:
        server.create_table("t", {"a": "int64"}, key="a")
        server.add_alert(Alert(name="none", table="u", where="a > 1", url="http://127.0.0.1/"))
        with (
            barrage.connect(server.uri) as session,
            pytest.raises(barrage.errors.TableNotFoundError),
        ):
            session.table("nothing").snapshot()
        with (
            barrage.connect(server.uri) as session,
            session.table("t").subscribe() as ticking,
        ):
            ticking.wait_ready(60)
            found |= set(session.table("_server").snapshot().column("measure").to_pylist())
    relay = {name for name in MEASURES if name.startswith(("relay", "upstreams"))}
    assert MEASURES.keys() - found - relay <= {
        *(name for name in MEASURES if name.startswith("bod") and config.bodies == "inline")
    }


def test_every_alert_is_explained_and_says_what_to_do() -> None:
    section = OPERATIONS.partition("## Alerts")[2].partition("\n## ")[0]
    rows = {
        cells[1].strip().strip("`"): cells
        for line in section.splitlines()
        if len(cells := line.split("|")) == 5
    }
    assert {rule["alert"] for rule in ALERTS} <= rows.keys()
    for rule in ALERTS:
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert len(rows[rule["alert"]][3].strip()) > 20, rule["alert"]


def test_the_page_has_a_row_for_every_measure() -> None:
    section = OPERATIONS.partition("## What is measured")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `([a-z_]+)`", section, re.M)) == set(MEASURES)


# --- by those who read them -----------------------------------------------------------------------


def needed(program: str) -> str:
    beside = Path(sys.executable).with_name(program)
    found = str(beside) if os.access(beside, os.X_OK) else shutil.which(program)
    if found is None:
        pytest.skip(f"{program} is not installed")
    return found


def ended(*words: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words, cwd=PROMETHEUS, input=text, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize(
    "words",
    [
        ("check", "rules", "alerts.yaml"),
        ("check", "config", "prometheus.yaml"),
        ("test", "rules", "alerts_test.yaml"),
    ],
    ids=" ".join,
)
def test_promtool_understands_the_alerts(words: tuple[str, ...]) -> None:
    done = ended(needed("promtool"), *words)
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_has_nothing_to_say_about_the_metrics() -> None:
    body, _ = exposition(all_measures())
    done = ended(needed("promtool"), "check", "metrics", text=body.decode())
    complaints = [
        line
        for line in (done.stdout + done.stderr).splitlines()
        if line.strip() and "process_" not in line
    ]
    assert complaints == []


def test_grafana_knows_all_of_the_dashboard() -> None:
    dashboard = pytest.importorskip("grafana_foundation_sdk.models.dashboard")
    read = dashboard.Dashboard.from_json(DASHBOARD)
    assert len(read.panels) == len(DASHBOARD["panels"])
    again = json.loads(json.dumps(read, default=lambda each: each.to_json()))
    assert missing(DASHBOARD, again) == []


def missing(one: Any, other: Any, place: str = "") -> list[str]:
    """What is in one document and not in the other: a field the schema does not know is lost."""
    if isinstance(one, dict) and isinstance(other, dict):
        return [
            lost
            for name, value in one.items()
            for lost in (
                missing(value, other[name], f"{place}.{name}")
                if name in other
                else [f"{place}.{name}"]
            )
        ]
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return [
            lost
            for number, (value, same) in enumerate(zip(one, other, strict=True))
            for lost in missing(value, same, f"{place}[{number}]")
        ]
    return [] if one == other else [f"{place}: {one!r} is not {other!r}"]


def test_panels_lie_side_by_side() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells


# --- the image ------------------------------------------------------------------------------------

DOCKERFILE = (DEPLOY / "docker" / "Dockerfile").read_text()


def test_the_linter_has_nothing_to_say_about_the_image() -> None:
    done = ended(needed("hadolint"), str(DEPLOY / "docker" / "Dockerfile"))
    assert done.returncode == 0, done.stdout


def test_the_image_has_all_packages_and_runs_as_nobody() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    (found,) = re.findall(r"\[tool.setuptools.packages.find\]\ninclude = (\[.*\])", project)
    for package in json.loads(found):
        assert f"COPY {package.rstrip('*')} " in DOCKERFILE
    manifest = (DEPLOY / "kubernetes" / "engine.yaml").read_text()
    (user,) = re.findall(r"USER (\d+):\1", DOCKERFILE)
    assert f"runAsUser: {user}" in manifest
    assert DOCKERFILE.index("USER ") < DOCKERFILE.index("ENTRYPOINT")
    (words,) = re.findall(r"^CMD (\[.*\])$", DOCKERFILE, re.M)
    asked = json.loads(words)
    assert asked[asked.index("--metrics-port") + 1] in DOCKERFILE.partition("EXPOSE")[2][:20]
    for directive in re.findall(r"^\s+(?:ENV )?(BARRAGE_[A-Z_]+)=", DOCKERFILE, re.M):
        assert hasattr(ServerConfig, directive.removeprefix("BARRAGE_").lower())
