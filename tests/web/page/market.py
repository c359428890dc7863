"""A small market whose tables move: what the pictures of the documents show."""

from __future__ import annotations

import json
import time
import urllib.parse
from typing import Any

import numpy as np
import pyarrow as pa

SYMBOLS = ["AAPL", "MSFT", "NVDA", "AMZN", "GOOG", "META", "TSLA", "AVGO", "JPM", "V", "XOM", "UNH"]
VENUES = ["XNAS", "XNYS", "BATS", "IEXG"]
ORDERS = 100_000


class Market:
    """Orders that are changed a few hundred at a time, and what is derived from them."""

    def __init__(self, server: Any) -> None:
        self._rng = np.random.default_rng(11)
        self._prices = np.round(self._rng.uniform(40, 600, len(SYMBOLS)), 2)
        schema = {
            "order_id": "int64",
            "symbol": "string",
            "venue": "string",
            "side": "string",
            "qty": "int32",
            "price": "float64",
            "filled": "bool",
            "ts": pa.timestamp("ns", "UTC"),
        }
        self._orders = server.create_table("orders", schema, key="order_id")
        self._orders.upsert(self._rows(np.arange(ORDERS)))
        by_symbol = self._orders.agg_by(
            "symbol", orders="count()", qty="sum(qty)", low="min(price)", high="max(price)"
        )
        server.publish("by_symbol", by_symbol)
        server.publish("largest", self._orders.sort("-qty").head(100))

    def _rows(self, ids: Any) -> dict[str, Any]:
        count = len(ids)
        rng, symbol = self._rng, ids % len(SYMBOLS)
        now = time.time_ns()
        return {
            "order_id": ids.tolist(),
            "symbol": [SYMBOLS[i] for i in symbol],
            "venue": rng.choice(VENUES, count).tolist(),
            "side": rng.choice(["BUY", "SELL"], count).tolist(),
            "qty": (rng.integers(1, 100, count) * 100).tolist(),
            "price": np.round(self._prices[symbol] * rng.normal(1, 0.002, count), 2).tolist(),
            "filled": [None if x < 0.1 else bool(x > 0.5) for x in rng.random(count)],
            "ts": (now + rng.integers(0, 10**6, count)).tolist(),
        }

    def step(self) -> None:
        near = self._rng.integers(0, 60, 12)
        far = self._rng.integers(0, ORDERS, 300)
        self._orders.upsert(self._rows(np.unique(np.concatenate([near, far]))))

    @property
    def link(self) -> str:
        """A board of two tables and a chart."""
        prices = {"price": "fixed2", "low": "fixed2", "high": "fixed2"}

        def panel(width: float, **grid: Any) -> dict[str, Any]:
            return {"width": width, "grid": {"numbers": prices, **grid}}

        sort = [{"name": "qty", "isDescending": True}]
        bars = {"table": "by_symbol", "kind": "bars", "values": ["high"], "label": "symbol"}
        rows = [
            {"height": 1.5, "panels": [panel(1, table="orders")]},
            {
                "height": 1,
                "panels": [panel(1, table="by_symbol", sort=sort), {"width": 1, "chart": bars}],
            },
        ]
        return board(*rows)

    @property
    def pivot_link(self) -> str:
        """Orders by venue and side in Perspective."""
        view = {
            "plugin": "X Bar",
            "group_by": ["symbol"],
            "split_by": ["venue"],
            "columns": ["qty"],
            "aggregates": {"qty": "sum"},
        }
        panel = {"width": 1, "perspective": {"table": "orders", "view": view}}
        return board({"height": 1, "panels": [panel]})


def board(*rows: dict[str, Any]) -> str:
    """The link of a board."""
    return f"#board={urllib.parse.quote(json.dumps({'rows': rows}))}"
