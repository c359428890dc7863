"""Programs that write parts of this repository."""
