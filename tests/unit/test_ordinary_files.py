"""Files of settings are opened at once, or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from barrage.errors import ConfigError
from barrage.ordinary_files import ordinary_file
from barrage.server.identity.users_file import read_users
from barrage.server.policy.policy_file import read_policy_and_files


def test_a_file_is_opened(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"whole")
    with open(path, "rb", opener=ordinary_file) as file:
        assert file.read() == b"whole"


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_nobody_waits_for_who_writes_into_a_pipe(tmp_path: Path, kind: str) -> None:
    path = Path("/dev/zero") if kind == "device" else tmp_path / "pipe"
    if kind == "pipe":
        os.mkfifo(path)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="not an ordinary file"):
        ordinary_file(str(path), os.O_RDONLY)
    assert len(os.listdir("/proc/self/fd")) == before
    for read in (read_users, read_policy_and_files):
        with pytest.raises(ConfigError, match="not an ordinary file"):
            read(path)
