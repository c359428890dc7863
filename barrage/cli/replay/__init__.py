"""Playing a table's past: moments, clocks, and the player."""
