"""Cells as keys: hashes, an index of key values, and row keys with room between them."""
