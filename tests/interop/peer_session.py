"""A session of pydeephaven for the scripts that have one server: logged in as the environment says
(:func:`tests.interop.processes.environment_with`). Needs pydeephaven."""

from __future__ import annotations

import json
import os
from pathlib import Path

from pydeephaven import Session

from tests.interop.processes import LOGIN


def new_session(port: int) -> Session:
    login = json.loads(os.environ.get(LOGIN, "{}"))
    if "ca" in login:
        root = Path(login.pop("ca")).read_bytes()
        login |= {"use_tls": True, "tls_root_certs": root}
    return Session("127.0.0.1", port, **login)
