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

    @property
    def has_reverse_viewport(self) -> bool:
        return self is WireRevision.R1_0_0

    @property
    def has_table_size(self) -> bool:
        return self is WireRevision.R1_0_0

    @property
    def has_columns_as_list(self) -> bool:
        return self is WireRevision.R1_0_0

    @property
    def counts_batches(self) -> bool:
        """Whether metadata says how many record batches follow; otherwise receivers count rows
        (section 8.4)."""
        return self is WireRevision.DRAFT_2020

    @property
    def has_view_positions(self) -> bool:
        """Whether viewport updates are in view positions (section 9); the draft's are in row
        keys."""
        return self is WireRevision.R1_0_0
