"""What the scripts that write code have in common."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TOP = Path(__file__).parent.parent
ROOT = TOP / "barrage"


def note(script: str, *sources: Path) -> str:
    """How a file begins that is written."""
    by = Path(script).relative_to(TOP)
    of = ", ".join(str(source.relative_to(TOP)) for source in sources)
    return f"# Written by {by} (make generated); do not edit.\n# It follows from {of}.\n"


def without(text: str, told: str, instead: str) -> str:
    """The text with one passage replaced, which stands in it once."""
    if text.count(told) != 1:
        raise ValueError(f"this stands {text.count(told)} times where it should once: {told!r}")
    return text.replace(told, instead)


def formatted(path: Path, text: str) -> str:
    """The text as the formatter leaves it, with the imports that are needed in their order."""
    for command in (["check", "--fix-only", "--quiet", "--select", "I,F401"], ["format"]):
        text = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(path), "-"],
            input=text,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    return text
