"""A refusal that meets a write on its way keeps its reason."""

from __future__ import annotations

import pyarrow as pa
import pytest

import barrage
from barrage.errors import TableExistsError
from tests.helpers.serving import HOST


def test_a_refused_put_says_why_every_time() -> None:
    rows = pa.table({"a": range(10)})
    with barrage.Server(HOST) as server, barrage.connect(server.uri) as session:
        session.put("t", rows, mode="create")
        # The write and the refusal race; gRPC lost the reason in a few of a hundred.
        for _ in range(100):
            with pytest.raises(TableExistsError):
                session.put("t", rows, mode="create")
