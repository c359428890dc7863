"""The worker: connections of external sources, and the tables their streams land in."""
