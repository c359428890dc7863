"""What a connector remembers between its runs, where its destination cannot: a small JSON file that
is replaced as a whole."""

from __future__ import annotations

import contextlib
import json
import os
import re
from pathlib import Path
from typing import Any

from barrage.errors import ConfigError

STATE_BYTES_MAX = 16 * 1024 * 1024


def default_folder() -> Path:
    """Where state is kept when nothing is said."""
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home) / "barrage"


class StateFile:
    """One JSON value under a name. ConfigError for a file that is none of ours."""

    def __init__(self, name: str, folder: Path | None = None) -> None:
        self._path = (folder or default_folder()) / (re.sub(r"[^\w.-]", "_", name) + ".json")

    @property
    def path(self) -> Path:
        return self._path

    def load(self) -> Any:
        """The value; None when there is none yet."""
        try:
            with self._path.open("rb") as file:
                data = file.read(STATE_BYTES_MAX + 1)
            return json.loads(data)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise ConfigError(f"the state in {self._path} cannot be read: {error}") from None

    def save(self, value: Any) -> None:
        """Replace the value, so that a crash leaves the old one or the new one."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        beside = self._path.with_suffix(".new")
        with beside.open("w") as file:
            json.dump(value, file)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(self._path)
        with contextlib.suppress(OSError):
            folder = os.open(self._path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
