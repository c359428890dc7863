"""A page that stays open: its server, what is looked at, and when something grows."""
