"""The revisions of the format this package speaks, and what each can say.

Source: barrage-wire.md sections 2.2 to 2.6. A revision is chosen per endpoint or by a header, never
guessed from bytes: requests are prefix-compatible while updates and snapshot requests are not.
"""

from __future__ import annotations

from enum import Enum


class WireRevision(Enum):
    """``R1_0_0`` is what Deephaven 42.7 speaks; ``DRAFT_2020`` is the published draft."""

    R1_0_0 = "1.0.0"
    DRAFT_2020 = "2020"

    has_reverse_viewport: bool
    has_table_size: bool
    has_columns_as_list: bool
    counts_batches: bool
    """Whether metadata says how many record batches follow; otherwise receivers count rows (section
    8.4)."""
    has_view_positions: bool
    """Whether viewport updates are in view positions (section 9); the draft's are in row keys."""

    def __init__(self, version: str) -> None:
        # Plain attributes: they are asked for with every message, and looking up an enum's member
        # to compare with costs ten times as much.
        is_draft = version == "2020"
        self.has_reverse_viewport = not is_draft
        self.has_table_size = not is_draft
        self.has_columns_as_list = not is_draft
        self.counts_batches = is_draft
        self.has_view_positions = not is_draft
