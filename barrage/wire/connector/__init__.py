"""The connector protocol's frames: bytes to values and back, in both dialects."""
