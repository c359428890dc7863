"""Calls within one process: the server's handlers, run without a socket."""
