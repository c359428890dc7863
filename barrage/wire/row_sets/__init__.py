"""Row sets and shifts to bytes and back (barrage-wire.md sections 4 and 5)."""
