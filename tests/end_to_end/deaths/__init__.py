"""Each supervised thread and task is killed once: what depends on it fails at once and typed,
nobody waits for ever, and everybody else goes on. A role without a scenario fails the test.
"""
