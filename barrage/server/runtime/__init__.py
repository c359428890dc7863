"""The engine thread: its commands, the tables by name, what is made beside it, its watchdog."""
