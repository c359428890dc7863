"""A connector of barrage."""
