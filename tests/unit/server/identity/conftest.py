"""Chains have threads when a password was looked at: they end with the test that made them."""

from __future__ import annotations

import pytest

from tests.helpers.logging_in import Chain


@pytest.fixture(autouse=True)
def _chains_end(monkeypatch):
    made: list[Chain] = []
    whole = Chain.__init__

    def noted(chain: Chain, **settings) -> None:
        whole(chain, **settings)
        made.append(chain)

    monkeypatch.setattr(Chain, "__init__", noted)
    yield
    for chain in made:
        chain.authenticator.close()
