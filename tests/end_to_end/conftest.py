"""Every end-to-end test is watched: nothing may be held up, and the engine touches no file."""

from tests.helpers.held_up import nothing_is_held_up, pytest_terminal_summary

__all__ = ["nothing_is_held_up", "pytest_terminal_summary"]
