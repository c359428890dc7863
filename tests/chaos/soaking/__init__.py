"""A server under a little of everything for a long time: nothing may grow."""
