"""What was found out about this machine, for people and scripts (``barrage doctor``)."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from enum import Enum


class CheckStatus(Enum):
    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line: what was looked at, how it is, and what to do about it when it is not well."""

    name: str
    status: CheckStatus
    text: str
    advice: str = ""

    def facts(self) -> dict[str, str]:
        """The JSON form."""
        return {**dataclasses.asdict(self), "status": self.status.value}


def fine(name: str, text: str) -> Finding:
    return Finding(name=name, status=CheckStatus.OK, text=text)


def warning(name: str, text: str, advice: str) -> Finding:
    return Finding(name=name, status=CheckStatus.WARNING, text=text, advice=advice)


def problem(name: str, text: str, advice: str) -> Finding:
    return Finding(name=name, status=CheckStatus.PROBLEM, text=text, advice=advice)
