"""The grid's feed from a real subscription: one viewport, moved as the screen moves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from barrage.cli.watch.feed import FeedStatus, Frame
from barrage.cli.watch.scroller import Window

if TYPE_CHECKING:
    import pyarrow as pa

    from barrage.client import Session


class SessionFeed:
    pass
