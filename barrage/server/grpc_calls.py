"""Names of grpc.aio that its type stubs do not have."""

from __future__ import annotations

from typing import Any

import grpc.aio

END_OF_STREAM: Any = grpc.aio.EOF  # type: ignore[attr-defined]
"""What ``context.read()`` gives after the client's last message."""
