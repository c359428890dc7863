"""Bytes to values and back: Flight messages, Barrage metadata, row sets and columns. No IO, no state machines."""
